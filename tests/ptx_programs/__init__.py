"""Hand-written PTX programs with inputs and the outputs that the PTX ISA's text promises, by family."""

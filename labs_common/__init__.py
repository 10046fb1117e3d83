"""The paged attention kernel lab: problems, kernels, two engines to run them, and what to measure."""

"""A CUDA device in software: runs PTX on the CPU, counts what Nsight Compute counts, checks accesses."""

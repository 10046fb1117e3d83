"""Grading a class: submissions are read but never run as Python, kernels run in limited child processes."""

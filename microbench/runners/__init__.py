"""Runners of kernels on a board: CuPy, PyTorch and cuBLAS, each imported in the one file that wraps it."""

"""Microbenchmarks in PTX: a table a family; kernels of libraries (products, norms, attention) are measured in `microbench.runners`."""

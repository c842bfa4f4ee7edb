"""The fit of latency: kernels measured one by one by group, and runs of whole workloads."""

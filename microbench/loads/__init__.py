"""Kernels and copies ready for launch: sizes, counts of their work, the load for sensors, the listing."""

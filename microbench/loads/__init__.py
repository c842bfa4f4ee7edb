"""Kernels and copies made ready to be launched: sizes, counts of all that they do, the load for sensors, the listing."""

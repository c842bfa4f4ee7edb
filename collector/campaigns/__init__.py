"""Campaigns: the measured kernels, their order, their repeats, and the result of each run."""

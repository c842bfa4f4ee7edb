"""The load: kernels, and the work of each by construction."""

"""Kernels measured one by one: coefficients by group, tiles, residual tier, intervals."""

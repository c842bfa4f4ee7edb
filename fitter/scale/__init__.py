"""Fits of data sets that no memory holds: one pass after the other over partitions, sums by group, then the usual solvers."""

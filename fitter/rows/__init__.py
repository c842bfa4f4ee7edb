"""Measured rows: the data sets that are read, the columns that the solvers see, and what is rejected."""

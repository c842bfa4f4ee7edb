"""Measured rows: input data sets, columns for the solvers, and rejected rows."""

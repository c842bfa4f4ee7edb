"""Kernel rows that do not fit into memory: read in partitions, screened, counted, and sampled for the usual fit."""

"""Kernel rows that no memory holds: read in pieces over partitions, screened and counted, and sampled for the usual fit."""

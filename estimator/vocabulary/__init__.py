"""Common vocabulary: units, GPUs, workloads, errors, and the reader of declared data."""

"""What everything speaks of: units, GPUs, workloads, errors, and the reader of declared data."""

"""From one GPU to another: its bundle as a prior, and which few kernels to measure."""

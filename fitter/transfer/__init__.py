"""Transfer between GPUs: a bundle as a prior, and the choice of the few kernels to measure."""

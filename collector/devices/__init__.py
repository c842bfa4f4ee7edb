"""The hardware edge: three protocols, a clock, the values that cross it, and boards behind NVIDIA's driver."""

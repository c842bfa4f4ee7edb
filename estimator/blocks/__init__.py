"""Time and energy from the number of blocks, and platforms for SimGrid."""

"""Energy from counts of instructions and transactions."""

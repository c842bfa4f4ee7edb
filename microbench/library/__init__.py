"""Library kernels: which library offers what for an operator, and how its operands lie in memory."""

"""The same workload otherwise: another batch, sequence, precision or form of attention."""

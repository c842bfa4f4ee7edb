"""A simulated board: one physical world with its own clock, seen through gpu, sensor and runner.

What is learnt from it is plumbing and statistics, never physics: its energies and times are plausible, not
measured.  Truth is computed from finer things than the equations that are fitted to it: blocks placed on SMs,
an L2 whose residency is simulated, loaded memory latency, launch gaps, leakage that grows with temperature,
a power limit that lowers the clock, voltage in steps, data-dependent switching.

profile → library → cache, scheduler → silicon → world → sensor
"""

"""A simulated board: one physical world with its own clock, accessed through gpu, sensor and runner.

It serves to test software and statistics, never physics: its energies and times are plausible, not
measured.  Truth is computed from finer models than the fitted equations: blocks placed on SMs,
an L2 whose residency is simulated, loaded memory latency, launch gaps, leakage that grows with temperature,
a power limit that lowers the clock, voltage in steps, data-dependent switching.

profile → library → cache, scheduler → silicon → world → sensor
"""

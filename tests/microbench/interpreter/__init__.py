"""The generated subset of PTX, executed with NumPy: what a kernel must compute, thread by thread.

Not a simulator: no time, no caches, no power.  It gives the numbers that a correct GPU must give, which addresses are touched, and
how often each instruction runs.
"""

from tests.microbench.interpreter.machine import Execution, execute

__all__ = ["Execution", "execute"]

"""The two paces of a host, told apart while latencies are fitted.

A host launches operators at its usual pace or, for seconds or for minutes, at a slower one, and a run's time does not say at which.
Each run is therefore a mixture: it counts at either pace with the probability that it had it (expectation and maximisation: Dempster,
Laird, Rubin, J. R. Stat. Soc. B 39 (1977) 1).  So slow runs do not raise the launch cost of the usual pace, nor does that one's scatter
have to be wide enough for both.
"""

from typing import Final

import numpy as np

from estimator.quantities import Array

SLOW_PACE: Final = 1.25
"""Launch cost at the slow pace over the usual one: runs that changed from one to the other show 1.22 to 1.30 by their two readings (three
published sets, two boards); Qwen2 1 × 128, in no fit, took 26.4 to 27.0 or 33.9 to 34.7 ms [1]."""

SLOW_SHARE: Final = 0.25
"""Share of runs at the slow pace that is expected before any is seen [1]."""

SHARE_RUNS: Final = 4.0
"""Runs paced by the host that this expectation counts for."""

MOST_SLOW: Final = 0.5
"""The usual pace is that of at least half of the runs; otherwise one pace could be taken for the other [1]."""


def slow_probability(cost: Array, share: float) -> Array:
    """Probability of each run to have had the slow pace, shape (n,).

    cost (2, n): −2·ln(likelihood) of each run at the usual and at the slow pace; share of slow runs among all.
    """
    odds = np.log(share / (1.0 - share)) - 0.5 * (cost[1] - cost[0])
    result: Array = 0.5 * (1.0 + np.tanh(0.5 * odds))
    return result


def slow_share(slow: Array, launch_bound: Array) -> float:
    """Share of slow runs; each counts as far as its host paces it.  slow, launch_bound (n,): probability to be slow, share of launches."""
    seen, slow_seen = float(launch_bound.sum()), float(slow @ launch_bound)
    return min((slow_seen + SLOW_SHARE * SHARE_RUNS) / (seen + SHARE_RUNS), MOST_SLOW)

"""Start-up: time that a run spends inside its measured window before its first iteration.

A benchmark times one iteration, runs as many iterations as should fill a target duration, and divides the whole
window by their number.  For GPU-bound runs, duration − target − half an iteration (the count is rounded up) is therefore one
constant of the host; the median over them is removed from every run of that host.
Source: measured on the public runs of EnergAIzer (arXiv 2604.20105), see docs/model.md.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from estimator.vocabulary.quantities import Array, BoolArray, IntArray

ROUND_TARGETS_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 240.0, 300.0, 600.0)
"""Usual target durations of a run [s]."""

TRUNCATED_SHARE: Final = 0.8
"""Least duration of a complete run as a share of the target [1]."""

FEWEST_RUNS: Final = 5
"""Fewer runs show no common target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupEstimate:
    """Target duration, start-up and its quartiles over the GPU-bound runs [s], and their number."""

    target_s: float
    startup_s: float
    quartiles_s: tuple[float, float]
    runs: int


def target_duration_s(duration_s: Array) -> float:
    """Target duration of runs [s]; nan without a common one.

    It is the largest of ROUND_TARGETS_S below the median, if most runs lie close to that median.
    """
    valid = duration_s[np.isfinite(duration_s) & (duration_s > 0)]
    if len(valid) < FEWEST_RUNS:
        return float("nan")
    middle = float(np.median(valid))
    below = max((target for target in ROUND_TARGETS_S if target <= middle), default=0.0)
    # Runs aimed at one target where 60 % of them lie within 10 % of the median duration.
    alike = float(np.mean(np.abs(valid / middle - 1.0) < 0.1)) >= 0.6
    # A start-up above 15 % of the target says that the target was another one.
    return below if alike and middle <= below * (1.0 + 0.15) else float("nan")


def estimate_startup(duration_s: Array, latency_s: Array, gpu_bound: BoolArray, target_s: float) -> StartupEstimate:
    """Start-up of one host's runs: the median of duration − target − latency / 2 over its GPU-bound runs.

    gpu_bound: rows limited by the GPU, not by the host's launches; with fewer than FEWEST_RUNS of them, all complete
    runs are used.
    """
    whole = duration_s >= TRUNCATED_SHARE * target_s
    chosen: IntArray = np.flatnonzero(whole & gpu_bound)
    if len(chosen) < FEWEST_RUNS:
        chosen = np.flatnonzero(whole)
    excess = duration_s[chosen] - target_s - latency_s[chosen] / 2.0
    low, middle, high = (float(value) for value in np.quantile(excess, (0.25, 0.5, 0.75)))
    return StartupEstimate(target_s=target_s, startup_s=max(middle, 0.0), quartiles_s=(low, high), runs=len(chosen))


def is_perturbed(duration_s: Array, latency_s: Array, target_s: Array | float, startup_s: Array | float) -> BoolArray:
    """Mask of the runs whose pace changed, shape (n,): the duration differs from the one that the trial iteration predicts.

    The count of iterations came from one trial iteration; a run at the same pace lasts target + start-up + at most one
    iteration.
    """
    # A duration so far from the expected one: the pace changed during the run (2 s of 30).
    tolerance = 1.0 / 15.0 * target_s + latency_s / 2.0
    result: BoolArray = np.abs(duration_s - target_s - startup_s - latency_s / 2.0) > tolerance
    return result

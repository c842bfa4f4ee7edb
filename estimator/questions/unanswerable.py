"""Points of a sweep that a board cannot be brought to, as points without numbers that say why."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from estimator.bundles.content import Bundle
from estimator.forms.variation import Variant
from estimator.gpu import GpuSpec
from estimator.questions.points import VALUES, Sweep
from estimator.questions.sweeping import sweep
from estimator.settings import unlockable_line


def unanswerable(variant: Variant, bundle: Bundle, gpu: GpuSpec, clocks_mhz: Sequence[float]) -> Sweep:
    """A point for each clock, ascending and outside what the board can lock [MHz]; all numbers but that clock are nan."""
    (case,) = sweep(variant, bundle, gpu=gpu).cases
    lines = tuple(dict.fromkeys(unlockable_line(clock, gpu) for clock in (clocks_mhz[0], clocks_mhz[-1])))
    nothing = np.zeros(len(clocks_mhz), dtype=np.int64)
    columns = {name: np.full(len(clocks_mhz), np.nan) for name in VALUES} | {"asked_clock_mhz": np.array(clocks_mhz, dtype=np.float64)}
    case = replace(case, warnings=(*case.warnings, *lines), too_large=(), unseen=((),))
    return Sweep(cases=(case,), case=nothing, above_limit=nothing > 0, unseen=nothing, **columns)

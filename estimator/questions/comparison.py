"""Two predictions side by side: bundles, GPUs, precisions, forms of attention, clocks, workloads.

Errors that both share fall out of ratios and differences: two precisions on one board share its DRAM and its host, two bundles nothing.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from estimator.questions.choosing import Gain, gain
from estimator.questions.judging import Asked, difference_std, judged
from estimator.questions.points import Sweep

COMPARED: Final[dict[str, str]] = {"latency": "latency_s", "power": "power_w", "energy": "energy_j"}
"""Quantities that are compared, and the columns that hold them."""

_FIRST: Final = np.zeros(1, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two predictions at one clock each.

    left, right        one point each
    ratios             by quantity (latency, power, energy): right over left with its 90 % interval
    differences        by quantity: right minus left and its standard deviation [s, W, J]
    """

    left: Sweep
    right: Sweep
    ratios: dict[str, Gain]
    differences: dict[str, tuple[float, float]]


def compare(left: Asked, right: Asked) -> Comparison:
    """Compare two predictions, each at the first clock that it asks for.  Errors as those of `estimate`."""
    first, second = judged(left), judged(right)
    return Comparison(
        left=first.points.select(_FIRST),
        right=second.points.select(_FIRST),
        ratios={name: gain(second, 0, first, 0, name) for name in COMPARED},
        differences={
            name: (float(second.value(name)[0] - first.value(name)[0]), difference_std(second, 0, first, 0, name)) for name in COMPARED
        },
    )

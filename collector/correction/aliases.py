"""Periods that readings alone cannot tell from one another: a load is seen at the update rate only.

Sampled every P, a load of period T leaves the same readings as any of period 1/(k/P ± 1/T): its harmonics fall on the same
places.  Only the load's stamps, or what the averaging makes possible, tell which one it is.
"""

from typing import Final

import numpy as np

from collector.sensor.load import LoadStamps
from estimator.quantities import Array

UPDATE_RATES: Final = 2
"""Aliases are named up to so many updates' rates: shorter periods are below any update's time."""
LEAST_TURNS: Final = 2.0
"""Updates move through a period that often, or each place was seen once and any drift would look like a profile."""


def aliases(period_s: float, update_s: float) -> list[float]:
    """The other periods of the family of `period_s` under updates every `update_s`, longest first [s]."""
    rate = 1.0 / update_s
    base = abs(1.0 / period_s - rate * round(1.0 / (period_s * rate)))
    family = [base, *(k * rate + sign * base for k in range(1, UPDATE_RATES + 1) for sign in (-1, 1))]
    nearest = int(np.argmin([abs(f - 1.0 / period_s) for f in family]))
    near = abs(family[nearest] * period_s - 1.0) < 1e-6
    kept = {round(f, 9) for i, f in enumerate(family) if f > 0.0 and not (near and i == nearest)}
    return [1.0 / f for f in sorted(kept)]


def alias_text(period_s: float, update_s: float) -> str:
    """The family in words, for a period that no stamps told."""
    others = ", ".join(f"{other:.5g}" for other in aliases(period_s, update_s))
    return f"readings every {update_s * 1e3:.4g} ms look the same for periods of {others} s; only --load tells which of them the load had"


def turns_through(period_s: float, update_s: float, span_s: float) -> float:
    """How often the updates of a span move through a period that is near the updates' own, or a fraction of it; inf for others."""
    rates = update_s / period_s
    nearest = round(rates)
    return abs(rates - nearest) / update_s * span_s if nearest >= 1 else float("inf")


def load_harmonics(time_s: Array, load: LoadStamps, count: int) -> Array:
    """Harmonics of a load's own cycles, shape (n, 2 count): whatever repeats with its stamps is a sum of them."""
    turn = np.interp(time_s, load.start_s, np.arange(len(load.start_s), dtype=np.float64))
    angle = 2.0 * np.pi * turn[:, None] * np.arange(1, count + 1)
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=1)

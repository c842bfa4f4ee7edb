"""Which readings can be the power of a board that runs: one rule for every source of a board's own readings.

Some drivers answer 0 W, or less, or a figure beyond all reason, for a power that they do not know.  An external meter's
samples are another matter: its rails have zeros of their own, and a current may run backwards.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from estimator.vocabulary.quantities import Array

LEAST_POWER_W: Final = 1.0
"""No board that answers draws less, its memory and regulators alone draw several times that: a driver that says so has read nothing."""
MOST_POWER_W: Final = 20_000.0
"""No board draws more; a driver that says so has read nothing."""


def possible_power(power_w: Array | float, most_w: float = MOST_POWER_W) -> NDArray[np.bool_]:
    """Whether a board can draw that [W], for each reading; `most_w` where a board's own limit is known."""
    return np.isfinite(power_w) & (np.asarray(power_w) >= LEAST_POWER_W) & (np.asarray(power_w) <= most_w)

"""Rule for readings that can be the power of a running board, for every source of a board's own readings.

Some drivers answer 0 W, or less, or an impossibly large figure, for a power that they do not know.  The rule does not apply to an
external meter's samples: its rails have zeros of their own, and a current may run backwards.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from estimator.vocabulary.quantities import Array

LEAST_POWER_W: Final = 1.0
"""Least power of a board that answers [W]: its memory and regulators alone draw several times that.  A lower value is no reading."""
MOST_POWER_W: Final = 20_000.0
"""Greatest power of a board [W]; a higher value is no reading."""


def possible_power(power_w: Array | float, most_w: float = MOST_POWER_W) -> NDArray[np.bool_]:
    """Whether a board can draw each reading [W]; `most_w` is a board's own limit, nan if unknown."""
    return (np.asarray(power_w) >= LEAST_POWER_W) & (np.asarray(power_w) <= min(MOST_POWER_W, most_w))  # nan last: it is never the less

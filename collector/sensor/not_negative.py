"""Least squares with factors that may not be negative, for columns that resemble one another."""

from typing import Final

import numpy as np

from estimator.quantities import Array

RIDGE: Final = 1e-10
TOLERANCE: Final = 1e-9
"""Below this share of the readings' own moment a column adds nothing."""
ROUNDS_A_COLUMN: Final = 4


def solved_not_negative(design: Array, value: Array, weight: Array) -> Array:
    """Weighted least squares of `value` (n,) on `design` (n, c): the first factor of either sign, the others 0 or more; shape (c,).

    Columns enter one by one, the one that explains most of what is left first, and leave where they would become negative.
    Source: Lawson and Hanson, Solving Least Squares Problems (1974), chapter 23.
    """
    weighted = design * weight[:, None]
    normal, moment = design.T @ weighted, value @ weighted
    normal[np.diag_indices_from(normal)] += RIDGE * float(np.trace(normal))
    scale = np.sqrt(np.diag(normal))
    result = np.zeros(len(moment))
    used = [0]
    result[0] = moment[0] / normal[0, 0]
    least = TOLERANCE * float(np.abs(moment / scale).max())
    for _ in range(ROUNDS_A_COLUMN * len(moment)):
        left = (moment - normal @ result) / scale
        left[used] = -np.inf
        entering = int(np.argmax(left))
        if left[entering] <= least:
            break
        used = _stepped(normal, moment, [*used, entering], result)
        if entering not in used:
            break
    return result


def _stepped(normal: Array, moment: Array, used: list[int], result: Array) -> list[int]:
    """The solution over the columns `used`, those left out that would be negative; written into `result`, the columns left returned."""
    while True:
        wanted = np.linalg.solve(normal[np.ix_(used, used)], moment[used])
        now = result[used]
        falling = np.flatnonzero((wanted <= 0.0) & (np.array(used) != 0))
        if not len(falling):
            result[:] = 0.0
            result[used] = wanted
            return used
        room = np.maximum(now[falling], 0.0)
        share = room / np.maximum(room - wanted[falling], np.finfo(float).tiny)
        first = falling[int(np.argmin(share))]
        moved = now + float(share.min()) * (wanted - now)
        result[used] = moved
        result[used[first]] = 0.0
        used = used[:first] + used[first + 1 :]

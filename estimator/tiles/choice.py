"""Which tile a library takes for a matrix product, where kernel names have shown how it chooses among tiles.

A library compares its kernels by costs of its own.  These are near to the true times, but some kernels are liked more than
their time deserves.  So a candidate c of a product is taken with the probability

    p_c ∝ exp(liking_c − sharpness · ln t_c)

t_c being its time by the equations at the clock for which the vendor quotes its rates.  What counts is the product's time, not
the name of its tile: the prediction is the candidate at the weighted median of the times.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from estimator.coefficients import COLUMN
from estimator.errors import BundleError
from estimator.gpu import GpuSpec
from estimator.kernels.gemm import IMPOSSIBLE_CLOCKS, MatrixColumns, candidate_phases
from estimator.phases import OVERLAPPED, START_CLOCKS
from estimator.quantities import HZ_PER_MHZ, Array, BoolArray
from estimator.tiles.tiling import Candidates
from estimator.timeline import kernel_seconds

KIND: Final = "choice"
"""What a bundle calls such a predictor in its field `kind`; decision trees have none."""

_MATH: Final = OVERLAPPED.index("math")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TileChoice:
    """Candidates that the library was seen to take, how much it likes each, shape (c,), and how sharply it compares times."""

    candidates: Candidates
    liking: Array
    sharpness: float


def choice_from_document(document: Mapping[str, Any]) -> TileChoice:
    """The choice in a bundle; its arrays are built once.  Raises BundleError for one that is not as `fit` writes it."""
    try:
        return _cached_choice(document)
    except TypeError:  # plain dictionaries cannot be remembered
        return _choice(document)


def _choice(document: Mapping[str, Any]) -> TileChoice:
    try:
        columns = [np.array(document[name], dtype=np.float64) for name in ("tile_m", "tile_n", "split", "liking")]
        sharpness = float(document["sharpness"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise damaged_predictor(error) from error
    tile_m, tile_n, split, liking = columns
    if not tile_m.size or any(column.shape != (tile_m.size,) or not np.isfinite(column).all() for column in columns):
        raise damaged_predictor("columns of unequal length or without numbers")
    if min(tile_m.min(), tile_n.min(), split.min()) < 1.0 or not np.isfinite(sharpness):
        raise damaged_predictor("a tile or a split below 1")
    return TileChoice(candidates=Candidates(tile_m=tile_m, tile_n=tile_n, split=split), liking=liking, sharpness=sharpness)


_cached_choice = lru_cache(maxsize=256)(_choice)


def damaged_predictor(why: object) -> BundleError:
    """What to raise for a tile predictor that no fit writes."""
    return BundleError(
        f"the bundle's tile predictors are damaged ({type(why).__name__ + ': ' if isinstance(why, Exception) else ''}{why}); fit again"
    )


def candidate_seconds(columns: MatrixColumns, tiles: Candidates, gpu: GpuSpec, coefficients: Array) -> tuple[Array, BoolArray]:
    """Times of every candidate at the libraries' clock [s], and whether a library would offer it, both of shape (n, c).

    What every kernel takes alike is no part of them: a library compares kernels, not launches.  A product
    that no candidate suits is offered all.  coefficients: (n, ·) rows as from `coefficient_rows`, or one for all.
    """
    phases = candidate_phases(columns, tiles, gpu, counted=False)
    rows = coefficients if coefficients.ndim == 1 else coefficients[:, None, :]
    possible = phases.overlapped[..., _MATH] < IMPOSSIBLE_CLOCKS
    possible |= ~possible.any(axis=1, keepdims=True)
    clock_hz = gpu.sm_clock_max_mhz * HZ_PER_MHZ
    fixed_s = rows[..., COLUMN["epsilon_s"]] + rows[..., COLUMN["start"]] * START_CLOCKS / clock_hz
    return kernel_seconds(phases, rows, clock_hz) - fixed_s, possible


def chosen_tiles(columns: MatrixColumns, choice: TileChoice, gpu: GpuSpec, coefficients: Array) -> Candidates:
    """The candidate at the weighted median of the times of every product, columns of shape (n,)."""
    seconds, possible = candidate_seconds(columns, choice.candidates, gpu, coefficients)
    score = np.where(possible, choice.liking - choice.sharpness * np.log(seconds), -np.inf)
    weight = np.exp(score - score.max(axis=1, keepdims=True))
    order = np.argsort(seconds, axis=1)
    share = np.cumsum(np.take_along_axis(weight, order, axis=1), axis=1)
    place = (share >= 0.5 * share[:, -1:]).argmax(axis=1)
    taken = np.take_along_axis(order, place[:, None], axis=1)[:, 0]
    tiles = choice.candidates
    return Candidates(tile_m=tiles.tile_m[taken], tile_n=tiles.tile_n[taken], split=tiles.split[taken])

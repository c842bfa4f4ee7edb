"""Fit of a library's tile choice to products with known kernel names."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax

from estimator.model.coefficients import coefficient_vector
from estimator.model.lowering import KnownTiles, matrix_columns
from estimator.model.tile_choice import KIND, candidate_seconds
from estimator.model.tiling import Candidates, tile_candidates
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import Array, BoolArray, IntArray
from estimator.vocabulary.workload import Operator

FEWEST_SHAPES: Final = 12
"""Fewer products with names do not show all tiles of a library.  The usual tiles of the architecture then stay possible, with equal prior
preferences that the few names change."""

SPLITS: Final = np.array([1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64])
"""Split-K factors of the model; others count as the nearest one."""

FIRST_SHARPNESS: Final = 15.0
"""Prior of the sharpness of the comparison of times: odds fall e-fold for 1/15 more time."""

DIGITS: Final = 4
"""Decimals of stored coefficients of the choice."""


def fit_choice(
    operators: Sequence[Operator], gpu: GpuSpec, known: KnownTiles, coefficients: Mapping[str, float]
) -> FrozenMapping[Any] | None:
    """The choice in the form that a bundle stores, from products with known tiles; None if no tile is known.

    coefficients: of the group, which give the times of all candidates.  Each shape counts once.
    """
    first = {operator: i for i, operator in reversed(list(enumerate(operators)))}
    rows = np.array([i for i in sorted(first.values()) if np.isfinite(known.tile_m[i]) and np.isfinite(known.tile_n[i])], dtype=np.int64)
    if not len(rows):
        return None
    factor = np.where(np.isfinite(known.split[rows]), known.split[rows], 1.0)
    split = SPLITS[np.abs(np.log(factor)[:, None] - np.log(SPLITS)).argmin(axis=1)]
    taken = np.stack([known.tile_m[rows], known.tile_n[rows], split], axis=1)
    columns = matrix_columns([operators[i] for i in rows], gpu)
    usual = _usual_tiles(gpu, cuda_cores=bool(columns.tensor[0] == 0.0)) if len(rows) < FEWEST_SHAPES else taken[:0]
    grid = np.concatenate([taken, usual])
    tiles, tile = np.unique(grid[:, :2], axis=0, return_inverse=True)
    splits, share = np.unique(grid[:, 2], return_inverse=True)
    label = (tile.reshape(-1) * len(splits) + share.reshape(-1))[: len(rows)]
    pairs = np.array([(m, n, s) for m, n in tiles for s in splits])
    candidates = dict(zip(("tile_m", "tile_n", "split"), pairs.T, strict=True))
    seconds, possible = candidate_seconds(columns, Candidates(**candidates), gpu, coefficient_vector(coefficients))
    usable = possible[np.arange(len(rows)), label]
    if not usable.any():
        return None
    liking, sharpness = _likelihood_fit(np.log(seconds[usable]), possible[usable], label[usable], len(tiles), len(splits))
    return FrozenMapping(
        {
            "kind": KIND,
            **{name: tuple(sizes.astype(np.int64).tolist()) for name, sizes in candidates.items()},
            "liking": tuple(np.round(liking, DIGITS).tolist()),
            "sharpness": round(sharpness, DIGITS),
        }
    )


def _usual_tiles(gpu: GpuSpec, *, cuda_cores: bool) -> Array:
    """Tiles and splits that libraries offer on this architecture, rows of (tile_m, tile_n, split), shape (c, 3).

    Splits are left out if libraries limit them by the number of SMs in use, which a choice cannot express.
    """
    offered = tile_candidates(gpu, cuda_cores)
    kept = (offered.split == 1.0) | np.isinf(offered.split_waves)
    tiles: Array = np.stack([offered.tile_m, offered.tile_n, offered.split], axis=1)[kept]
    return tiles


def _likelihood_fit(log_seconds: Array, possible: BoolArray, label: IntArray, tiles: int, splits: int) -> tuple[Array, float]:
    """Preferences of the candidates (tile plus split), shape (tiles · splits,), and the sharpness, by penalised maximum likelihood."""
    rows = np.arange(len(label))
    relative = log_seconds - log_seconds.min(axis=1, keepdims=True)
    of_tile = np.repeat(np.eye(tiles), splits, axis=0)
    of_split = np.tile(np.eye(splits), (tiles, 1))
    design = np.concatenate([of_tile, of_split], axis=1)

    def loss(values: Array) -> tuple[float, Array]:
        sharpness = FIRST_SHARPNESS * np.exp(values[0])
        log_share = log_softmax(np.where(possible, design @ values[1:] - sharpness * relative, -np.inf), axis=1)
        value, error = -float(log_share[rows, label].sum()), np.exp(log_share)
        error[rows, label] -= 1.0
        slope = np.concatenate([[-(error * sharpness * relative).sum()], error.sum(axis=0) @ design])
        # Standard deviations before any is seen: of the sharpness [ln], and of likings [ln of odds].
        width = np.concatenate([[1.0], np.full(len(values) - 1, 3.0)])
        return value + 0.5 * float(((values / width) ** 2).sum()), slope + values / width**2

    found = minimize(loss, np.zeros(1 + tiles + splits), jac=True, method="L-BFGS-B")
    return design @ found.x[1:], float(FIRST_SHARPNESS * np.exp(found.x[0]))

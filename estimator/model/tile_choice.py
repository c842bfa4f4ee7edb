"""Prediction of the tile that a library selects for a matrix product, fitted to tiles from kernel names.

A library compares its kernels by its own costs.  These are close to the true times, but the library prefers some kernels more
than their time justifies.  A candidate c of a product is selected with the probability

    p_c ∝ exp(liking_c − sharpness · ln t_c)

where t_c is its time by the equations at the clock for which the vendor quotes its rates.  The product's time matters, not the
name of its tile: the prediction is the candidate at the weighted median of the times.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypedDict

import numpy as np

from estimator.model.coefficients import COLUMN, group_words
from estimator.model.gemm import Gemm, MatrixColumns, candidate_phases
from estimator.model.lowering import PRODUCTS_AT_ONCE, KnownTiles, is_matrix, matrix_columns
from estimator.model.phases import OVERLAPPED, START_CLOCKS, members
from estimator.model.tiling import Candidates
from estimator.model.timeline import kernel_seconds
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import HZ_PER_MHZ, Array, BoolArray
from estimator.vocabulary.reader import LEAST_ONE, Span, check_lengths
from estimator.vocabulary.workload import Operator

KIND: Final = "choice"
"""Value of a bundle's field `kind` for such a predictor."""

_MATH: Final = OVERLAPPED.index("math")

Tiles = Annotated[tuple[Annotated[float, Span(1, 65536, "elements or parts")], ...], LEAST_ONE]


class ChoiceRecord(TypedDict):
    """A choice by time and liking, a column by candidate."""

    kind: Annotated[Literal["choice"], "how tiles are predicted"]
    tile_m: Annotated[Tiles, "rows of each candidate's output tile"]
    tile_n: Annotated[Tiles, "its columns"]
    split: Annotated[Tiles, "parts of the reduction"]
    liking: Annotated[tuple[Annotated[float, Span(-1e3, 1e3)], ...], LEAST_ONE, "ln of the odds of each candidate at equal time"]
    sharpness: Annotated[float, Span(0.0, 1e6), "how sharply times are compared [1]"]


def _check_choice(record: ChoiceRecord) -> None:
    """Refuse columns of unequal length."""
    check_lengths({name: column for name, column in record.items() if isinstance(column, tuple)}, len(record["tile_m"]))


if TYPE_CHECKING:
    PredictorRecord = Any
else:
    PredictorRecord = Annotated[ChoiceRecord, _check_choice]


def choice_candidates(document: PredictorRecord) -> Candidates:
    """Candidates that the library selected in measurements, columns of shape (c,)."""
    return Candidates(**{name: np.array(document[name], dtype=np.float64) for name in ("tile_m", "tile_n", "split")})


def candidate_seconds(columns: MatrixColumns, tiles: Candidates, gpu: GpuSpec, coefficients: Array) -> tuple[Array, BoolArray]:
    """Times of every candidate at the libraries' clock [s], and whether a library would offer it, both of shape (n, c).

    The times exclude the cost that all kernels share: a library compares kernels, not launches.  A product without
    a suitable candidate is offered all.  coefficients: (n, ·) rows as from `CoefficientTable.rows`, or one for all.
    """
    phases = candidate_phases(columns, tiles, gpu)
    rows = coefficients if coefficients.ndim == 1 else coefficients[:, None, :]
    possible = phases.overlapped[..., _MATH] < Gemm.IMPOSSIBLE_CLOCKS
    possible |= ~possible.any(axis=1, keepdims=True)
    clock_hz = gpu.sm_clock_max_mhz * HZ_PER_MHZ
    fixed_s = rows[..., COLUMN["epsilon_s"]] + rows[..., COLUMN["start"]] * START_CLOCKS / clock_hz
    return kernel_seconds(phases, rows, clock_hz) - fixed_s, possible


def predicted_tiles(
    operators: Sequence[Operator],
    gpu: GpuSpec,
    predictors: Mapping[str, PredictorRecord],
    coefficients: Array,
    served: Sequence[str | None],
) -> KnownTiles | None:
    """Tiles of matrix products whose group has a predictor, nan elsewhere; None if no group has one.

    coefficients (n, ·), for the comparison of times, and served (n,), their groups: as from `CoefficientTable.rows`.  A group has the
    predictor of the longest group that begins its name.
    """
    if not predictors:
        return None
    count = len(operators)
    tiles = KnownTiles(tile_m=np.full(count, np.nan), tile_n=np.full(count, np.nan), split=np.full(count, np.nan))
    products = np.flatnonzero(is_matrix(operators))
    owners = (next((name for name in _from_the_longest(served[i] or "") if name in predictors), "") for i in products.tolist())
    for group, places in members(owners).items():
        for first in range(0, len(places) if group else 0, PRODUCTS_AT_ONCE):
            index = products[places[first : first + PRODUCTS_AT_ONCE]]
            found = group_tiles([operators[i] for i in index], gpu, predictors[group], coefficients[index])
            tiles.tile_m[index], tiles.tile_n[index], tiles.split[index] = found.tile_m, found.tile_n, found.split
    return tiles


def _from_the_longest(group: str) -> Iterator[str]:
    """A group and the groups that begin its name, the longest first."""
    yield group
    words = group_words(group)
    yield from (".".join(words[:count]) for count in range(len(words) - 1, 0, -1))


def group_tiles(operators: Sequence[Operator], gpu: GpuSpec, predictor: PredictorRecord, coefficients: Array) -> KnownTiles:
    """Tiles of matrix products by the predictor of their group: the candidates at the weighted median of times, columns of shape (n,).

    coefficients: (n, ·) rows, or one for all.
    """
    tiles = choice_candidates(predictor)
    seconds, possible = candidate_seconds(matrix_columns(operators, gpu), tiles, gpu, coefficients)
    score = np.where(possible, np.array(predictor["liking"]) - predictor["sharpness"] * np.log(seconds), -np.inf)
    weight = np.exp(score - score.max(axis=1, keepdims=True))
    order = np.argsort(seconds, axis=1)
    share = np.cumsum(np.take_along_axis(weight, order, axis=1), axis=1)
    place = (share >= 0.5 * share[:, -1:]).argmax(axis=1)
    taken = np.take_along_axis(order, place[:, None], axis=1)[:, 0]
    return KnownTiles(tile_m=tiles.tile_m[taken], tile_n=tiles.tile_n[taken], split=tiles.split[taken])

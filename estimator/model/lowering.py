"""Operators → phases, family by family, with the tile that a library would choose."""

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from estimator.model.attention import decode_phases, prefill_phases
from estimator.model.coefficients import COLUMN
from estimator.model.communication import communication_phases
from estimator.model.gemm import LANE_RATE, SHARING_ARCHITECTURES, WARP_RATE, Gemm, MatrixColumns, candidate_phases, matrix_phases
from estimator.model.phases import Phases, join_phases, members
from estimator.model.streams import stream_phases
from estimator.model.tiling import Candidates, tile_candidates
from estimator.model.timeline import kernel_seconds
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT, FORMATS, HZ_PER_MHZ, Array, BoolArray
from estimator.vocabulary.values import Columns, arrays
from estimator.vocabulary.work import expert_load
from estimator.vocabulary.workload import CACHED, Operator, conv_output_size

PRODUCTS_AT_ONCE: Final = 512
"""Most matrix products whose candidate tiles are compared together: dozens of candidates each, with dozens of numbers."""


@arrays
class KnownTiles(Columns):
    """Tiles known from kernel names or a predictor, shape (n,); nan if unknown (then the fastest candidate is used)."""

    tile_m: Array
    tile_n: Array
    split: Array


def lower(
    operators: Sequence[Operator], gpu: GpuSpec, coefficients: Array, known: KnownTiles | None = None, *, average: bool = False
) -> Phases:
    """Phases of operators on a GPU; average: of divided experts on the average GPU of a group instead of the fullest one.

    coefficients: (n, ·) rows as from `CoefficientTable.rows`; they decide the tile: the candidate that is fastest at the
    clock for which the vendor quotes its rates, as libraries choose without knowing the current clock.
    """
    parts, kinds = [], members(map(phase_kind, operators))
    for kind, index in kinds.items():
        chosen = [operators[i] for i in index.tolist()]
        if kind == "matrix":
            own = {name: np.full(len(index), np.nan) if known is None else getattr(known, name)[index] for name in KnownTiles.__slots__}
            parts.append(_products(own, matrix_columns(chosen, gpu, average), gpu, coefficients[index]))
        else:
            parts.append(STREAM_KINDS[kind](chosen, gpu))
    return join_phases(parts, list(kinds.values()), len(operators))


def phase_kind(operator: Operator) -> str:
    """The name of an operator's equations: "matrix", or a key of STREAM_KINDS."""
    if operator.family in ("gemm", "moe") or (operator.family == "conv" and operator.operator == "conv2d"):
        return "matrix"
    if operator.family in CACHED:
        return operator.operator.removeprefix("mla_")
    if operator.family == "communication":
        return operator.family
    return "stream"


def matrix_columns(operators: Sequence[Operator], gpu: GpuSpec, average: bool = False) -> MatrixColumns:
    """GEMMs and convolutions as matrix products with their own memory footprints."""
    rows = [_matrix_row(operator, gpu, average) for operator in operators]
    table = np.array(rows, dtype=np.float64).reshape(len(rows), len(MatrixColumns.__slots__))
    return MatrixColumns(**{name: table[:, i] for i, name in enumerate(MatrixColumns.__slots__)})


def _matrix_row(operator: Operator, gpu: GpuSpec, average: bool) -> tuple[float, ...]:
    form = FORMATS[operator.precision]
    width, weight_width = form.element_byte, form.weight_byte
    out_width = BYTES_PER_ELEMENT[operator.precision_out] if operator.precision_out else max(width, 2.0)
    tensor = not operator.cuda_cores and gpu.on_tensor_cores(operator.precision)
    access = Gemm.ACCESS_BYTES
    if operator.family == "gemm":
        batch, m, n, k = operator.shape
        if tensor and width == weight_width >= 2.0:  # rows are contiguous along k and n
            access = float(math.gcd(int(k * width), int(n * width), int(access)))
        elif tensor and width < 2.0:  # cuBLASLt refuses n and k that are no multiples of 16, frameworks pad them
            n, k = (16.0 * math.ceil(size / 16.0) for size in (n, k))
        weight, activation, padded = batch * n * k * weight_width, batch * m * k * width, k
        outputs = batch * m * n
    elif operator.family == "moe":  # all products of an expert side by side: as many operations and weights
        load, inter, k = expert_load(operator, average), operator["inter"] / operator["tp"], operator["hidden"]
        batch, m, n, padded = np.ceil(load.experts), np.ceil(load.rows), (2.0 + operator["gated"]) * inter, k
        weight, activation = load.experts * n * k * weight_width, load.pairs * (k + inter) * width
        # Beside the products tokens are sorted, the inner layer is activated and results are added up: a tensor each is read and written;
        # every GPU of a group reads and writes a row for each token, whether or not its experts take it.
        # Marlin's and Triton's kernels pass all pairs of the group, those of other GPUs as zeros (published tables: without it the L40S's
        # fp8_block errs by 18.5 instead of 11.6 % where left out, the H100's mxfp4 by 18.6 instead of 12.7); DeepGEMM runs from Hopper on.
        older = gpu.architecture not in SHARING_ARCHITECTURES
        triton = operator.precision in ("int4_wo", "w4a16_mxfp4") or (operator.precision == "fp8_block" and older)
        pairs = operator["tokens"] * operator["topk"] if triton else load.pairs
        own = pairs * (2.0 * k + inter * (1.0 + operator["gated"]))
        outputs = 2.0 * (own + operator["tokens"] * k)
    else:
        b, channels, height, width_px, filters, kernel_h, kernel_w, stride, _, groups = operator.shape
        out_h, out_w = conv_output_size(operator)
        own, taps = channels / groups, kernel_h * kernel_w
        batch, m, n, k = groups, b * out_h * out_w, filters / groups, own * kernel_h * kernel_w
        outputs = batch * m * n
        weight, activation = filters * k * weight_width, b * channels * height * width_px * width
        # On tensor cores a library pads channels to 16 bytes, but the few channels of a first layer with stride 2 to 4 channels
        # (NVIDIA, Convolutional Layers User's Guide: checklist; Channels In And Out).
        granule = 4.0 if own <= 4.0 and stride == 2.0 else 16.0 / width
        padded = float(np.ceil(own / granule)) * granule * taps if tensor else k
    rate = gpu.matrix_flop_per_clock(operator.precision, operator.cuda_cores)
    if access < Gemm.ACCESS_BYTES or (operator.family == "conv" and tensor):
        rate *= WARP_RATE.get(gpu.architecture, 1.0)
    elif not tensor and form.rate != "fp64":
        rate *= LANE_RATE.get(gpu.compute_capability, 1.0)
    # Activations in 16 bit are read, and written in the format.
    converted = batch * m * k * (2.0 + width) if form.converts and operator.operator in ("linear", "moe") else 0.0
    return (batch, m, n, k, padded, weight, activation, outputs * out_width, width, weight_width, rate, tensor, converted, access)


def _products(tiles: dict[str, Array], columns: MatrixColumns, gpu: GpuSpec, coefficients: Array) -> Phases:
    """Phases of products with tiles, shape (n,); unknown ones (nan) become those of the candidate of least predicted time."""
    unknown = np.isnan([*tiles.values()])
    chosen = np.flatnonzero(unknown.any(axis=0))
    on_cuda, widest_split = columns.tensor == 0.0, coefficients[:, COLUMN["widest_split"]]
    parts, order = [], []
    for kind, places in members(zip(on_cuda[chosen].tolist(), widest_split[chosen].tolist(), strict=True)).items():
        for first in range(0, len(places), PRODUCTS_AT_ONCE):
            rows = chosen[places[first : first + PRODUCTS_AT_ONCE]]
            offered = tile_candidates(gpu, *kind)
            phases = candidate_phases(columns.select(rows), offered, gpu)
            best = kernel_seconds(phases, coefficients[rows, None, :], gpu.sm_clock_max_mhz * HZ_PER_MHZ).argmin(axis=1)
            parts.append(phases.take(best))
            order.append(rows)
            for name, tile in tiles.items():
                tile[rows] = np.where(np.isnan(tile[rows]), getattr(offered, name)[best], tile[rows])
    return join_phases(parts, order, len(on_cuda)) if unknown.all() else matrix_phases(columns, Candidates(**tiles), gpu)


def candidates_of(
    operators: Sequence[Operator], gpu: GpuSpec, known: KnownTiles | None = None, widest_split: float = 0.0
) -> tuple[Phases, BoolArray]:
    """Phases of every possible tile of kernels of one kind, shape (n, c, ·), and whether the tile is known, shape (n,).

    A known tile is its row's first candidate.  Kernels without tiles have one candidate.  The operators must be of
    one phase kind, and matrix products all with or all without tensor cores.
    """
    settled = np.zeros(len(operators), dtype=np.bool_)
    kind = phase_kind(operators[0])
    if kind != "matrix":
        return STREAM_KINDS[kind](operators, gpu).lifted(), ~settled
    columns = matrix_columns(operators, gpu)
    if known is not None:
        settled = np.isfinite(known.tile_m) & np.isfinite(known.tile_n)
    rows = np.flatnonzero(settled)
    own = {name: getattr(known, name)[rows] for name in KnownTiles.__slots__} if len(rows) else {}
    given = matrix_phases(columns.select(rows), Candidates(**own | {"split": np.nan_to_num(own["split"], nan=1.0)}), gpu) if own else None
    if given is not None and settled.all():
        return given.lifted(), settled
    phases = candidate_phases(columns, tile_candidates(gpu, bool(columns.tensor[0] == 0.0), widest_split), gpu)
    if given is not None:
        for name in Phases.__slots__:
            getattr(phases, name)[rows, 0] = getattr(given, name)
    return phases, settled


STREAM_KINDS: Final[dict[str, Callable[[Sequence[Operator], GpuSpec], Phases]]] = {
    "stream": stream_phases,
    "prefill": prefill_phases,
    "decode": decode_phases,
    "communication": communication_phases,
}
"""Equations of the families without a choice of tiles."""


def is_matrix(operators: Sequence[Operator]) -> BoolArray:
    """Whether operators are matrix products with tiles, shape (n,)."""
    return np.array([phase_kind(operator) == "matrix" for operator in operators], dtype=np.bool_)

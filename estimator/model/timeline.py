"""From phases to time: t = max(floor, offset + epsilon + ‖λ · overlapped‖_p · strided + Σ λ · serial), where a product on tensor cores,
without the kernels that quantise, takes at least λ · ceiling.

Floor and offset belong to the measuring host, and to kernels that are launched by themselves.
"""

from typing import Final, NamedTuple

import numpy as np

from estimator.model.coefficients import COLUMN
from estimator.model.phases import EVENTS, OVERLAPPED, OVERLAPPED_CLOCKED, OVERLAPPED_TERM, SERIAL, SERIAL_CLOCKED, Phases
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import TINY, Array, BoolArray

REFERENCE_TILE_AREA: Final = 16384.0
"""Smallest output tile (128 × 128) with which a block keeps the matrix units busy [element]."""

LAUNCH_OVERLAP_EXPONENT: Final = 8.0
"""Sharpness of the smooth maximum of GPU time and host launch time if no runs determine it; within 1 % of a hard maximum beyond 1.4 : 1."""

_OVERLAPPED_COLUMNS: Final = slice(0, len(OVERLAPPED))
_SERIAL_COLUMNS: Final = slice(len(OVERLAPPED), len(OVERLAPPED) + len(SERIAL))
"""Position of the phases in COEFFICIENTS: a slice gives a view, a list of columns would give a copy."""
_TERMS: Final = max(OVERLAPPED_TERM) + 1
TERM_MATRIX: Final = np.array([[float(term == t) for t in range(_TERMS)] for term in OVERLAPPED_TERM])
_CLOCKED_MATRIX: Final = TERM_MATRIX * np.array(OVERLAPPED_CLOCKED)[:, None]
_CONSTANT_MATRIX: Final = TERM_MATRIX - _CLOCKED_MATRIX
_MIXED: Final = OVERLAPPED_TERM[OVERLAPPED.index("wait")]
_PURE: Final = [t for t in range(_TERMS) if t != _MIXED]
_CLOCKED_SERIAL: Final = np.array(SERIAL_CLOCKED, dtype=np.float64)
_CONSTANT_SERIAL: Final = 1.0 - _CLOCKED_SERIAL
MATH: Final = OVERLAPPED.index("math")
DRAM_COLUMNS: Final = [OVERLAPPED.index(name) for name in ("dram", "dram_activations", "wait")]
EPILOGUE, PROLOGUE, QUANTISE = (SERIAL.index(name) for name in ("epilogue", "prologue", "quantise"))


def effective_math_clocks(phases: Phases, coefficients: Array, waves: Array | None = None) -> Array:
    """Math clocks with wave quantisation and small-tile loss, shape (...,).

    The result is a weighted geometric mean of quantised and evenly spread work (persistent kernels lie between the two).
    waves: as from `wave_share`, if already computed.
    """
    joined: Array = phases.overlapped[..., MATH] * (wave_share(phases, coefficients) if waves is None else waves)
    loss = coefficients[..., COLUMN["small_tile_exponent"]]
    if loss.any():
        area = np.where(phases.tile_area > 0, np.minimum(phases.tile_area, REFERENCE_TILE_AREA), REFERENCE_TILE_AREA)
        joined = joined * (area / REFERENCE_TILE_AREA) ** -loss
    return joined


def wave_share(phases: Phases, coefficients: Array) -> Array:
    """Effective waves over whole waves of filled SMs, shape (...,): (evenly spread work / quantised)^(1 − η)."""
    quantised, even = phases.overlapped[..., MATH], phases.even_math
    eta = np.minimum(coefficients[..., COLUMN["wave_exponent"]], 1.0)
    if (eta == 1.0).all():
        return np.ones(even.shape)
    return np.where(even > 0, (np.maximum(even, TINY) / np.maximum(quantised, TINY)) ** (1.0 - eta), 1.0)


def warm_ratio(phases: Phases, gpu: GpuSpec, warm: Array | BoolArray) -> Array:
    """Working set in L2 sizes of kernels whose operands stay there from earlier launches, infinite for cold ones, shape (...,).

    warm (...,): what the launches use in turn, in operands of one launch (with one set of buffers 1, or true); 0: all operands are cold.
    """
    return np.where(warm, warm * phases.events[..., EVENTS.index("dram")] / gpu.l2_bytes, np.inf)


def dram_share(coefficients: Array, ratio: Array) -> Array:
    """Remaining share of a kernel's DRAM traffic when its working set of `ratio` L2 sizes is warm: 1 / (1 + (knee / ratio)^q).

    Groups without a knee keep all their traffic.
    """
    with np.errstate(divide="ignore", over="ignore"):
        hidden = (coefficients[..., COLUMN["l2_knee"]] / np.maximum(ratio, TINY)) ** coefficients[..., COLUMN["l2_knee_exponent"]]
    return 1.0 / (1.0 + hidden)


def norm_parts(phases: Phases, coefficients: Array, ratio: Array | None = None) -> tuple[Array, Array, Array, Array, Array]:
    """λ-weighted parts of the timeline, for any clock; `ratio` as from `warm_ratio`, None if all operands are cold.

    Returns (term clocks, term seconds, term exponents p, serial clocks, serial seconds) with shapes (..., 6), (..., 6),
    (...,), (...,), (...,).
    """
    waves = wave_share(phases, coefficients)
    weighted = coefficients[..., _OVERLAPPED_COLUMNS] * phases.overlapped
    weighted[..., MATH] = coefficients[..., MATH] * effective_math_clocks(phases, coefficients, waves)
    if ratio is not None:
        weighted[..., DRAM_COLUMNS] *= dram_share(coefficients, ratio)[..., None]
    serial = coefficients[..., _SERIAL_COLUMNS] * phases.serial
    serial[..., PROLOGUE] *= waves
    if ratio is not None:
        serial[..., EPILOGUE] *= dram_share(coefficients, ratio)
    return (
        weighted @ _CLOCKED_MATRIX,
        weighted @ _CONSTANT_MATRIX,
        coefficients[..., COLUMN["exponent"]],
        serial @ _CLOCKED_SERIAL,
        serial @ _CONSTANT_SERIAL,
    )


def kernel_seconds(phases: Phases, coefficients: Array, sm_clock_hz: Array | float, ratio: Array | None = None) -> Array:
    """GPU time of kernels without the host's floor [s], broadcast over `sm_clock_hz`.

    phases, coefficients: (..., ·); sm_clock_hz and ratio (as from `warm_ratio`; None: all cold): broadcastable to (...,).
    """
    clocks, constant_s, exponent, serial_clocks, serial_s = norm_parts(phases, coefficients, ratio)
    clock = np.asarray(sm_clock_hz)
    joined = p_norm(clocks / clock[..., None] + constant_s, exponent) * coefficients[..., COLUMN["strided"]]
    free_s = coefficients[..., COLUMN["epsilon_s"]] + joined + serial_clocks / clock + serial_s
    return above_ceiling(free_s, *ceiling_parts(phases, coefficients))


CEILING_EXPONENT: Final = 8.0
"""Sharpness with which a product's time approaches its ceiling [1]; chosen among 4, 8 and 32 on published products of B200, L40S, H100."""


def ceiling_parts(phases: Phases, coefficients: Array) -> tuple[Array, Array]:
    """Ceiling of kernels, and the time of other kernels that theirs includes: quantising activations [s], shape (...,)."""
    return (
        coefficients[..., COLUMN["ceiling"]] * phases.ceiling,
        coefficients[..., COLUMN["quantise"]] * phases.serial[..., QUANTISE],
    )


def above_ceiling(free_s: Array, ceiling_s: Array, apart_s: Array) -> Array:
    """Time of kernels with their ceiling, by `ceiling_parts`, from that without [s]."""
    return smooth_maximum(free_s - apart_s, ceiling_s, CEILING_EXPONENT) + apart_s if ceiling_s.any() else free_s


def ideal_seconds(phases: Phases, gpu: GpuSpec, sm_clock_hz: Array | float) -> Array:
    """Time of one launch of each kernel at the published rates [s], shape (n,): the longer of math and DRAM.

    Traffic of L2 depends on tiles, and clusters of blocks share it: no bound.
    """
    return np.maximum(phases.ideal_math / sm_clock_hz, phases.events[:, EVENTS.index("dram")] / gpu.dram_bytes_per_s)


def p_norm(values: Array, exponent: Array) -> Array:
    """(Σ v^p)^(1/p) over the last axis, scaled by the largest value so that no power overflows or vanishes."""
    top = values.max(axis=-1)
    ratio = values / np.maximum(top, TINY)[..., None]
    total: Array = top * (ratio ** exponent[..., None] @ np.ones(values.shape[-1])) ** (1.0 / exponent)
    return total


def measured_seconds(gpu_s: Array, coefficients: Array) -> Array:
    """Time that a host measures for single launches: max(floor, offset + GPU time) [s], shape (...,)."""
    return np.maximum(coefficients[..., COLUMN["floor_s"]], coefficients[..., COLUMN["offset_s"]] + gpu_s)


REFERENCE_HZ: Final = 1e9
"""Clock at which the terms of a norm are raised to their power; any clock of a GPU works [Hz]."""


class SweepParts(NamedTuple):
    """Parts of the times of n kernels for all clocks, columns of shape (n,) in units of `top_s`, the largest term at REFERENCE_HZ.

    clocked, constant    sums of p-th powers of the terms that the SM clock drives, at REFERENCE_HZ, and of all others
    mixed_clocks, mixed  the term of two parts, at REFERENCE_HZ and constant
    scale_s              largest term, with the slowdown of strided copies [s]
    fixed_s              serial time that does not depend on the clock [s]; serial_clocks  serial time in SM clocks [SM clock]
    ceiling_s, apart_s   as from `ceiling_parts`
    """

    exponent: Array
    clocked: Array
    constant: Array
    mixed_clocks: Array
    mixed: Array
    scale_s: Array
    fixed_s: Array
    serial_clocks: Array
    ceiling_s: Array
    apart_s: Array


def sweep_parts(phases: Phases, coefficients: Array) -> SweepParts:
    """Parts of the times of kernels with cold operands, from (n, ·) phases and coefficients, for `sweep_seconds`."""
    clocks, constant_s, exponent, serial_clocks, serial_s = norm_parts(phases, coefficients)
    top = np.maximum((clocks / REFERENCE_HZ + constant_s).max(axis=-1), TINY)
    ceiling_s, apart_s = ceiling_parts(phases, coefficients)
    parts, constant, power = clocks / (REFERENCE_HZ * top[:, None]), constant_s / top[:, None], exponent[:, None]
    return SweepParts(
        exponent=exponent,
        clocked=(parts[:, _PURE] ** power).sum(axis=-1),
        constant=(constant[:, _PURE] ** power).sum(axis=-1),
        mixed_clocks=parts[:, _MIXED],
        mixed=constant[:, _MIXED],
        scale_s=top * coefficients[:, COLUMN["strided"]],
        fixed_s=coefficients[:, COLUMN["epsilon_s"]] + serial_s,
        serial_clocks=serial_clocks,
        ceiling_s=ceiling_s,
        apart_s=apart_s,
    )


def sweep_seconds(parts: SweepParts, sm_clock_hz: Array) -> Array:
    """GPU time of kernels at several clocks [s], shape (n, c), from parts of n kernels and clocks (c,), or (n, c) for separate clocks.

    The terms of a kernel are raised to its p once; each clock then costs one power for its terms, and one for the term of two parts.
    """
    exponent, ratio = parts.exponent[:, None], REFERENCE_HZ / sm_clock_hz
    total: Array = parts.clocked[:, None] * np.exp(exponent * np.log(ratio)) + parts.constant[:, None]
    total += (parts.mixed_clocks[:, None] * ratio + parts.mixed[:, None]) ** exponent
    total **= 1.0 / exponent
    total *= parts.scale_s[:, None]
    total += parts.fixed_s[:, None] + parts.serial_clocks[:, None] / sm_clock_hz
    return above_ceiling(total, parts.ceiling_s[:, None], parts.apart_s[:, None])


def smooth_maximum(first: Array, second: Array, p: float) -> Array:
    """(a^p + b^p)^(1/p), of sharpness p.

    So a stream of kernels joins its GPU time and the host's launch time: it drains and refills as a whole, and the two totals compete, not
    each kernel with its own launch.
    """
    top = np.maximum(np.maximum(first, second), TINY)
    return top * ((first / top) ** p + (second / top) ** p) ** (1.0 / p)


def launch_bound_share(gpu_s: Array, host_s: Array, p: float) -> Array:
    """Share of the host's launches in the latency, 0 to 1: L^p / (G^p + L^p)."""
    top = np.maximum(np.maximum(gpu_s, host_s), TINY)
    host = (host_s / top) ** p
    return host / (host + (gpu_s / top) ** p)

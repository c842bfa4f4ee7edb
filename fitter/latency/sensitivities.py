"""Sensitivities of a kernel's predicted time to each coefficient: ∂ ln t / ∂ ln θ of the equations of `estimator.model.timeline`.

The norm of the phases is differentiated analytically, because a fit of thousands of rows evaluates it tens of times; a test compares
all with differences of `kernel_seconds`.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from estimator.model.coefficients import COEFFICIENTS, COLUMN, column_index
from estimator.model.phases import OVERLAPPED, OVERLAPPED_CLOCKED, OVERLAPPED_TERM, SERIAL, SERIAL_CLOCKED, Phases
from estimator.model.timeline import (
    CEILING_EXPONENT,
    DRAM_COLUMNS,
    EPILOGUE,
    MATH,
    PROLOGUE,
    TERM_MATRIX,
    above_ceiling,
    ceiling_parts,
    dram_share,
    effective_math_clocks,
    wave_share,
)
from estimator.vocabulary.quantities import TINY, Array

_OVERLAPPED_COLUMNS: Final = column_index(OVERLAPPED)
_SERIAL_COLUMNS: Final = column_index(SERIAL)


def log_measured(phases: Phases, coefficients: Array, sm_clock_hz: Array, ratio: Array) -> tuple[Array, Array]:
    """ln of the time that a host reads for kernels measured alone, shape (n,), and its derivatives by ln θ, shape (n, len(COEFFICIENTS)).

    phases (n, ·); coefficients (len(COEFFICIENTS),) of the one group of all rows; sm_clock_hz, ratio (n,), as in
    `kernel_seconds`.  A coefficient of 0 has no logarithm; its column is 0.
    """
    c = coefficients
    clock = sm_clock_hz[:, None]
    waves = wave_share(phases, c)
    math_clocks = effective_math_clocks(phases, c, waves)
    share = dram_share(c, ratio)
    weighted = c[_OVERLAPPED_COLUMNS] * phases.overlapped
    weighted[:, MATH] = c[MATH] * math_clocks
    weighted[:, DRAM_COLUMNS] *= share[:, None]
    seconds = np.where(OVERLAPPED_CLOCKED, weighted / clock, weighted)
    terms = seconds @ TERM_MATRIX
    serial = np.where(SERIAL_CLOCKED, phases.serial / clock, phases.serial) * c[_SERIAL_COLUMNS]
    serial[:, EPILOGUE] *= share
    serial[:, PROLOGUE] *= waves

    exponent = c[COLUMN["exponent"]]
    top = np.maximum(terms.max(axis=1), TINY)
    relative = terms / top[:, None]
    powers = relative**exponent
    total = np.maximum(powers.sum(axis=1), TINY)
    joined = top * total ** (1.0 / exponent) * c[COLUMN["strided"]]
    gpu_s = c[COLUMN["epsilon_s"]] + joined + serial.sum(axis=1)

    slope = np.zeros((len(gpu_s), len(COEFFICIENTS)))
    term_slope = joined[:, None] * powers / total[:, None]
    column_slope = term_slope[:, OVERLAPPED_TERM] * seconds / np.maximum(terms, TINY)[:, OVERLAPPED_TERM]
    slope[:, _OVERLAPPED_COLUMNS] = column_slope
    slope[:, _SERIAL_COLUMNS] = serial
    slope[:, COLUMN["epsilon_s"]] = c[COLUMN["epsilon_s"]]
    slope[:, COLUMN["strided"]] = joined
    log_relative = np.log(np.maximum(relative, TINY))
    slope[:, COLUMN["exponent"]] = joined * ((powers * log_relative).sum(axis=1) / total - np.log(total) / exponent)
    clocks_of = partial(effective_math_clocks, phases)
    for name in ("wave_exponent", "small_tile_exponent"):
        slope[:, COLUMN[name]] += column_slope[:, MATH] * _log_slope(clocks_of, c, name, math_clocks)
    slope[:, COLUMN["wave_exponent"]] += serial[:, PROLOGUE] * _log_slope(partial(wave_share, phases), c, "wave_exponent", waves)
    memory = column_slope[:, DRAM_COLUMNS].sum(axis=1) + serial[:, EPILOGUE]
    for name in ("l2_knee", "l2_knee_exponent"):
        slope[:, COLUMN[name]] = memory * _log_slope(lambda moved: dram_share(moved, ratio), c, name, share)

    ceiling_s, apart_s = ceiling_parts(phases, c)
    own_s = gpu_s - apart_s
    power = (ceiling_s / own_s) ** CEILING_EXPONENT
    gpu_s, held = above_ceiling(gpu_s, ceiling_s, apart_s), power / (1.0 + power)
    slope *= ((gpu_s - apart_s) / own_s * (1.0 - held))[:, None]
    slope[:, COLUMN["quantise"]] = apart_s
    slope[:, COLUMN["ceiling"]] = (gpu_s - apart_s) * held

    measured = c[COLUMN["offset_s"]] + gpu_s
    slope[:, COLUMN["offset_s"]] = c[COLUMN["offset_s"]]
    slope /= measured[:, None]
    hidden = measured < c[COLUMN["floor_s"]]
    slope[hidden] = 0.0
    slope[hidden, COLUMN["floor_s"]] = 1.0
    return np.log(np.maximum(measured, c[COLUMN["floor_s"]])), slope


def _log_slope(part: Callable[[Array], Array], c: Array, name: str, value: Array) -> Array:
    """∂ ln(part) / ∂ ln θ of one coefficient by a difference, shape (n,): these parts take little time and have long derivatives.

    value: the part at `c`.  0 for a coefficient of 0, and beyond the largest wave exponent.
    """
    if not c[COLUMN[name]] or (name == "wave_exponent" and c[COLUMN[name]] >= 1.0):
        return np.zeros_like(value)
    moved = c.copy()
    moved[COLUMN[name]] *= 1.0 + STEP
    return np.log(np.maximum(part(moved), TINY) / np.maximum(value, TINY)) / STEP


STEP: Final = 1e-7
"""Relative step of differences: rounding and curvature have similar errors, about 1e-8."""

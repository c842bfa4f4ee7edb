"""Sensitivities of a kernel's predicted time to each coefficient: ∂ ln t / ∂ ln θ of the equations of `estimator.model.timeline`.

They are analytic, because a fit of thousands of rows evaluates them tens of times; a test compares them with differences of
`kernel_seconds`.
"""

from typing import Final

import numpy as np

from estimator.model.coefficients import COEFFICIENTS, COLUMN, column_index
from estimator.model.phases import OVERLAPPED, OVERLAPPED_CLOCKED, OVERLAPPED_TERM, SERIAL, SERIAL_CLOCKED, Phases
from estimator.model.timeline import REFERENCE_TILE_AREA, dram_share, effective_math_clocks, wave_share
from estimator.vocabulary.quantities import Array

_OVERLAPPED_COLUMNS: Final = column_index(OVERLAPPED)
_SERIAL_COLUMNS: Final = column_index(SERIAL)
_TERM: Final = np.array(OVERLAPPED_TERM)
_TERM_MATRIX: Final = (_TERM[:, None] == np.arange(_TERM.max() + 1)).astype(np.float64)
_CLOCKED: Final = np.array(OVERLAPPED_CLOCKED)
_SERIAL_CLOCKED: Final = np.array(SERIAL_CLOCKED)
_MATH: Final = OVERLAPPED.index("math")
_DRAM_COLUMNS: Final = [OVERLAPPED.index(name) for name in ("dram", "dram_activations", "wait")]
_EPILOGUE: Final = SERIAL.index("epilogue")
_PROLOGUE: Final = SERIAL.index("prologue")
_TINY: Final = 1e-300


def log_measured(phases: Phases, coefficients: Array, sm_clock_hz: Array, ratio: Array) -> tuple[Array, Array]:
    """ln of the time that a host reads for kernels measured alone, shape (n,), and its derivatives by ln θ, shape (n, len(COEFFICIENTS)).

    phases (n, ·); coefficients (len(COEFFICIENTS),) of the one group of all rows; sm_clock_hz, ratio (n,), as in
    `kernel_seconds`.  A coefficient of 0 has no logarithm; its column is 0.
    """
    c = coefficients
    clock = sm_clock_hz[:, None]
    share = dram_share(c, ratio)
    weighted = c[_OVERLAPPED_COLUMNS] * phases.overlapped
    weighted[:, _MATH] = c[_MATH] * effective_math_clocks(phases, c)
    weighted[:, _DRAM_COLUMNS] *= share[:, None]
    seconds = np.where(_CLOCKED, weighted / clock, weighted)
    terms = seconds @ _TERM_MATRIX
    serial = np.where(_SERIAL_CLOCKED, phases.serial / clock, phases.serial) * c[_SERIAL_COLUMNS]
    serial[:, _EPILOGUE] *= share
    serial[:, _PROLOGUE] *= wave_share(phases, c)

    exponent = c[COLUMN["exponent"]]
    top = np.maximum(terms.max(axis=1), _TINY)
    relative = terms / top[:, None]
    powers = relative**exponent
    total = np.maximum(powers.sum(axis=1), _TINY)
    joined = top * total ** (1.0 / exponent) * c[COLUMN["strided"]]
    gpu_s = c[COLUMN["epsilon_s"]] + joined + serial.sum(axis=1)

    slope = np.zeros((len(gpu_s), len(COEFFICIENTS)))
    term_slope = joined[:, None] * powers / total[:, None]
    column_slope = term_slope[:, _TERM] * seconds / np.maximum(terms, _TINY)[:, _TERM]
    slope[:, _OVERLAPPED_COLUMNS] = column_slope
    slope[:, _SERIAL_COLUMNS] = serial
    slope[:, COLUMN["epsilon_s"]] = c[COLUMN["epsilon_s"]]
    slope[:, COLUMN["strided"]] = joined
    log_relative = np.log(np.maximum(relative, _TINY))
    slope[:, COLUMN["exponent"]] = joined * ((powers * log_relative).sum(axis=1) / total - np.log(total) / exponent)
    _add_math_slopes(slope, column_slope[:, _MATH], serial[:, _PROLOGUE], phases, c)
    _add_knee_slopes(slope, column_slope[:, _DRAM_COLUMNS].sum(axis=1) + serial[:, _EPILOGUE], c, ratio, share)

    measured = c[COLUMN["offset_s"]] + gpu_s
    slope[:, COLUMN["offset_s"]] = c[COLUMN["offset_s"]]
    slope /= measured[:, None]
    hidden = measured < c[COLUMN["floor_s"]]
    slope[hidden] = 0.0
    slope[hidden, COLUMN["floor_s"]] = 1.0
    return np.log(np.maximum(measured, c[COLUMN["floor_s"]])), slope


def _add_math_slopes(slope: Array, math_slope: Array, prologue: Array, phases: Phases, c: Array) -> None:
    """Add slopes of coefficients that change the math clocks: waves (with the prologue), small tiles."""
    slope[:, COLUMN["math"]] = math_slope
    even, quantised = phases.even_math, phases.overlapped[:, _MATH]
    eta = c[COLUMN["wave_exponent"]]
    if eta < 1.0:
        mixed = (even > 0) & (quantised > 0)
        slope[mixed, COLUMN["wave_exponent"]] = (math_slope + prologue)[mixed] * eta * np.log(quantised[mixed] / even[mixed])
    area = np.where(phases.tile_area > 0, np.minimum(phases.tile_area, REFERENCE_TILE_AREA), REFERENCE_TILE_AREA)
    slope[:, COLUMN["small_tile_exponent"]] = -math_slope * c[COLUMN["small_tile_exponent"]] * np.log(area / REFERENCE_TILE_AREA)


def _add_knee_slopes(slope: Array, dram_slope: Array, c: Array, ratio: Array, share: Array) -> None:
    """Add slopes of the knee of warm launches: share = 1 / (1 + (knee / ratio)^q)."""
    knee, sharpness = c[COLUMN["l2_knee"]], c[COLUMN["l2_knee_exponent"]]
    warm = np.isfinite(ratio) & (ratio > 0)
    if not knee or not warm.any():
        return
    change = -(1.0 - share[warm]) * sharpness * dram_slope[warm]
    slope[warm, COLUMN["l2_knee"]] = change
    slope[warm, COLUMN["l2_knee_exponent"]] = change * np.log(knee / ratio[warm])

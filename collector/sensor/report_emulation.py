"""What a characterised sensor would have read, and how the misfit depends on the window: for the report."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.correction.response import SensorResponse, shape_columns
from collector.sensor.load import BIN_S, LoadShapes, LoadStamps, load_shapes
from estimator.quantities import Array

WIDTHS: Final = 48
WIDTH_SPAN: Final = (0.05, 12.0)
"""Windows that are tried, in update periods."""
LEAST_READINGS: Final = 8
KEEP_QUANTILE: Final = 0.98
"""The largest residuals (updates that were skipped or frozen) are left out of the misfit."""
EDGE_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulated:
    """Updates within the record: times, readings and what the sensor would have read, shape (n,)."""

    time_s: Array
    value: Array
    predicted: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What the board drew, as shapes on a grid, and the span for which it is known [s]."""

    shapes: LoadShapes
    start_s: float
    end_s: float


def load_reference(load: LoadStamps, until_s: float) -> Reference:
    """The shapes of a load."""
    end = min(until_s, float(load.end_s[-1]) + EDGE_S, load.known_until_s)
    return Reference(shapes=load_shapes(load, until_s), start_s=float(load.start_s[0]) - EDGE_S, end_s=end)


def meter_reference(time_s: Array, power_w: Array) -> Reference:
    """A meter's samples on the grid."""
    edges = np.arange(float(time_s[0]), float(time_s[-1]), BIN_S)
    power: Array = np.interp(edges[:-1] + 0.5 * BIN_S, time_s, power_w)
    return Reference(shapes=LoadShapes(origin_s=float(time_s[0]), shapes=power[None, :]), start_s=float(time_s[0]), end_s=float(edges[-1]))


def emulated(time_s: Array, value: Array, reference: Reference, response: SensorResponse) -> Emulated | None:
    """The reading that a response would have given, amplitudes by least squares; None for too few updates in the record."""
    inside = (time_s - response.reach_s > reference.start_s) & (time_s - response.delay_s < reference.end_s)
    if np.count_nonzero(inside) < LEAST_READINGS:
        return None
    time_s, value = time_s[inside], value[inside]
    design = np.column_stack([np.ones(len(time_s)), shape_columns(response, reference.shapes, time_s)])
    scale = np.maximum(np.abs(design).max(axis=0), 1e-12)
    solution = np.linalg.lstsq(design / scale, value, rcond=None)[0]
    return Emulated(time_s=time_s, value=value, predicted=design / scale @ solution)


def loss_over_window(time_s: Array, value: Array, reference: Reference, kernel: str, lag_s: float, period_s: float) -> tuple[Array, Array]:
    """Windows [s] and the rms misfit with each [W], shape (m,); nan where too few updates lie in the record.

    The mean age of the power in a reading, `lag_s`, stays the same for all windows: that is what a delay is free to do.
    """
    widths = period_s * np.geomspace(*WIDTH_SPAN, WIDTHS)
    loss = np.full(WIDTHS, np.nan)
    for i, width in enumerate(widths.tolist()):
        found = emulated(time_s, value, reference, SensorResponse(kernel=kernel, width_s=width, delay_s=lag_s - 0.5 * width))
        if found is not None:
            square = (found.value - found.predicted) ** 2
            kept = square[square <= np.quantile(square, KEEP_QUANTILE)]
            loss[i] = float(np.sqrt(kept.mean()))
    return widths, loss

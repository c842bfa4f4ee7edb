"""The linear model of a load that repeats: what each part of its power makes of a reading, and of an energy.

Parts: rest, the load at once, its slow rise, its creep, a drift through the run, what starts after and ends before a pause
depart from that by, what lingers in pauses, and a profile within an execution that adds up to nothing.
Columns are what the sensor shows of each, rows of questions what an answer takes of each.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from collector.correction.response import SensorResponse, interval_shares, shape_columns, time_in_bins
from collector.sensor.load import BIN_S, LAUNCH_RISE_S, LatePart, LoadShapes, LoadStamps, followed_late, load_shapes
from estimator.quantities import Array, BoolArray

LEVELS: Final = 5
EDGES: Final = 2
"""Parts before the profile: levels, then what the power at starts after a pause and at ends before one departs from the rise."""
EDGE_S: Final = 1e-3
"""Length of what departs at an edge: far below any averaging window, so that only its energy counts."""
PAUSES: Final = 1
LINGER_S: Final = 0.5
"""Then the part that lingers in a pause, up to so long after an execution: 5 to 20 % of the step does for 0.5 to 2 s (published
recordings).  A mean over a second sees executions and their pauses as one: how they share it, this part leaves open."""
ENERGIES: Final = 2
"""The first questions are the energies: of an execution, and in total."""
LAUNCH_LAG_S: Final = 3e-4
"""From the host's stamp to the first block of a launch (0.2 to 0.45 ms in published recordings)."""
PAUSE_S: Final = 1e-3
"""Executions that follow closer than this belong together: what lies between them is part of their profile."""
PROFILE_SMOOTH_SHARE: Final = 0.15
"""Correlation length of the profile, as a share of an execution."""


def running(load: LoadStamps) -> LoadStamps:
    """Executions as the board runs them: after a pause a launch takes its time, while its end is seen at once."""
    lag = np.where(_after_pause(load), np.minimum(LAUNCH_LAG_S, 0.5 * (load.end_s - load.start_s)), 0.0)
    return replace(load, start_s=load.start_s + lag)


def _after_pause(load: LoadStamps) -> BoolArray:
    """Which executions follow a pause, shape (j,); the first does."""
    return np.append(True, load.start_s[1:] - load.end_s[:-1] > PAUSE_S)


def profile_modes(bins: int) -> Array:
    """Patterns over an execution that add up to nothing, shape (bins, bins − 1): with independent coefficients of
    variance 1 they make a profile of variance 1, whose neighbours are correlated (exponentially, around the ring).
    """
    if bins < 2:
        return np.zeros((bins, 0))
    distance = np.abs(np.arange(bins)[:, None] - np.arange(bins)[None, :])
    distance = np.minimum(distance, bins - distance) / bins
    covariance = np.exp(-distance / PROFILE_SMOOTH_SHARE)
    centre = np.eye(bins) - 1.0 / bins
    values, vectors = np.linalg.eigh(centre @ covariance @ centre)
    modes: Array = vectors[:, 1:] * np.sqrt(np.maximum(values[1:], 0.0))
    return modes


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBasis:
    """The load as stamped and as the board runs it, its shapes on a grid, and the patterns of a profile."""

    load: LoadStamps
    active: LoadStamps
    shapes: LoadShapes
    modes: Array


def load_basis(load: LoadStamps, bins: int, until_s: float, late: LatePart | None) -> LoadBasis:
    """What the columns of a load are made of; `late` is what of the board follows late."""
    active = running(load)
    return LoadBasis(load=load, active=active, shapes=_shapes(active, until_s, late), modes=profile_modes(bins))


def _shapes(active: LoadStamps, until_s: float, late: LatePart | None) -> LoadShapes:
    shapes = load_shapes(active, until_s)
    return shapes if late is None else followed_late(shapes, late)


def model_columns(time_s: Array, response: SensorResponse, load: LoadStamps, shapes: LoadShapes, modes: Array) -> Array:
    """Columns of the readings: ones, load at once, slow rise, creep, drift, both edges, pauses, profile; shape (n, 8 + modes)."""
    level = shape_columns(response, shapes, time_s)
    drift = level[:, 0] * _drift(time_s - response.lag_s, load)
    parts = interval_shares(response, load.start_s + LAUNCH_RISE_S, load.end_s + LAUNCH_RISE_S, len(modes), time_s) @ modes
    edges = [interval_shares(response, start, end, 1, time_s) for start, end in _stretches(load)]
    return np.column_stack([np.ones(len(time_s)), level, drift, *edges, parts])


def _edges(load: LoadStamps) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Stretches from starts after a pause, and from ends before one: their own starts and ends (k,)."""
    after = _after_pause(load)
    before = np.append(after[1:], True)
    start, end = load.start_s[after], load.end_s[before]
    return (start, np.minimum(start + EDGE_S, load.end_s[after])), (end, np.minimum(end + EDGE_S, np.append(start[1:], np.inf)))


def _pauses(load: LoadStamps) -> tuple[Array, Array]:
    """The first LINGER_S of pauses between executions: their starts and ends (k,); one of no length where there is none."""
    pause = _after_pause(load)[1:]
    start, until = load.end_s[:-1][pause], load.start_s[1:][pause]
    if not len(start):
        return load.end_s[-1:], load.end_s[-1:]
    return start, np.minimum(until, start + LINGER_S)


def _stretches(load: LoadStamps) -> tuple[tuple[Array, Array], ...]:
    """Both kinds of edges, and pauses."""
    return (*_edges(load), _pauses(load))


def _in_stretches(load: LoadStamps, from_s: Array, to_s: Array) -> Array:
    """Time spent at edges and in pauses between two times [s], shape (3, n)."""
    spent = [time_in_bins(start, end, 1, to_s) - time_in_bins(start, end, 1, from_s) for start, end in _stretches(load)]
    return np.array(spent)[:, :, 0]


def _drift(time_s: Array, load: LoadStamps) -> Array:
    """−0.5 at the load's first start to 0.5 at its last end."""
    span = max(float(load.end_s[-1] - load.start_s[0]), BIN_S)
    result: Array = (time_s - load.start_s[0]) / span - 0.5
    return result


def question_rows(load: LoadStamps, active: LoadStamps, kept: BoolArray, shapes: LoadShapes, modes: Array) -> Array:
    """Coefficients of energy per execution, total energy and power by place, shape (2 + bins, 8 + modes).

    `load` are the stamps between which energy is asked for, `active` the executions as the board runs them.
    """
    start, end = load.start_s[kept], load.end_s[kept]
    edge = shapes.origin_s + BIN_S * np.arange(shapes.shapes.shape[1] + 1)
    sums = np.concatenate([np.zeros((3, 1)), np.cumsum(shapes.shapes, axis=1)], axis=1) * BIN_S
    bins = len(modes)

    def integral(from_s: Array, to_s: Array) -> Array:
        level = np.array([np.interp(to_s, edge, row) - np.interp(from_s, edge, row) for row in sums])
        drift = level[0] * _drift(0.5 * (from_s + to_s), load)
        return np.concatenate([[to_s - from_s], level, [drift], _in_stretches(active, from_s, to_s)])

    spent = time_in_bins(active.start_s + LAUNCH_RISE_S, active.end_s + LAUNCH_RISE_S, bins, np.concatenate([start, end]))
    by_bin = (spent[len(start) :] - spent[: len(start)]).mean(axis=0)
    energy = np.concatenate([integral(start, end).mean(axis=1), by_bin @ modes])
    whole = integral(start[:1], end[-1:]).sum(axis=1)
    total = np.concatenate([whole, np.zeros(modes.shape[1])])
    places = np.linspace(0.0, 1.0, bins + 1)
    rows = []
    for m in range(bins):
        from_s = start + LAUNCH_RISE_S + (end - start) * places[m]
        to_s = start + LAUNCH_RISE_S + (end - start) * places[m + 1]
        power = integral(from_s, to_s)
        rows.append(np.concatenate([power.sum(axis=1) / power[0].sum(), modes[m]]))
    return np.array([energy, total, *rows])


def trace_rows(edge_s: Array, basis: LoadBasis, late: LatePart | None) -> Array:
    """Coefficients of the mean power between edges (t + 1,), shape (t, 8 + modes)."""
    load, modes = basis.active, basis.modes
    shapes = _shapes(load, float(edge_s[-1]), late)
    grid = shapes.origin_s + BIN_S * np.arange(shapes.shapes.shape[1] + 1)
    length = np.diff(edge_s)
    middle = 0.5 * (edge_s[1:] + edge_s[:-1])
    sums = np.concatenate([np.zeros((3, 1)), np.cumsum(shapes.shapes, axis=1)], axis=1) * BIN_S
    level = np.array([np.diff(np.interp(edge_s, grid, row)) / length for row in sums])
    spent = time_in_bins(load.start_s + LAUNCH_RISE_S, load.end_s + LAUNCH_RISE_S, len(modes), edge_s)
    profile = np.diff(spent, axis=0) / length[:, None] @ modes
    at_stretches = _in_stretches(load, edge_s[:-1], edge_s[1:]) / length
    return np.column_stack([np.ones(len(length)), level.T, level[0] * _drift(middle, load), at_stretches.T, profile])

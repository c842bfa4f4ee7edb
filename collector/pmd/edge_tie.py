"""The rate of the meter's clock from a load that was switched on and off at known times.

A recording without host times still shows the load's edges in its power.  Each edge is found where the power passes the
middle between before and after; a robust line through the stamps over the ticks gives the rate.  Rising and falling
edges may lag differently (blocks of a kernel finish one by one), so each kind has its own offset.
"""

from pathlib import Path
from typing import Final

import numpy as np

from collector.errors import DatasetError
from collector.pmd.clock_tie import NS_PER_S, RATE_SPREAD, ClockTie, nominal_tie, straight_tie
from collector.pmd.packets import NOMINAL_TICKS_PER_MS
from collector.pmd.recording import sample_blocks, scan_recording
from collector.pmd.recording_files import Recording
from collector.pmd.robust_fit import biweight_fit
from collector.pmd.samples import MODEL_RAILS
from collector.recordings.loads import read_load
from collector.sensing.figures import time_text
from estimator.quantities import Array, BoolArray

HALF_WINDOW_S: Final = 8e-3
"""Distance at which an edge is looked for: twice what a rate that is off by 0.1 % adds up to in 4 s."""
CLEARANCE: Final = 0.4
"""Share of the time to the next edge that a window may reach."""
SMALLEST_STEP_W: Final = 15.0
"""Smaller steps drown in the meter's noise of 1.5 to 4 W a sample."""
FEWEST_EDGES: Final = 6
SHORTEST_SPAN_S: Final = 1.0
EDGE_SCATTER_S: Final = 1e-4
SMALLEST_SCATTER_S: Final = 1e-6


def tie_from_load(recording: Recording, load: Path, start_s: float) -> ClockTie:
    """The clock of a recording whose first packet is at `start_s` in the time base of the load's stamps.

    `load` is a file that `read_load` takes.  Raises SensorError where it cannot be used, DatasetError where too few of its
    edges are found.
    """
    stamps = read_load(load)
    edge_s = np.column_stack([stamps.start_s, stamps.end_s]).ravel()
    rising = np.tile([True, False], len(stamps.start_s))
    known = np.isfinite(edge_s)
    edge_s, rising = edge_s[known], rising[known]
    scanned = scan_recording(recording, nominal_tie())
    blocks = list(sample_blocks(scanned, np.zeros(len(MODEL_RAILS[recording.model]))))
    time_s = np.concatenate([block.host_ns for block in blocks]) / NS_PER_S
    power_w = np.concatenate([block.rail_power_w().sum(axis=1) for block in blocks])
    found_s = edge_times(time_s, power_w, edge_s - start_s, rising)
    there = np.isfinite(found_s)
    span_s = float(np.ptp(found_s[there])) if there.any() else 0.0
    if there.sum() < FEWEST_EDGES or span_s < SHORTEST_SPAN_S:
        count = int(there.sum())
        found = f"{count} of the {len(edge_s)} edges in {load} show in the power, {time_text(span_s)} apart at most"
        if not count:
            found = f"none of the {len(edge_s)} edges in {load} shows in the power"
        raise DatasetError(f"{recording.path}: {found}; a rate needs {FEWEST_EDGES} in {SHORTEST_SPAN_S:g} s, is --start right?")
    lag_s = (edge_s - start_s)[there] - found_s[there]
    centred = found_s[there] - found_s[there].mean()
    design = np.stack([centred, rising[there], ~rising[there]], axis=1).astype(np.float64)
    weak = np.diag([RATE_SPREAD**-2.0, SHORTEST_SPAN_S**-2.0, SHORTEST_SPAN_S**-2.0])
    coefficients, weight, scatter = biweight_fit(design, lag_s, weak, EDGE_SCATTER_S, SMALLEST_SCATTER_S)
    residual_s = float(np.sqrt(np.average((lag_s - design @ coefficients) ** 2, weights=weight)))
    slope_std = scatter / float(np.sqrt(np.sum(weight * centred**2)))
    rate = NOMINAL_TICKS_PER_MS / (1.0 + float(coefficients[0]))
    std = NOMINAL_TICKS_PER_MS * slope_std
    return straight_tie("load", rate, std, residual_s=residual_s, blocks=int(there.sum()), offered=len(edge_s))


def edge_times(time_s: Array, power_w: Array, edge_s: Array, rising: BoolArray) -> Array:
    """When power passes the middle of each edge, on the clock of `time_s`, shape (edges,); nan where it shows none."""
    found = np.full(len(edge_s), np.nan)
    lag = 0.0
    apart = np.diff(edge_s, prepend=-np.inf, append=np.inf)
    for number, stamp in enumerate(edge_s):
        half = min(HALF_WINDOW_S, CLEARANCE * float(min(apart[number], apart[number + 1])))
        first, last = np.searchsorted(time_s, [stamp + lag - half, stamp + lag + half])
        part, sign = power_w[first:last], 1.0 if rising[number] else -1.0
        quarter = len(part) // 4
        if quarter < 2:
            continue
        before, after = float(np.median(part[:quarter])), float(np.median(part[-quarter:]))
        if sign * (after - before) < SMALLEST_STEP_W:
            continue
        above = sign * (part - 0.5 * (before + after)) > 0.0
        crossed = int(np.argmax(above[1:] & ~above[:-1]))
        low, high = part[crossed], part[crossed + 1]
        share = (0.5 * (before + after) - low) / (high - low)
        found[number] = time_s[first + crossed] + share * (time_s[first + crossed + 1] - time_s[first + crossed])
        lag = float(found[number]) - float(stamp)
    return found

"""Power of measured kernels and workloads taken apart by module, beside what was measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from estimator.board import open_board, power_model
from estimator.bundles.content import Bundle
from estimator.engine import predict
from estimator.kernel_prediction import alone_parts_w, bundle_times
from estimator.kernels.registry import KnownTiles
from estimator.power_residuals import log_power_corrections
from estimator.quantities import IntArray
from fitter.report.rows import HeldRows
from fitter.rows.columns import KernelRows, Selection, WorkloadRows

MOST_BARS: Final = 12
"""Kinds of kernels, and workloads, whose power is taken apart."""

CORRECTION: Final = "neighbours"
"""What kernels measured near by add to the equation or take from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Power of one kernel or workload: `parts_w` by PARTS, and CORRECTION; with it they add up to the prediction [W].

    measured_w   nan where power was not measured
    """

    name: str
    parts_w: Mapping[str, float]
    measured_w: float


def breakdowns(bundle: Bundle, selection: Selection, held: Mapping[str, HeldRows]) -> tuple[Breakdown, ...]:
    """For the most frequent kinds of kernels the row of median measured power, and the longest workloads; none without power."""
    if power_model(bundle) is None:
        return ()
    found: list[Breakdown] = []
    rows, kernels = selection.kernels, held.get("kernels")
    if rows is not None and kernels is not None and len(rows) == len(kernels.prediction):
        found += _of_kernels(bundle, rows.select(_typical(kernels)), [kernels.names[i] for i in kernels.name_index[_typical(kernels)]])
    if selection.workloads is not None:
        found += _of_workloads(bundle, selection.workloads)
    return tuple(found)


def _typical(held: HeldRows) -> IntArray:
    """The row of median measured power of each of the kinds with most of them, the most frequent first, shape (k,)."""
    known = np.flatnonzero(np.isfinite(held.prediction.measured_w) & np.isfinite(held.prediction.predicted_w))
    chosen: list[int] = []
    counts = np.bincount(held.name_index[known], minlength=len(held.names))
    for kind in np.argsort(-counts, kind="stable")[:MOST_BARS].tolist():
        own = known[held.name_index[known] == kind]
        if len(own):
            order = np.argsort(held.prediction.measured_w[own], kind="stable")
            chosen.append(int(own[order[len(own) // 2]]))
    return np.array(chosen, dtype=np.int64)


def _of_kernels(bundle: Bundle, rows: KernelRows, names: list[str]) -> list[Breakdown]:
    """Kernels of the bundle's own GPU, launched over and over by themselves: their parts, one by one."""
    gpu, operators = bundle.gpu, rows.row_operators()
    if not len(rows) or set(rows.gpus) != {gpu.name}:
        return []
    clock, known = rows.clock_mhz(gpu), KnownTiles(tile_m=rows.tile_m, tile_n=rows.tile_n, split=rows.split_k)
    times = bundle_times(operators, bundle, gpu, sm_clock_mhz=clock, warm=rows.l2_warm, known=known)
    parts = alone_parts_w(times, bundle, gpu, clock, rows.l2_warm, rows.temperature_c)
    total = np.minimum(sum(parts.values()), gpu.power_limit_w)
    correction, _ = log_power_corrections(operators, times.groups, bundle.residuals, total)
    parts[CORRECTION] = total * np.expm1(correction)
    return [
        Breakdown(name=names[i], parts_w={part: float(values[i]) for part, values in parts.items()}, measured_w=float(rows.power_w[i]))
        for i in range(len(rows))
    ]


def _of_workloads(bundle: Bundle, rows: WorkloadRows) -> list[Breakdown]:
    """The workloads that take longest, each at its highest measured clock."""
    chosen: dict[int, int] = {}
    clock = rows.asked_clock_mhz(bundle.gpu)
    for i in np.argsort(-rows.latency_s, kind="stable").tolist():
        number = int(rows.workload_index[i])
        if rows.gpus[rows.gpu_index[i]] == bundle.gpu.name and (number not in chosen or clock[i] > clock[chosen[number]]):
            chosen[number] = i
    found = []
    for number, i in list(chosen.items())[:MOST_BARS]:
        workload = rows.workloads[number]
        prediction = predict([workload], open_board(bundle, sm_clock_mhz=float(clock[i])))
        parts = prediction.power_parts_w(0)
        held = float(prediction.power_w[0, 0]) / sum(parts.values())
        parts = {part: watt * held for part, watt in parts.items()}
        found.append(Breakdown(name=workload.name, parts_w=parts, measured_w=float(rows.power_w[i])))
    return found

"""Power of measured kernels and workloads taken apart by module, beside what was measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from estimator.bundles.content import Bundle
from estimator.calibration import board_tables, power_model
from estimator.coefficients import coefficient_rows, group_key
from estimator.forms.variation import Variant
from estimator.kernel_prediction import kernel_load, warm_events
from estimator.kernel_times import kernel_times, merged_tiles
from estimator.kernels.registry import KnownTiles, lower
from estimator.power import POWER_TERMS, leakage_power_w, term_scale
from estimator.power_residuals import log_power_corrections
from estimator.quantities import Array, IntArray
from estimator.questions.explanation import explain
from estimator.questions.judging import Asked
from estimator.tiles.predictor import predicted_tiles
from fitter.report.rows import HeldRows
from fitter.rows.columns import KernelRows, Selection, WorkloadRows

MOST_BARS: Final = 12
"""Kinds of kernels, and workloads, whose power is taken apart."""

CORRECTION: Final = "neighbours"
"""What kernels measured near by add to the equation or take from it."""

_PART_OF_TERM: Final = dict(zip(POWER_TERMS, ("DRAM", "DRAM", "L2", "shared", "tensor", "CUDA", "special functions"), strict=True))


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
    """Kernels of the bundle's own GPU, launched over and over by themselves: the terms of `estimator.kernel_prediction`, one by one."""
    model, gpu, operators = power_model(bundle), bundle.gpu, rows.row_operators()
    if model is None or not len(rows) or set(rows.gpus) != {gpu.name}:
        return []
    groups = {name: group.coefficients for name, group in bundle.groups.items()}
    clock, known = rows.clock_mhz(gpu), KnownTiles(tile_m=rows.tile_m, tile_n=rows.tile_n, split=rows.split_k)
    times = kernel_times(
        operators,
        gpu,
        groups,
        sm_clock_mhz=clock,
        warm=rows.l2_warm,
        known=known,
        tile_predictors=bundle.tile_predictors,
        residuals=bundle.residuals,
    )
    coefficients, _ = coefficient_rows(groups, [group_key(operator) for operator in operators])
    tiles = merged_tiles(known, predicted_tiles(operators, gpu, bundle.tile_predictors, coefficients))
    load = kernel_load(lower(operators, gpu, coefficients, tiles).phases, gpu, coefficients, clock, rows.l2_warm, times.latency_s)
    point = board_tables(bundle, gpu).at(clock)
    rate = warm_events(load.events, load.warm_ratio, model.warm_knee, model.warm_sharpness) / load.latency_s[:, None]
    core = point.voltage_ratio**model.voltage_exponent * clock / model.reference_clock_mhz
    parts: dict[str, Array] = {"idle": point.idle_w, "active": model.active_w * point.idle_ratio, "busy": model.busy_w * core * load.busy}
    for number, term in enumerate(POWER_TERMS):
        own = (rate * model.event_energy_j * term_scale(model, point))[:, number]
        parts[_PART_OF_TERM[term]] = parts.get(_PART_OF_TERM[term], np.zeros(len(rows))) + own
    parts["leakage"] = leakage_power_w(model, point, sum(parts.values(), np.zeros(len(rows))), rows.temperature_c)
    total = np.minimum(sum(parts.values(), np.zeros(len(rows))), gpu.power_limit_w)
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
        answer = explain(Asked(variant=Variant(workload=workload), bundle=bundle, sm_clock_mhz=(float(clock[i]),)))
        parts = {part: joule / answer.result.latency_s for part, joule in answer.energy_parts_j.items()}
        found.append(Breakdown(name=workload.name, parts_w=parts, measured_w=float(rows.power_w[i])))
    return found

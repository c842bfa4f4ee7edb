"""Anchors: one or a few runs or kernels with energy, measured on a board without a fit, correct the forecast from another board's bundle.

Power above rest is scaled by √k, with k = measured over forecast, summed over the anchors: an anchor errs itself by its own 3 to 5 %, and
among A100, A10 and H100 half of ln k forecast other runs best (docs/model.md).  Times are scaled by the share of the mean
ln(measured / forecast) that outweighs the scatter of runs.  The rest of both errors stays in the stated uncertainty.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pandas as pd

from estimator.bundle.content import Bundle, CollectionRecord, PowerCoefficients, group_coefficients
from estimator.engine.board import board_tables, carried_power, held_limit
from estimator.uncertainty.forecast import forecast_std
from estimator.uncertainty.laboratory import HOST_S, HOST_STD, scale_of, unknown_host
from estimator.vocabulary.frozen import EMPTY, FrozenMapping
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import Array, IntArray
from fitter.errors import CalibrationError
from fitter.rows.columns import KernelRows, Selection, WorkloadRows
from fitter.validate.predictions import compared, predict_rows

CORRECTED_SHARE: Final = 0.5
"""Share of ln k by which power is corrected [1].  Source: six pairs of boards; three quarters or all of it errs more."""

USUAL_RATIO: Final = (0.8, 1.2)
"""Range of k among pairs of boards [1]; beyond it voltage or process of the specification is wrong, or the board is of a new kind."""

ROW_STD: Final = 0.05
"""Usual error of one run by a board's own fit [ln]."""

SLOW_HOST_S: Final = HOST_S * math.exp(HOST_STD)
"""Time to launch an operator on a slow host [s].  Shorter runs may wait for theirs: anchored by all runs, those of 20 ms and more on A100,
A10 and H100 err by 11 instead of 4 % in latency."""


def anchored(source: Bundle, selection: Selection, gpu: GpuSpec) -> tuple[Bundle, tuple[str, ...]]:
    """A bundle's coefficients carried to another GPU and corrected by anchors measured there, and warnings for the user.

    Raises CalibrationError for anchors without a power below the limit, for other rows, for a bundle without power or of this GPU, and for
    times of another unit.
    """
    if len(selection.tables) < len(selection.parts):
        raise CalibrationError("anchors are runs of models and kernels; fit generated kernels and grids apart, without --anchor")
    if source.power is None or source.gpu.name == gpu.name:
        reason = "has no power" if source.power is None else f"was fitted on {gpu.name} itself: start from it with --prior"
        raise CalibrationError(f"bundle {source.name}: {reason}; an anchor corrects the power of another GPU's bundle")
    tables, own = board_tables(source, gpu), group_coefficients(source, gpu)
    bundle = replace(
        source,
        gpu=gpu,
        groups=FrozenMapping({name: replace(group, coefficients=own[name]) for name, group in source.groups.items()}),
        power=carried_power(source, source.power, gpu),
        voltage=tables.voltage_v,
        idle=tables.idle_w,
        residuals=EMPTY,
        instruction_energies=EMPTY,
        block_models=EMPTY,
        host=unknown_host(gpu),
        errors=(),
    )
    anchors = [rows if isinstance(rows, KernelRows) else rows.select(_busy(rows)) for rows in selection.tables]
    found, given = _forecast(bundle, anchors), sum(map(len, selection.tables))
    runs = f"runs below {SLOW_HOST_S * 1e6:.0f} µs an operator, which may wait for their host"
    if found.empty:
        raise CalibrationError(f"all {given} anchors are {runs}, or kernels that the bundle lacks: run larger batches")
    slower = np.log((found["measured_latency"] / found["predicted_latency"]).to_numpy())
    of_time, of_power = forecast_std(source.gpu, gpu)
    weight = of_time**2 / (of_time**2 + ROW_STD**2 / len(slower))
    scale, names = scale_of(source, None) * float(np.exp(weight * slower.mean())), found["collection"].value_counts()
    if abs(math.log(scale)) > math.log(10.0):
        raise CalibrationError(f"anchors take {np.exp(slower.mean()):.3g} times their forecast; check latency_s, in seconds, and the GPU")
    places = tuple(CollectionRecord(name=str(name), rows=int(rows), scale=scale) for name, rows in names.items())
    bundle = replace(bundle, collections=places)
    measured_w, forecast_w = _above_rest(bundle, gpu, _forecast(bundle, anchors))
    known = np.isfinite(measured_w)
    if not known.any():
        raise CalibrationError("no anchor has an energy whose power lies between rest and the limit: run it for seconds, busy")
    mean = float(measured_w[known].sum() / forecast_w[known].sum())
    left = {
        "latency": float(np.hypot((1.0 - weight) * of_time, weight * ROW_STD / np.sqrt(len(slower)))),
        "power": float(np.hypot((1.0 - CORRECTED_SHARE) * of_power, CORRECTED_SHARE * ROW_STD / np.sqrt(known.sum()))),
    }
    stated = {quantity: _widened(errors, left[quantity]) for quantity, errors in source.uncertainty.items()}
    stated.get("latency", {}).pop("launch", None)  # that of the source's host
    bundle = replace(bundle, power=_scaled(bundle.power, mean**CORRECTED_SHARE), uncertainty=stated)  # type: ignore[arg-type]
    low, high = USUAL_RATIO
    reason = f"power above rest is {mean:.2f} times the forecast from {source.name} {source.version}, outside {low:g} to {high:g}: "
    reason += "check the GPU's specification (process, voltage, limit, rest power)"
    left_out = f"{given - len(found)} of {given} anchors left out: {runs}, or kernels that the bundle lacks"
    return bundle, (*([left_out] if len(found) < given else []), *([] if low <= mean <= high else [reason]))


def _forecast(bundle: Bundle, tables: Sequence[KernelRows | WorkloadRows]) -> pd.DataFrame:
    return pd.concat([compared(predict_rows(bundle, rows)) for rows in tables])


def _busy(runs: WorkloadRows) -> IntArray:
    """Runs that take longer than a slow host needs to launch their operators."""
    launches = [sum(n * one.host_share for one, n in zip(own.operators, own.counts, strict=True)) for own in runs.row_workloads()]
    return np.flatnonzero(runs.latency_s > SLOW_HOST_S * np.array(launches))


def _above_rest(bundle: Bundle, gpu: GpuSpec, found: pd.DataFrame) -> tuple[Array, Array]:
    """Measured and forecast power above rest of each anchor [W]; nan where not measured, at rest or at the limit."""
    rest_w = board_tables(bundle, gpu).rest_w(found["clock"].fillna(gpu.sm_clock_limit_mhz).to_numpy())
    power_w = found[["measured_power", "predicted_power"]].to_numpy().T
    within = np.all((power_w > rest_w) & (power_w < 0.999 * held_limit(bundle, gpu, gpu.power_limit_w).power_w), axis=0)
    measured_w, forecast_w = np.where(within, power_w - rest_w, np.nan)
    return measured_w, forecast_w


def _scaled(power: PowerCoefficients, factor: float) -> PowerCoefficients:
    """Core terms multiplied by a factor; DRAM outside the core, and power of a board in use, stay."""
    core = {name: 1.0 if name == "dram" else factor for name in power.event_energy_j}
    return replace(
        power,
        event_energy_j={name: core[name] * value for name, value in power.event_energy_j.items()},
        capacitance_f={name: core.get(name, factor) * value for name, value in power.capacitance_f.items()},
        busy_w=factor * power.busy_w,
    )


def _widened(stated: Mapping[str, Any], std: float) -> dict[str, Any]:
    """Stated errors of one quantity with a further independent error."""
    groups = {key: float(np.hypot(value, std)) for key, value in stated.get("groups", {}).items()}
    runs = {name: float(np.hypot(stated[name], std)) for name in ("gpu", "launch") if name in stated}
    return {**stated, **runs, **({"groups": groups} if groups else {})}

"""Fits → sections of a bundle."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypedDict

import numpy as np

from estimator.bundle.content import (
    Bundle,
    Covariance,
    GroupCoefficients,
    HostCost,
    IdleTable,
    PowerCoefficients,
    Provenance,
    VoltageTable,
)
from estimator.model.coefficients import HOST_LAUNCH
from estimator.model.power import L2_CREDIT, POWER_TERMS, BoardTables, capacitance_f, module_rates, tensor_rate
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import Array
from fitter.latency.runs import LatencyFit, affected_groups
from fitter.power.coefficients import LeakageFit, PowerFit
from fitter.power.solver import PICO, TERMS


def group_sections(fit: LatencyFit, rows: int) -> dict[str, GroupCoefficients]:
    """Coefficients of every group with the standard deviation of their logarithms."""
    spread = np.sqrt(np.diag(fit.covariance))
    sections = {}
    for group, values in fit.groups.items():
        ln_std: dict[str, float] = {}
        identified: dict[str, bool] = {}
        for parameter, std in zip(fit.parameters, spread, strict=True):
            if group in affected_groups(parameter, fit.groups):
                for name in parameter.coefficients:
                    if name in values:
                        ln_std[name] = float(std)
                        identified[name] = fit.identified[parameter.name]
        sections[group] = GroupCoefficients(coefficients=dict(values), ln_std=ln_std, identified=identified, rows=rows)
    return sections


def host_section(fit: LatencyFit, source: str) -> HostCost:
    """The host's launch cost, its uncertainty, and its overlap with the GPU."""
    index = fit.names.index(HOST_LAUNCH)
    return HostCost(
        launch_s=fit.host.launch_s,
        launch_ln_std=float(np.sqrt(fit.covariance[index, index])),
        source=source,
        overlap_exponent=fit.host.overlap_exponent,
    )


def power_section(fit: PowerFit, gpu: GpuSpec) -> PowerCoefficients:
    """Energies per event, and the capacitances that they imply."""
    voltage = _reference_voltage_v(fit.tables)
    rates = module_rates(gpu, tensor_rate(gpu))
    spread = np.sqrt(np.diag(fit.covariance))
    count = len(POWER_TERMS)
    farad = capacitance_f(fit.values[:count] * PICO, rates, voltage)
    farad_std = capacitance_f(spread[:count] * PICO, rates, voltage)
    return PowerCoefficients(
        reference_clock_mhz=fit.reference_clock_mhz,
        reference_voltage_v=voltage,
        voltage_exponent=fit.voltage_exponent,
        concavity=1.0,
        capacitance_f=_named(farad),
        capacitance_std_f=_named(farad_std),
        event_energy_j=_named(fit.values[:count] * PICO),
        busy_w=float(fit.values[TERMS.index("busy")]),
        busy_std_w=float(spread[TERMS.index("busy")]),
        active_w=float(fit.values[TERMS.index("active")]),
        active_std_w=float(spread[TERMS.index("active")]),
        terms=TERMS,
        covariance=as_rows(fit.covariance),
        l2_credit=L2_CREDIT,
        rows=fit.rows,
        warm_knee=fit.warm_knee,
        warm_sharpness=fit.warm_sharpness,
        **({} if fit.leakage is None else _leakage(fit.leakage)),
    )


def _leakage(fit: LeakageFit) -> dict[str, float]:
    return {
        "leakage_w_per_k": fit.w_per_k,
        "leakage_std_w_per_k": fit.std_w_per_k,
        "operating_c": fit.operating_c,
        "operating_k_per_w": fit.operating_k_per_w,
    }


def with_gain_std(power: PowerCoefficients, gain_std: float) -> PowerCoefficients:
    """The section with the uncertainty of the sensor's gain added, which all coefficients share.

    gain_std: relative standard deviation of the gain of the power readings or of their correction.
    """
    values = np.array([*(power.event_energy_j[term] / PICO for term in POWER_TERMS), power.busy_w, power.active_w])
    covariance = np.array(power.covariance) + gain_std**2 * np.outer(values, values)
    spread = np.sqrt(np.diag(covariance))
    energy, farad = power.event_energy_j, power.capacitance_f
    per_pico = {term: farad[term] * PICO / energy[term] for term in POWER_TERMS if energy[term] > 0}
    return replace(
        power,
        capacitance_std_f={
            term: float(spread[i]) * per_pico[term] if term in per_pico else power.capacitance_std_f[term]
            for i, term in enumerate(POWER_TERMS)
        },
        busy_std_w=float(spread[TERMS.index("busy")]),
        active_std_w=float(spread[TERMS.index("active")]),
        leakage_std_w_per_k=float(np.hypot(power.leakage_std_w_per_k, gain_std * power.leakage_w_per_k)),
        covariance=as_rows(covariance),
    )


def _named(values: Array) -> Mapping[str, float]:
    return {term: float(value) for term, value in zip(POWER_TERMS, values, strict=True)}


def _reference_voltage_v(tables: BoardTables) -> float:
    if tables.voltage_v is None:
        return 1.0  # a capacitance is then an energy at 1 V
    return float(tables.voltage_v.at(np.array([tables.reference_clock_mhz]))[0])


def voltage_section(tables: BoardTables, std_v: tuple[float, ...] | None = None) -> VoltageTable | None:
    """The voltage table in use."""
    table = tables.voltage_v
    return None if table is None else VoltageTable(sm_clock_mhz=table.sm_clock_mhz, voltage_v=table.value, std_v=std_v, source=table.source)


def idle_section(tables: BoardTables, std_w: float | None = None) -> IdleTable | None:
    """The idle table in use."""
    table, warm = tables.idle_w, tables.idle_temperature_c
    if table is None:
        return None
    return IdleTable(sm_clock_mhz=table.sm_clock_mhz, power_w=table.value, std_w=std_w, source=table.source, temperature_c=warm)


class PowerSections(TypedDict):
    """The sections of a bundle that power needs, None without power."""

    power: PowerCoefficients | None
    voltage: VoltageTable | None
    idle: IdleTable | None


def power_sections(fit: PowerFit | None, gpu: GpuSpec) -> PowerSections:
    """Power coefficients with the tables of their fit."""
    if fit is None:
        return {"power": None, "voltage": None, "idle": None}
    voltage = voltage_section(fit.tables, fit.voltage_std_v)
    return {"power": power_section(fit, gpu), "voltage": voltage, "idle": idle_section(fit.tables)}


def draft_bundle(gpu: GpuSpec, latency: LatencyFit, power: PowerFit | None, *, clocks_mhz: tuple[float, float], rows: int) -> Bundle:
    """A bundle for cross-validation: it predicts, but has no provenance and no errors."""
    return Bundle(
        name="draft",
        version="0.0.0",
        gpu=gpu,
        provenance=Provenance(created_utc="", wattprint_version="", commit="", seed=0),
        host=host_section(latency, "fitted"),
        groups=group_sections(latency, rows),
        clocks_mhz=clocks_mhz,
        latency_parameters=Covariance(names=latency.names, covariance=as_rows(latency.covariance)),
        **power_sections(power, gpu),
    )


def as_rows(matrix: Array) -> tuple[tuple[float, ...], ...]:
    """A matrix in the form that a bundle stores."""
    return tuple(map(tuple, matrix.tolist()))

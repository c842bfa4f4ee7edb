"""Fits → sections of a bundle."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from estimator.bundle.content import (
    Bundle,
    CollectionRecord,
    Covariance,
    GroupCoefficients,
    HostCost,
    PowerCoefficients,
    Provenance,
)
from estimator.model.coefficients import HOST_LAUNCH as LAUNCH_NAME
from estimator.model.coefficients import LAMBDAS, longest_prefix, parameter_targets
from estimator.model.power import POWER_TERMS, capacitance_f, module_rates, tensor_rate
from estimator.uncertainty.laboratory import unknown_host
from estimator.vocabulary.frozen import EMPTY, FrozenMapping
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import Array
from fitter.latency.runs import LatencyFit, prior_groups
from fitter.power.coefficients import PowerFit
from fitter.power.solver import PICO, TERMS
from fitter.priors import GROUP_PRIORS, Scales
from fitter.rows.columns import KernelRows, WorkloadRows


def prior_bundle(gpu: GpuSpec) -> Bundle:
    """A bundle without measurements: latency from priors, no power."""
    return Bundle(
        name="draft",
        version="0.0.0",
        gpu=gpu,
        provenance=Provenance(created_utc="", wattprint_version="", commit="", seed=0),
        host=unknown_host(gpu),
        groups={group: prior_section(group, values) for group, values in prior_groups(gpu).items()},
        clocks_mhz=(gpu.sm_clock_max_mhz, gpu.sm_clock_max_mhz),
    )


def prior_section(group: str, values: Mapping[str, float]) -> GroupCoefficients:
    """A group without rows, known from priors or another GPU: the uncertainty of its coefficients is that of their priors."""
    priors = GROUP_PRIORS[longest_prefix(group, GROUP_PRIORS) or "elementwise"]
    widths = {name: prior.width for name, prior in priors.items() if name in values and prior.width > 1e-3}  # narrower: constants
    return GroupCoefficients(coefficients=dict(values), ln_std=widths, identified=dict.fromkeys(widths, False), rows=0)


def with_usual(bundle: Bundle) -> Bundle:
    """The bundle with the usual lambdas of boards in general: centres of priors, in the groups that have some, for all that they begin."""
    priors = prior_groups(bundle.gpu)
    usual = {name: FrozenMapping({str(key): values[key] for key in LAMBDAS if key in values}) for name, values in priors.items()}
    groups = {name: replace(group, usual=usual.get(name, EMPTY)) for name, group in bundle.groups.items()}
    return replace(bundle, groups=groups)


def runs_bundle(gpu: GpuSpec, latency: LatencyFit, power: PowerFit | None, *, clocks_mhz: tuple[float, float], rows: int) -> Bundle:
    """A bundle from runs of whole workloads: it predicts, but has no provenance and no errors."""
    host = HostCost(
        launch_s=latency.host.launch_s,
        launch_ln_std=latency.ln_std[LAUNCH_NAME],
        source="fitted",
        overlap_exponent=latency.host.overlap_exponent,
    )
    bundle = replace(
        prior_bundle(gpu),
        host=host,
        groups={group: _tied_section(group, latency, rows) for group in latency.groups},
        clocks_mhz=clocks_mhz,
        latency_parameters=Covariance(names=tuple(latency.widths), covariance=as_rows(latency.covariance)),
    )
    return with_usual(with_power(bundle, power))


def collection_records(scales: Scales, tables: Iterable[KernelRows | WorkloadRows]) -> tuple[CollectionRecord, ...]:
    """The collections of these rows with their scales [ln] and standard deviations."""
    counts = Counter(name for rows in tables for name in rows.row_collections())
    return tuple(
        CollectionRecord(name=name, rows=counts[name], scale=float(np.exp(log_scale)), ln_std=std)
        for name, (log_scale, std) in sorted(scales.items())
        if counts[name]
    )


def _tied_section(group: str, fit: LatencyFit, rows: int) -> GroupCoefficients:
    """One group's coefficients with the standard deviation of their logarithms."""
    values = fit.groups[group]
    owner = {name: parameter for parameter in fit.widths for _, name in parameter_targets(parameter, (group,)) if name in values}
    return GroupCoefficients(
        coefficients=dict(values),
        ln_std={name: fit.ln_std[parameter] for name, parameter in owner.items()},
        identified={name: fit.identified[parameter] for name, parameter in owner.items()},
        rows=rows,
    )


def power_section(fit: PowerFit, gpu: GpuSpec) -> PowerCoefficients:
    """Energies per event, and the capacitances that they imply."""
    voltage = 1.0  # without a voltage a capacitance is an energy at 1 V
    if fit.tables.voltage_v is not None:
        voltage = float(fit.tables.voltage_v.at(np.array([fit.tables.reference_clock_mhz]))[0])
    rates = module_rates(gpu, tensor_rate(gpu))
    count = len(POWER_TERMS)
    values = dict(zip(TERMS, fit.values.tolist(), strict=True))
    spread = np.sqrt(np.diag(fit.covariance))
    stds = dict(zip(values, spread.tolist(), strict=True))
    return PowerCoefficients(
        reference_clock_mhz=fit.tables.reference_clock_mhz,
        reference_voltage_v=voltage,
        voltage_exponent=fit.exponent,
        capacitance_f=_named(capacitance_f(fit.values[:count] * PICO, rates, voltage)),
        capacitance_std_f=_named(capacitance_f(spread[:count] * PICO, rates, voltage)),
        event_energy_j=_named(fit.values[:count] * PICO),
        busy_w=values["busy"],
        busy_std_w=stds["busy"],
        active_w=values["active"],
        active_std_w=stds["active"],
        terms=TERMS,
        covariance=as_rows(fit.covariance),
        rows=fit.rows,
    )


def with_gain_std(power: PowerCoefficients, gain_std: float) -> PowerCoefficients:
    """The section with the uncertainty of the sensor's gain added, which all coefficients share.

    gain_std: relative standard deviation of the gain of the power readings or of their correction.
    """
    values = np.array([*(power.event_energy_j[term] / PICO for term in POWER_TERMS), power.busy_w, power.active_w])

    def widened(std: float, value: float) -> float:
        return math.hypot(std, gain_std * value)

    return replace(
        power,
        capacitance_std_f={term: widened(std, power.capacitance_f[term]) for term, std in power.capacitance_std_f.items()},
        busy_std_w=widened(power.busy_std_w, power.busy_w),
        active_std_w=widened(power.active_std_w, power.active_w),
        covariance=as_rows(np.array(power.covariance) + gain_std**2 * np.outer(values, values)),
    )


def _named(values: Array) -> Mapping[str, float]:
    return dict(zip(POWER_TERMS, values.tolist(), strict=True))


def with_power(bundle: Bundle, fit: PowerFit | None) -> Bundle:
    """The bundle with power coefficients and the tables of their fit; unchanged without a fit."""
    if fit is None:
        return bundle
    return replace(bundle, power=power_section(fit, bundle.gpu), voltage=fit.tables.voltage_v, idle=fit.tables.idle_w)


def as_rows(matrix: Array) -> tuple[tuple[float, ...], ...]:
    """A matrix in the form that a bundle stores."""
    return tuple(map(tuple, matrix.tolist()))

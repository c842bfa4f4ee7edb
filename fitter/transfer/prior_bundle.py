"""Transfer: the bundle of one GPU as the prior of another's fit, so that few measured kernels suffice.

Each section of kernels starts from the other GPU's coefficients.  The width of the priors around them – the narrowing of
`fitter.latency.lent_priors` – follows from the evidence of the measured kernels under wider and narrower priors.  A few kernels suffice
for that, while errors on a few left-out kernels depend on chance.  Sections of one family share the family's shift.
Source: D. J. C. MacKay, Bayesian Interpolation, Neural Computation 4 (1992) 415, section 3.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from estimator.bundle.content import Bundle, HostCost, PowerCoefficients
from estimator.engine.board import board_tables, carried_power
from estimator.model.coefficients import BY, longest_prefix
from estimator.model.power import SWITCHING_EXPONENT, BoardTables, carried_factors
from estimator.model.residuals import tier_from_document
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.values import frozen
from fitter.latency.groups import Siblings, fit_kernel_groups, section_key
from fitter.latency.lent_priors import moved_values
from fitter.power.solver import PICO, usual_priors
from fitter.priors import GROUP_PRIORS, HOST_LAUNCH
from fitter.rows.columns import KernelRows

STRENGTHS: Final = (1.0, 0.5, 0.25, 0.12)
"""Candidate narrowings, from any other GPU to a nearly identical one."""

MOST_SHAPES: Final = 250
"""Most kernels for the choice of the narrowing; of more kernels, a random sample is used."""


@frozen
class TransferSource:
    """Another GPU's bundle as the prior of the target GPU's fit.

    label      name and version of the bundle, and its GPU, for messages
    gpu        the GPU of the bundle
    siblings   its coefficients, adapted to the target's architecture, with their errors and the chosen widths of priors around them
    power      power coefficients, carried to the target, None without them; powered: the GPUs that they are of
    host       launch cost of the host behind the bundle, with the width of its prior
    tables     voltage and rest power of the target
    """

    label: str
    gpu: GpuSpec
    powered: str
    siblings: Siblings
    power: PowerCoefficients | None
    host: HostCost
    tables: BoardTables


def transfer_source(bundle: Bundle, *more: Bundle, target: GpuSpec) -> TransferSource:
    """The transfer source of a bundle; groups that the bundle has from priors only are left out.

    more: further bundles for power.  Of A100-PCIe, A10 and H100 each is forecast from the mean of the other two with an error of 3.1, 3.9
    and 3.2 %, from one of them with 3.5 and 4.1, 3.5 and 6.6, 3.8 and 4.0 %.
    """
    tables, known = board_tables(bundle, target), [one for one in (bundle, *more) if one.power is not None]
    powers = [carried_power(one, one.power, target, tables) for one in known if one.power is not None]
    measured = [key for key, group in bundle.groups.items() if group.rows > 0]
    values = moved_values({key: bundle.groups[key].coefficients for key in measured}, bundle.gpu, target)
    return TransferSource(
        label=f"{bundle.name} {bundle.version} ({bundle.gpu.name})",
        powered=", ".join(one.gpu.name for one in known),
        gpu=bundle.gpu,
        siblings=Siblings(values=values, error=equation_errors(bundle, measured)),
        power=mean_power(powers) if powers else None,
        host=replace(bundle.host, launch_ln_std=HOST_LAUNCH.width, source=f"that of the host behind {bundle.name}"),
        tables=tables,
    )


def mean_power(powers: Sequence[PowerCoefficients]) -> PowerCoefficients:
    """The first power section with the means of all, of one GPU at one reference clock."""

    def mean(name: str) -> dict[str, float]:
        columns = [getattr(one, name) for one in powers]
        return {term: float(np.mean([column[term] for column in columns])) for term in columns[0]}

    busy_w, active_w = (float(np.mean([getattr(one, name) for one in powers])) for name in ("busy_w", "active_w"))
    energy, farad = mean("event_energy_j"), mean("capacitance_f")
    return replace(powers[0], event_energy_j=energy, capacitance_f=farad, busy_w=busy_w, active_w=active_w)


def equation_errors(bundle: Bundle, groups: Iterable[str]) -> dict[str, float]:
    """Standard deviation of ln(measured / equations) of these groups [ln]: the larger of the bundle's and the residual tier's value.

    A group that represents several groups combines their errors; a group without errors is left out.
    """
    latency = bundle.uncertainty.get("latency", {})
    stated = {key: float(value) ** 2 for key, value in latency.get("groups", {}).items() if np.isfinite(value)}
    for key, document in bundle.residuals.items():
        if "points" in document:
            left_over = tier_from_document(document).predicted.ln_error
            stated[key] = max(stated.get(key, 0.0), float(np.mean(left_over**2)))
    found = {}
    for group in groups:
        own = [stated[group]] if group in stated else [value for key, value in stated.items() if key.startswith(f"{group}.")]
        if own:
            found[group] = float(np.sqrt(np.mean(own)))
    return found


def with_strengths(source: TransferSource, rows: KernelRows, gpu: GpuSpec, seed: int) -> TransferSource:
    """Set the narrowing of every family, then of every section, from the evidence of the rows."""
    siblings = source.siblings
    if not siblings.values:
        return source
    chosen = _few_shapes(rows, seed)
    sections = {section_key(operator) for operator in chosen.row_operators()}
    families = _evidence(siblings, chosen, gpu, seed, (*sections, *GROUP_PRIORS))
    narrowing = {key: expected_strength(found) for key, found in families.items() if key not in sections}
    found = _evidence(replace(siblings, narrowing=narrowing), chosen, gpu, seed, sections) if narrowing else families
    narrowing |= {key: expected_strength(found[key]) for key in sections}
    return replace(source, siblings=replace(siblings, narrowing=narrowing))


def _few_shapes(rows: KernelRows, seed: int) -> KernelRows:
    shapes = np.unique(rows.operator_index)
    if len(shapes) <= MOST_SHAPES:
        return rows
    kept = np.random.default_rng(seed).choice(shapes, MOST_SHAPES, replace=False)
    return rows.select(np.isin(rows.operator_index, kept))


def _evidence(siblings: Siblings, rows: KernelRows, gpu: GpuSpec, seed: int, keys: Iterable[str]) -> dict[str, Array]:
    """Log evidence of the rows of every section, and of every family, with each of STRENGTHS as the narrowing of all `keys`."""
    fits = []
    for strength in STRENGTHS:
        tried = replace(siblings, narrowing={**siblings.narrowing, **dict.fromkeys(keys, strength)})
        fits.append(fit_kernel_groups(rows, gpu, seed=seed, siblings=tried, refine=False).log_evidence)
    return {key: np.array([fit[key] for fit in fits]) for key in fits[0]}


def expected_strength(log_evidence: Array) -> float:
    """The geometric mean of STRENGTHS, weighted by their probability under the rows; log_evidence (strengths,)."""
    probability = np.exp(log_evidence - log_evidence.max())
    return float(np.exp(probability @ np.log(STRENGTHS) / probability.sum()))


def lent_groups(source: TransferSource, fitted: Mapping[str, object]) -> dict[str, Mapping[str, float]]:
    """The other GPU's groups that have no fitted group here, nor a more general one of the same family and format."""
    return {
        key: values
        for key, values in source.siblings.values.items()
        if not {key, key.partition(BY)[0]} & fitted.keys() and longest_prefix(key, fitted.keys()) in (None, *GROUP_PRIORS)
    }


def power_priors(source: TransferSource, tables: BoardTables) -> dict[str, tuple[float, float]]:
    """Centres [pJ per event, W for static terms] and relative widths of the power coefficients, carried from the other GPU's.

    Terms that are zero in the other fit keep the general prior.
    """
    found, power = usual_priors(tables), source.power
    if power is None:
        return found
    exponent = power.voltage_exponent if tables.voltage_v else SWITCHING_EXPONENT
    factors = carried_factors(source.tables, power.voltage_exponent, tables, exponent)
    static = {"busy": power.busy_w, "active": power.active_w}
    for term, (usual, width) in found.items():
        centre = factors[term] * (static[term] if term in static else power.event_energy_j.get(term, 0.0) / PICO)
        # Of the general prior: what a fit drove to nothing is no statement about another GPU.
        if centre > 0.05 * usual:
            found[term] = (centre, width)
    return found


def transfer_notes(source: TransferSource | None, bundle: Bundle) -> tuple[str, ...]:
    """Notes on the parts of a bundle that come from another GPU."""
    if source is None:
        return ()
    notes = [f"prior: {source.label}"] if source.siblings.values else []
    lent = [key for key, group in bundle.groups.items() if group.rows == 0 and key in source.siblings.values]
    if lent:
        notes.append(f"as on {source.gpu.name}, not measured on {bundle.gpu.name}: {', '.join(lent)}")
    if bundle.power is not None and bundle.power is source.power:
        notes.append(f"power as on {source.powered}, not measured on {bundle.gpu.name}: an indication")
    return tuple(notes)

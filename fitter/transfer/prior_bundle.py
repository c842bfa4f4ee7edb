"""Transfer: the bundle of one GPU as the prior of another's fit, so that few measured kernels suffice.

Each section of kernels starts from the other GPU's coefficients (`fitter.latency.lent_priors`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from estimator.bundle.content import Bundle, PowerCoefficients
from estimator.engine.board import board_tables, carried_power
from estimator.model.coefficients import BY, longest_prefix
from estimator.model.power import SWITCHING_EXPONENT, BoardTables, carried_factors
from estimator.model.residuals import tier_from_document
from estimator.uncertainty.validity import LENT_POWER
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.values import frozen
from fitter.latency.groups import Siblings
from fitter.latency.lent_priors import moved_values
from fitter.power.solver import PICO, usual_priors
from fitter.priors import GROUP_PRIORS


@frozen
class TransferSource:
    """Another GPU's bundle as the prior of the target GPU's fit.

    label      name and version of the bundle, and its GPU, for messages
    gpu        the GPU of the bundle
    siblings   its coefficients, adapted to the target's architecture, with their errors
    power      power coefficients, carried to the target, None without them; powered: the bundles that they are of
    tables     voltage and rest power of the target
    """

    label: str
    gpu: GpuSpec
    powered: str
    siblings: Siblings
    power: PowerCoefficients | None
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
        powered=", ".join(one.name for one in known),
        gpu=bundle.gpu,
        siblings=Siblings(values=values, error=equation_errors(bundle, measured)),
        power=mean_power(powers) if powers else None,
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
        notes.append(f"{LENT_POWER}{source.powered}, not in the data of this fit: an indication")
    return tuple(notes)

"""Transfer: the bundle of one GPU as the prior of another's fit, so that few measured kernels suffice.

Each section of kernels starts from the other GPU's coefficients.  How far it may leave them – the narrowing of
`fitter.transfer.priors` – is what forecasts measured kernels best that are left out: one strength for all sections, and a section's
own where its kernels ask for another beyond doubt.  Sections of one family share what sets the family apart.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from estimator.bundles.content import Bundle, GroupCoefficients, PowerCoefficients
from estimator.coefficients import Prior, longest_prefix
from estimator.gpu import GpuSpec
from estimator.kernel_times import kernel_times
from estimator.power import POWER_TERMS, BoardTables
from estimator.quantities import Array, BoolArray
from estimator.residuals import tier_from_document
from fitter.kernels.groups import KernelFit, fit_kernel_groups, section_key
from fitter.power.solver import PICO, PRIOR, TERMS
from fitter.power.voltage import INFERRED
from fitter.priors import GROUP_PRIORS
from fitter.rows import KernelRows
from fitter.transfer.priors import moved_values
from fitter.validation import grouped_folds

STRENGTHS: Final = (1.0, 0.5, 0.25, 0.12)
"""Narrowings that are tried: from no more trust than in any GPU to a near twin."""

FOLD_SHARE: Final = 0.25

MOST_SHAPES: Final = 250
"""Of more kernels a random choice of this many decides: what one kernel can say is then small beside the measurements."""

FEWEST_SHAPES: Final = 8
"""Fewer kernels decide nothing."""

LARGEST_LOSS: Final = 0.5
"""A kernel forecast worse than this counts as this much [ln]."""

BEYOND_DOUBT: Final = 1.5
"""Standard errors by which a section's own strength must win."""

UNDECIDED: Final = 0.5
"""Narrowing where nothing decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSource:
    """Another GPU's bundle as the target GPU's fit uses it.

    label      name and version of the bundle, and its GPU, for people
    gpu        the GPU that it was fitted on
    values     coefficients by group, moved to the target's architecture
    measured   rows behind each group in the bundle
    error      standard deviation of what the equations leave over on that GPU, by group [ln]
    narrowing  by section, the chosen widths of priors around the values in widths of the general ones
    power      the bundle's power coefficients, None where it has none
    knows_voltage  whether these are stated at a voltage in volts
    """

    label: str
    gpu: GpuSpec
    values: Mapping[str, Mapping[str, float]]
    measured: Mapping[str, int]
    error: Mapping[str, float]
    narrowing: Mapping[str, float]
    power: PowerCoefficients | None
    knows_voltage: bool


def transfer_source(bundle: Bundle, target: GpuSpec) -> TransferSource:
    """What a bundle says about another GPU; groups that it knows from priors alone say nothing."""
    measured = {key: group.rows for key, group in bundle.groups.items() if group.rows > 0}
    values = moved_values({key: bundle.groups[key].coefficients for key in measured}, bundle.gpu, target)
    return TransferSource(
        label=f"{bundle.name} {bundle.version} ({bundle.gpu.name})",
        gpu=bundle.gpu,
        values=values,
        measured=measured,
        error=equation_errors(bundle, measured),
        narrowing={},
        power=bundle.power,
        knows_voltage=bundle.voltage is not None and not bundle.voltage.source.startswith(INFERRED),
    )


def equation_errors(bundle: Bundle, groups: Iterable[str]) -> dict[str, float]:
    """Standard deviation of ln(measured / equations) of these groups [ln]: as the bundle states or, if larger, as its residual tier mends.

    A group that stands for several answers with all of them; one of which nothing is known is left out.
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
    """The source with the narrowing of every section as kernels left out of a fit decide."""
    if not source.values:
        return source
    chosen = _few_shapes(rows, seed)
    keys = [section_key(operator) for operator in chosen.row_operators()]
    folds = grouped_folds(chosen.operator_index, FOLD_SHARE, seed)
    if len(np.unique(chosen.operator_index)) < FEWEST_SHAPES:
        return replace(source, narrowing=dict.fromkeys((*keys, *GROUP_PRIORS), UNDECIDED))
    loss = np.stack([_left_out_loss(source, strength, chosen, gpu, folds, seed) for strength in STRENGTHS])
    return replace(source, narrowing=_decided(loss, keys))


def _few_shapes(rows: KernelRows, seed: int) -> KernelRows:
    shapes = np.unique(rows.operator_index)
    if len(shapes) <= MOST_SHAPES:
        return rows
    kept = np.random.default_rng(seed).choice(shapes, MOST_SHAPES, replace=False)
    return rows.select(np.isin(rows.operator_index, kept))


def _left_out_loss(source: TransferSource, strength: float, rows: KernelRows, gpu: GpuSpec, folds: list[BoolArray], seed: int) -> Array:
    """|ln(measured / forecast)| of every row when left out, bounded, shape (n,)."""
    loss = np.full(len(rows), LARGEST_LOSS)
    tried = replace(source, narrowing=dict.fromkeys((*(section_key(o) for o in rows.operators), *GROUP_PRIORS), strength))
    for fold in folds:
        fit = fit_transferred(rows.select(~fold), gpu, tried, seed, refine=False)
        groups = {**source.values, **{key: group.coefficients for key, group in fit.groups.items()}}
        test = rows.select(fold)
        times = kernel_times(
            test.row_operators(),
            gpu,
            groups,
            sm_clock_mhz=test.clock_mhz(gpu),
            warm=test.l2_warm,
            tile_predictors=fit.tile_predictors,
        )
        loss[fold] = np.minimum(np.abs(np.log(test.latency_s / times.latency_s)), LARGEST_LOSS)
    return loss


def _decided(loss: Array, keys: list[str]) -> dict[str, float]:
    """The narrowing of each section and of families, from losses (strengths, rows)."""
    common = int(np.argmin(loss.mean(axis=1)))
    found = dict.fromkeys(GROUP_PRIORS, STRENGTHS[common])
    members: dict[str, list[int]] = {}
    for i, key in enumerate(keys):
        members.setdefault(key, []).append(i)
    for key, index in members.items():
        own = loss[:, index]
        best = int(np.argmin(own.mean(axis=1)))
        gain = own[common] - own[best]
        sure = len(index) >= FEWEST_SHAPES and gain.mean() > BEYOND_DOUBT * gain.std() / np.sqrt(len(index))
        found[key] = STRENGTHS[best if sure else common]
    return found


def fit_transferred(rows: KernelRows, gpu: GpuSpec, source: TransferSource, seed: int, *, refine: bool = True) -> KernelFit:
    """`fit_kernel_groups` from another GPU's coefficients."""
    return fit_kernel_groups(
        rows, gpu, seed=seed, sibling=source.values, narrowing=source.narrowing, sibling_error=source.error, refine=refine
    )


def lent_groups(source: TransferSource, fitted: Mapping[str, object]) -> dict[str, Mapping[str, float]]:
    """The other GPU's groups where none was fitted, nor a more general one whose kernels are of the same family and format."""
    return {
        key: values
        for key, values in source.values.items()
        if key not in fitted and longest_prefix(key, fitted.keys()) in (None, *GROUP_PRIORS)
    }


def lent_section(group: str, values: Mapping[str, float]) -> GroupCoefficients:
    """A group taken from the other GPU: as uncertain as GPUs differ, and no row behind it."""
    priors: Mapping[str, Prior] = GROUP_PRIORS[longest_prefix(group, GROUP_PRIORS) or "elementwise"]
    widths = {name: priors[name].width for name in values if name in priors}
    return GroupCoefficients(coefficients=dict(values), ln_std=widths, identified=dict.fromkeys(widths, False), rows=0)


def power_priors(source: TransferSource, tables: BoardTables) -> dict[str, tuple[float, float]]:
    """Centres [pJ per event, W for static terms] and relative widths of the power coefficients, about the other GPU's.

    Energies inside the core follow the voltage at which each is stated, static power the power limits of the two boards.
    Terms that the other fit found to be zero keep the general prior.
    """
    power = source.power
    if power is None:
        return dict(PRIOR)
    voltage = 1.0
    if tables.voltage_v is not None and source.knows_voltage:
        own_v = float(tables.voltage_v.at(np.array([tables.reference_clock_mhz]))[0])
        voltage = (own_v / power.reference_voltage_v) ** power.voltage_exponent
    static = tables.power_limit_w / source.gpu.power_limit_w
    found = dict(PRIOR)
    for term in TERMS:
        if term in POWER_TERMS:
            centre = power.event_energy_j.get(term, 0.0) / PICO * (1.0 if term == "dram" else voltage)
        else:
            centre = (power.busy_w if term == "busy" else power.active_w) * static
        if centre > SMALLEST_SHARE * PRIOR[term][0]:
            found[term] = (centre, PRIOR[term][1])
    return found


SMALLEST_SHARE: Final = 0.05
"""Of the general prior: what a fit drove to nothing is no statement about another GPU [1]."""


LENT_POWER_STD: Final = 0.3
"""Spread of ln(power) forecast from another GPU's coefficients: published boards lie 16 to 34 % off such forecasts."""


def transfer_notes(source: TransferSource | None, bundle: Bundle) -> tuple[str, ...]:
    """What a bundle owes to another GPU, as lines for people."""
    if source is None:
        return ()
    strengths = sorted({value for key, value in source.narrowing.items() if key in bundle.groups})
    held = f", held to {', '.join(f'{value:g}' for value in strengths)} of the usual widths" if strengths else ""
    notes = [f"prior: {source.label}{held}"]
    lent = [key for key, group in bundle.groups.items() if group.rows == 0 and key in source.values]
    if lent:
        notes.append(f"as on {source.gpu.name}, not measured on {bundle.gpu.name}: {', '.join(lent)}")
    if bundle.power is not None and bundle.power is source.power:
        notes.append(f"power as on {source.gpu.name}, not measured on {bundle.gpu.name}: an indication")
    return tuple(notes)

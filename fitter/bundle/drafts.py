"""Rows → a bundle that predicts: kernels first, then runs of whole workloads, then power from both."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
from scipy.linalg import block_diag

from estimator.bundle.content import Bundle, Covariance, GroupCoefficients
from estimator.model.coefficients import BY, FRAMEWORK, group_key, group_words, longest_prefix
from estimator.model.power import BoardTables
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.values import frozen
from estimator.vocabulary.workload import CUDNN_HEADS, FLASH_ATTENTION
from fitter.bundle.runs import fit_runs
from fitter.bundle.sections import as_rows, collection_records, prior_bundle, prior_section, with_power, with_usual
from fitter.latency.collections import fit_collections
from fitter.latency.group_fit import GroupFit
from fitter.latency.groups import NO_SIBLINGS, KernelFit, section_key
from fitter.latency.runs import MATRIX_GROUPS, STREAM_GROUPS, prior_groups
from fitter.power.coefficients import fit_power
from fitter.power.limit import with_limit_share
from fitter.power.rows import kernel_power_rows
from fitter.power.tier import with_power_tiers
from fitter.priors import GROUP_PRIORS, Coefficients
from fitter.rows.columns import KernelRows, WorkloadRows
from fitter.rows.rejected import RejectedRow
from fitter.transfer.prior_bundle import TransferSource, lent_groups, power_priors

DONOR: Final = "elementwise"
"""Group whose measured coefficients are used for unmeasured memory kernels."""

LENT: Final = ("dram", "l2", "issue", "exponent", "epsilon_s")
"""Coefficients that all memory kernels share."""


@frozen
class Draft:
    """A bundle that predicts, without provenance or errors; `kernel_fit` is None if no kernels were measured alone."""

    bundle: Bundle
    kernel_fit: KernelFit | None


def draft_from_rows(
    kernels: KernelRows | None,
    workloads: WorkloadRows | None,
    gpu: GpuSpec,
    tables: BoardTables,
    seed: int,
    kernel_fit: KernelFit | None = None,
    source: TransferSource | None = None,
    whole: KernelFit | None = None,
) -> Draft:
    """Fit a draft to all rows of one GPU.

    kernel_fit: the fit of exactly these kernels, if it exists already.  whole: that of these and others.  source: another GPU's bundle as
    prior.  Groups without rows take their priors, the coefficients of related kernels or those of the other GPU; their row count is 0.
    """
    priors = None if source is None else power_priors(source, tables)
    if kernels is None:
        assert workloads is not None
        lent = None if source is None else lent_groups(source, {})
        runs = fit_runs(workloads, gpu, tables, measured_groups=lent, power_priors=priors)
        return Draft(bundle=with_limit_share(_with_source(runs, source), None, workloads), kernel_fit=None)
    fit = kernel_fit
    if fit is None:
        siblings = NO_SIBLINGS if source is None else source.siblings
        fit = fit_collections(_at_known_clocks(kernels), gpu, seed=seed, siblings=siblings, whole=whole)
    measured = {group: one.coefficients for group, one in fit.groups.items()}
    lent = {} if source is None else lent_groups(source, measured)
    start = _lent(measured) | lent | measured
    groups = prior_groups(gpu) | start
    power_rows = kernel_power_rows(_without(kernels, fit.rejected), gpu, groups)
    if workloads is None:
        power = None if power_rows is None else fit_power(power_rows, tables, priors)
        sections = {group: _section(group, values, fit.groups.get(group)) for group, values in groups.items()}
        own = collection_records(fit.scales, [kernels])
        empty = prior_bundle(gpu)
        empty = replace(empty, groups=sections, latency_parameters=_covariance(fit.groups), collections=own)
        bundle = with_power(empty, power)
    else:
        served = _serving(start, fit, workloads)
        runs = fit_runs(
            workloads, gpu, tables, kernel_power=power_rows, measured_groups=served or None, power_priors=priors, scales=fit.scales
        )
        scales = {one.name: (float(np.log(one.scale)), one.ln_std) for one in runs.collections}
        own = collection_records({**fit.scales, **scales}, [kernels, workloads])
        bundle = replace(runs, groups=_joined_groups(runs, fit, served), collections=own)
    every = {**_framework_attention(kernels, gpu), **bundle.groups}
    bundle = replace(bundle, groups=every, tile_predictors=fit.tile_predictors, residuals=fit.residuals)
    bundle = with_limit_share(with_usual(_with_source(bundle, source)), kernels, workloads)
    return Draft(bundle=with_power_tiers(bundle, kernels, seed), kernel_fit=fit)


def _framework_attention(rows: KernelRows, gpu: GpuSpec) -> dict[str, GroupCoefficients]:
    """Attention of PyTorch at its priors, where serving libraries have other kernels: its own and FlashAttention-2, unless measured.

    On an H200 FlashAttention-2 errs by 14 % (prefill) and 20 % (decode) at the priors, by 70 and 94 % with the coefficients of serving
    libraries.
    """
    found = {operator.library for operator in rows.operators if operator.family == "attention"}
    if gpu.compute_capability not in CUDNN_HEADS or not found:
        return {}
    priors, groups = prior_groups(gpu), {}
    for name, changes in CUDNN_PRIORS.items():
        kinds = {"": (FRAMEWORK, changes), FLASH_ATTENTION: (FLASH_ATTENTION, {})}
        for library, (word, changed) in kinds.items():
            if library not in found:
                groups[f"{name}{BY}{word}"] = prior_section(name, priors[name] | changed)
    return groups


CUDNN_PRIORS: Final = {"attention.prefill": {"exponent": 1.5}, "attention.decode": {}}
"""Attention of cuDNN: its warps have separate tasks, so loads, products and exponentials partly overlap.  35 published times of an H100 and
11 of a B200 err by 17 and 16 % (benchmarks/published.py; were the power limit to act, 15 and 17), without overlap by 21 and 14 % (22 and
37), as FlashAttention-2 by 52 and 131 %."""


def _with_source(bundle: Bundle, source: TransferSource | None) -> Bundle:
    """Add the other GPU's power coefficients if no power was measured."""
    return bundle if source is None or bundle.power is not None else replace(bundle, power=source.power)


def _at_known_clocks(rows: KernelRows) -> KernelRows:
    """The rows without those at the power limit whose clock was not measured: it lay below the nominal one.

    Operators and precisions without other rows keep theirs.
    """
    known = ~rows.at_limit | np.isfinite(rows.sm_clock_mhz)
    section = np.array([section_key(operator) for operator in rows.operators])[rows.operator_index]
    return rows.select(known | ~np.isin(section, section[known]))


def _without(rows: KernelRows, rejected: tuple[RejectedRow, ...]) -> KernelRows:
    """The rows that the latency fit did not reject."""
    places = {(row.source, row.row) for row in rejected}
    keep = [(rows.sources[source], int(row)) not in places for source, row in zip(rows.source_index, rows.row, strict=True)]
    return rows.select(np.array(keep, dtype=np.bool_)) if places else rows


def _lent(measured: Coefficients) -> dict[str, dict[str, float]]:
    """Unmeasured memory groups with the coefficients that they share with element-wise kernels."""
    if DONOR not in measured:
        return {}
    lent = {name: value for name, value in measured[DONOR].items() if name in LENT}
    priors = prior_groups()
    return {group: priors[group] | lent for group in STREAM_GROUPS if group not in measured}


def _serving(start: Coefficients, fit: KernelFit, workloads: WorkloadRows) -> dict[str, dict[str, float]]:
    """The measured groups that kernels of the runs use; the runs do not determine the others.

    A matrix group that replaces an unmeasured number format is left out: its prior is nearer.
    """
    used = np.unique(workloads.workload_index)
    operators = {operator for i in used for operator in workloads.workloads[i].operators}
    formats = {(longest_prefix(group_key(operator), GROUP_PRIORS), operator.precision) for operator in operators}
    usable = {}
    for group, values in start.items():
        leaf = next((key for key, one in fit.groups.items() if key != group and one is fit.groups.get(group)), group)
        foreign = group in MATRIX_GROUPS and leaf != group and (group, group_words(leaf)[2]) not in formats
        if not foreign:
            usable[group] = dict(values)
    known = {*prior_groups(), *usable}
    serving = {longest_prefix(group_key(operator), known) for operator in operators}
    return {group: values for group, values in usable.items() if group in serving}


def _section(group: str, values: Mapping[str, float], fit: GroupFit | None) -> GroupCoefficients:
    """One group's coefficients; without a fit their uncertainty is that of their priors."""
    if fit is not None:
        spread = {name: std for name, std in fit.ln_std.items() if name in values}
        known = {name: decided for name, decided in fit.identified.items() if name in values}
        return GroupCoefficients(coefficients=dict(values), ln_std=spread, identified=known, rows=fit.rows)
    return prior_section(group, values)


def _joined_groups(runs: Bundle, fit: KernelFit, served: Coefficients) -> dict[str, GroupCoefficients]:
    """Groups of a bundle from runs, with rows and spread of the measured kernels, and the measured groups that the runs do not use."""
    groups = dict(runs.groups)
    for key, one in fit.groups.items():
        if key in served:
            section = groups[key]
            alone = _section(key, section.coefficients, one)
            moved = {name: min(std, alone.ln_std.get(name, std)) for name, std in section.ln_std.items()}
            known = {name: decided or section.identified.get(name, False) for name, decided in alone.identified.items()}
            groups[key] = replace(section, ln_std={**alone.ln_std, **moved}, identified={**section.identified, **known}, rows=one.rows)
        elif key not in GROUP_PRIORS:
            groups[key] = _section(key, one.coefficients, one)
    return groups


def _covariance(fits: Mapping[str, GroupFit]) -> Covariance:
    """Covariance of the logarithms of the coefficients of families and operators; block diagonal, since groups are fitted one by one."""
    chosen = {group: fit for group, fit in fits.items() if group.count(".") < 2}  # family and operator; finer groups keep deviations
    names = tuple(f"{group}.{name}" for group, fit in chosen.items() for name in fit.names)
    matrix = block_diag(*(fit.covariance for fit in chosen.values())) if chosen else np.zeros((0, 0))
    return Covariance(names=names, covariance=as_rows(matrix))

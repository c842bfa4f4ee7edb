"""The bundle of a board whose instructions were measured: the section itself, and what else a bundle needs where nothing else was."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from estimator.bundles.content import Bundle, GroupCoefficients, HostCost, Provenance
from estimator.gpu import GpuSpec
from estimator.instructions.energies import LINKS, section_of
from estimator.instructions.links import links_document
from fitter.errors import CalibrationError
from fitter.export import gain_std
from fitter.instructions.energies import fit_instructions, fitted_rows
from fitter.instructions.links import link_energies
from fitter.latency import prior_groups
from fitter.priors import GROUP_PRIORS, HOST_LAUNCH
from fitter.rows import Selection


def instruction_section(selection: Selection, gpu: GpuSpec) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The section `instruction_energies` and a remark where rows are too few for a regression; empty without rows of generated kernels.

    Links and copies need no regression: they are there however few the other rows are.  Raises CalibrationError where rows are too few
    and nothing else was measured.
    """
    if selection.instructions is None:
        return {}, ()
    rows, gain = selection.instructions, gain_std(selection)
    links = link_energies(rows, gain)
    table = {LINKS: links_document(links)} if links else {}
    if all(row.link for row in rows.rows):
        return table, ()
    try:
        return section_of(fit_instructions(rows, gpu, gain)) | table, ()
    except CalibrationError as error:
        if not links and selection.kernels is None and selection.workloads is None and selection.blocks is None:
            raise
        return table, (f"no instruction energies: {error}",)


def instruction_notes(selection: Selection, gpu: GpuSpec) -> tuple[str, ...]:
    """Runs of generated kernels that the regression does not take, and those without what it would like to have, counted."""
    rows = selection.instructions
    if rows is None:
        return ()
    taken = fitted_rows(rows, gpu)
    left: dict[str, int] = {}
    for row, fitted in zip(rows.rows, taken, strict=True):
        if not fitted:
            reason = (
                "over a link"
                if row.link
                else "on one thread"
                if row.mode == "single"
                else "throttled"
                if row.random
                else "on data that are not random"
            )
            left[reason] = left.get(reason, 0) + 1
    remarks = []
    if left:
        named = ", ".join(f"{count} {reason}" for reason, count in left.items())
        remarks.append(f"{sum(left.values())} of {len(rows)} runs of generated kernels are not in the regression: {named}")
    for column, meaning in LIKED.items():
        missing = int(np.isnan(rows.select(taken).column(column)).sum())
        if missing:
            remarks.append(f"{missing} runs of generated kernels have no {meaning}")
    return tuple(remarks)


LIKED: Final = {
    "idle_w": "power at rest before them (idle_before_w); that of the others at the same clock is taken",
    "temperature_c": "temperature (temperature_c); that of the rests is taken",
    "power_std_w": "standard error of their power (power_std_w); 1 W is taken",
}
"""Columns whose absence is made up for, and by what."""


def _at_priors(group: str, values: Mapping[str, float]) -> GroupCoefficients:
    """A group that no row was measured of, as uncertain as its priors."""
    widths = {name: prior.width for name, prior in GROUP_PRIORS[group].items() if name in values}
    return GroupCoefficients(coefficients=dict(values), ln_std=widths, identified=dict.fromkeys(widths, False))


def prior_bundle(gpu: GpuSpec) -> Bundle:
    """A bundle in which nothing was measured yet: latency from priors, no power."""
    return Bundle(
        name="draft",
        version="0.0.0",
        gpu=gpu,
        provenance=Provenance(created_utc="", wattprint_version="", commit="", seed=0),
        host=HostCost(launch_s=HOST_LAUNCH.centre, launch_ln_std=HOST_LAUNCH.width, source="assumed: no run of a whole workload shows it"),
        groups={group: _at_priors(group, values) for group, values in prior_groups(gpu).items()},
        clocks_mhz=(gpu.sm_clock_max_mhz, gpu.sm_clock_max_mhz),
    )

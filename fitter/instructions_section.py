"""The bundle of a board whose instructions were measured: the section itself, and what else a bundle needs where nothing else was."""

from collections.abc import Mapping
from typing import Any

from estimator.bundle_content import Bundle, GroupCoefficients, HostCost, Provenance
from estimator.gpu import GpuSpec
from estimator.instructions import section_of
from fitter.errors import CalibrationError
from fitter.export import gain_std
from fitter.instructions import fit_instructions
from fitter.latency import prior_groups
from fitter.priors import GROUP_PRIORS, HOST_LAUNCH
from fitter.rows import Selection


def instruction_section(selection: Selection, gpu: GpuSpec) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The section `instruction_energies` and a remark where rows are too few beside others; empty without rows of generated kernels.

    Raises CalibrationError where they are too few and nothing else was measured.
    """
    if selection.instructions is None:
        return {}, ()
    try:
        return section_of(fit_instructions(selection.instructions, gpu, gain_std(selection))), ()
    except CalibrationError as error:
        if selection.kernels is None and selection.workloads is None:
            raise
        return {}, (f"no instruction energies: {error}",)


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

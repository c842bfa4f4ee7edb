"""The bundle of a board with measured instructions: the section, and the other parts of a bundle that has no other measurements."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from estimator.bundle.content import Bundle, HeldOut
from estimator.counts.energies import LINKS, LinkEnergy, energies_from_section, links_document, section_of
from estimator.vocabulary.errors import BundleError
from estimator.vocabulary.gpu import GpuSpec
from fitter.errors import CalibrationError
from fitter.instructions.energies import LEAST_POWER_STD_W, excess_power_w, fit_instructions, row_activity
from fitter.rows.columns import Selection
from fitter.rows.instruction_dataset import InstructionRow, InstructionRows, at_level
from fitter.validate.predictions import error_rows, unmeasured_rows


def instruction_section(selection: Selection, gpu: GpuSpec) -> tuple[dict[str, object], tuple[str, ...]]:
    """Section `instruction_energies`, and a remark if rows are too few for a regression; empty without rows of generated kernels.

    Links and copies need no regression, so they are always present.  Raises CalibrationError if rows are too few and nothing else was
    measured.
    """
    if selection.instructions is None:
        return {}, ()
    rows, gain = selection.instructions, selection.gain_std
    links = link_energies(rows, gain)
    table: dict[str, object] = {LINKS: links_document(links)} if links else {}
    if all(row.link for row in rows.rows):
        return table, ()
    try:
        return section_of(fit_instructions(rows, gpu, gain)) | table, ()
    except CalibrationError as error:
        if not links and selection.kernels is None and selection.workloads is None and selection.blocks is None:
            raise
        return table, (f"no instruction energies: {error}",)


ERROR_FAMILY: Final = "instruction"


def instruction_errors(bundle: Bundle, rows: InstructionRows) -> tuple[list[HeldOut], tuple[str, ...]]:
    """Errors of power by launch mode and level ("full.O3"), and a remark if a bundle cannot predict; rest and time are measured.

    Runs whose operands are not random are not compared: energies hold for random operands.  Raises BundleError for a damaged section,
    CalibrationError if no row has its power at rest.
    """
    energies = energies_from_section(bundle.instruction_energies, f"bundle {bundle.name}: instruction_energies")
    if energies is None:
        return [], ("the bundle has no instruction energies; runs of generated kernels are not compared",)
    own = rows.select(np.array([row.random and not row.link and row.gpu == bundle.gpu.name for row in rows.rows], dtype=np.bool_))
    if not len(own):
        return [], ("no run of generated kernels on random operands is of the bundle's GPU",)
    found, unknown = unmeasured_rows([(row.gpu, ERROR_FAMILY, at_level(row.mode, row.level), "–") for row in own.rows]), []
    found["measured_power"], (excess, _) = own.column("power_w"), excess_power_w(own)
    for i, row in enumerate(own.rows):
        kelvin = row.temperature_c - energies.temperature_c if np.isfinite(row.temperature_c + energies.temperature_c) else 0.0
        activity = replace(row_activity(row, bundle.gpu, kelvin), voltage_v=row.voltage_v, sm_clock_mhz=row.sm_clock_mhz)
        try:
            joule, std_j = energies.energy_j(activity)
        except BundleError as error:
            unknown.append(str(error))
            continue
        power = row.power_w - excess[i] + joule / row.latency_s
        std = np.hypot(std_j / row.latency_s, energies.scatter * excess[i])
        found.loc[i, ["predicted_power", "std_power"]] = power, std / power
    return error_rows(found), tuple(dict.fromkeys(unknown))


def link_energies(rows: InstructionRows, gain_std: float = 0.0) -> dict[str, LinkEnergy]:
    """Link energies by kernel at a level, or by copy.

    A run without its power at rest takes that of other runs at its clock; if no run has it, there is no energy.

    gain_std: relative standard deviation of the sensor's gain.
    """
    rests: dict[float, list[float]] = {}
    found: dict[str, list[InstructionRow]] = {}
    for row in rows.rows:
        if math.isfinite(row.idle_w):
            rests.setdefault(_clock(row), []).append(row.idle_w)
        if row.link and row.random:
            found.setdefault(row.build, []).append(row)
    return {name: _energy(own, rests, gain_std) for name, own in sorted(found.items())}


def _clock(row: InstructionRow) -> float:
    """The requested SM clock [MHz]; 0 without a request."""
    return 0.0 if math.isnan(row.asked_mhz) else row.asked_mhz


def _energy(rows: list[InstructionRow], rests: Mapping[float, list[float]], gain_std: float) -> LinkEnergy:
    """Mean energy over runs; a single run keeps the error of its power."""
    rate = float(np.mean([row.link_bytes / row.latency_s for row in rows]))
    known = []
    for row in rows:
        idle = [row.idle_w] if math.isfinite(row.idle_w) else rests.get(_clock(row), [])
        if idle:
            power_std = max(LEAST_POWER_STD_W, 0.0 if math.isnan(row.power_std_w) else row.power_std_w)
            known.append(np.array([row.power_w - np.mean(idle), math.hypot(power_std, np.std(idle))]) * row.latency_s / row.link_bytes)
    found = LinkEnergy(link=rows[0].link, bytes_per_s=rate, j_per_byte=math.nan, std_j=math.nan, runs=len(rows))
    if not known:
        return replace(found, why_unknown="no power at rest (idle_before_w) of these runs or of others at their clocks; set idle_s above 0")
    values, stds = np.array(known).T
    scatter = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    std = math.hypot(max(scatter, float(stds.mean())) / math.sqrt(len(values)), gain_std * abs(float(values.mean())))
    return replace(found, j_per_byte=float(values.mean()), std_j=std)

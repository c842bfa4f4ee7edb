"""The bundle of a board with measured instructions: the section, and the other parts of a bundle that has no other measurements."""

import math
from dataclasses import replace
from typing import Final

import numpy as np
import pandas as pd

from estimator.bundle.content import Bundle, HeldOut
from estimator.counts.energies import LINKS, LinkEnergy, section_of
from estimator.vocabulary.errors import BundleError
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.reader import plain
from fitter.errors import CalibrationError
from fitter.instructions.display import bundle_energies
from fitter.instructions.energies import LEAST_POWER_STD_W, excess_power_w, fit_instructions, row_activity
from fitter.rows.columns import InstructionRows, Selection, at_level
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
    table: dict[str, object] = {LINKS: plain(links)} if links else {}
    if all(row.link for row in rows.rows):
        return table, ()
    try:
        return section_of(fit_instructions(rows, gpu, gain)) | table, ()
    except CalibrationError as error:
        if not links and len(selection.parts) == 1:
            raise
        return table, (f"no instruction energies: {error}",)


ERROR_FAMILY: Final = "instruction"


def instruction_errors(bundle: Bundle, rows: InstructionRows) -> tuple[list[HeldOut], tuple[str, ...]]:
    """Errors of power by launch mode and level ("full.O3"), and a remark if a bundle cannot predict; rest and time are measured.

    Runs whose operands are not random are not compared: energies hold for random operands.  Raises BundleError for a damaged section,
    CalibrationError if no row has its power at rest.
    """
    energies = bundle_energies(bundle)
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
    """Mean link energies by kernel at a level, or by copy; a single run keeps the error of its power.

    A run without its power at rest takes that of other runs at its clock; if no run has it, there is no energy.

    gain_std: relative standard deviation of the sensor's gain.
    """
    names = ["build", "link", "random", "link_bytes", "latency_s", "power_w", "power_std_w", "idle_w", "asked_mhz"]
    frame = pd.DataFrame([[getattr(row, name) for name in names] for row in rows.rows], columns=names)
    rests, alone = frame.groupby(frame["asked_mhz"].fillna(0.0))["idle_w"], frame["idle_w"].isna()
    frame["idle_std_w"] = rests.transform("std", ddof=0).where(alone, 0.0)
    frame["idle_w"] = frame["idle_w"].fillna(rests.transform("mean"))
    frame = frame[frame["random"] & (frame["link"] != "")]
    frame["byte_s"] = frame["latency_s"] / frame["link_bytes"]
    frame["joule"] = (frame["power_w"] - frame["idle_w"]) * frame["byte_s"]
    power_std = frame["power_std_w"].fillna(0.0).clip(lower=LEAST_POWER_STD_W)
    frame["std"] = np.hypot(power_std, frame["idle_std_w"]) * frame["byte_s"]
    found = {}
    for name, own in frame.groupby("build"):
        known = own.dropna(subset="joule")
        mean, scatter = float(known["joule"].mean()), float(known["joule"].std()) if len(known) > 1 else 0.0
        std = max(scatter, float(known["std"].mean())) / math.sqrt(max(len(known), 1))
        found[str(name)] = LinkEnergy(
            link=own["link"].iloc[0],
            bytes_per_s=float((1.0 / own["byte_s"]).mean()),
            j_per_byte=mean,
            std_j=math.hypot(std, gain_std * mean) if len(known) else math.nan,
            runs=len(own),
            why_unknown="" if len(known) else "no power at rest (idle_before_w) of these runs or of others at their clocks",
        )
    return found

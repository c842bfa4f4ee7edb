"""Instruction energies of a bundle against runs of generated kernels that it has not seen."""

from dataclasses import replace
from typing import Final

import numpy as np

from estimator.bundles.content import Bundle
from estimator.errors import BundleError
from estimator.instructions.energies import energies_from_section
from fitter.instructions.data import InstructionRows, at_level
from fitter.instructions.energies import excess_power_w, row_activity
from fitter.validation import ErrorRow, errors_of

FAMILY: Final = "instruction"


def instruction_errors(bundle: Bundle, rows: InstructionRows) -> tuple[list[ErrorRow], tuple[str, ...]]:
    """Errors of power by launch mode and level ("full.O3"), and a remark where a bundle cannot predict; rest and time are as measured.

    Runs of operands that are not random are not compared: energies hold for random ones.  Raises BundleError for a damaged section,
    CalibrationError where no row has its power at rest.
    """
    energies = energies_from_section(bundle.instruction_energies, f"bundle {bundle.name}: instruction_energies")
    if energies is None:
        return [], ("the bundle has no instruction energies; runs of generated kernels are not compared",)
    own = rows.select(np.array([row.random and not row.link and row.gpu == bundle.gpu.name for row in rows.rows], dtype=np.bool_))
    if not len(own):
        return [], ("no run of generated kernels on random operands is of the bundle's GPU",)
    excess, _ = excess_power_w(own)
    measured = own.column("power_w")
    predicted, std = np.full(len(own), np.nan), np.full(len(own), np.nan)
    unknown: dict[str, None] = {}
    for i, row in enumerate(own.rows):
        kelvin = row.temperature_c - energies.temperature_c if np.isfinite(row.temperature_c + energies.temperature_c) else 0.0
        activity = replace(row_activity(row, bundle.gpu, kelvin), voltage_v=row.voltage_v, sm_clock_mhz=row.sm_clock_mhz)
        try:
            joule, joule_std = energies.energy_j(activity)
        except BundleError as error:
            unknown[str(error)] = None
            continue
        predicted[i] = measured[i] - excess[i] + joule / row.latency_s
        std[i] = np.hypot(joule_std / row.latency_s, energies.scatter * excess[i])
    found = []
    ways = [at_level(row.mode, row.level) for row in own.rows]
    for way in dict.fromkeys(ways):
        chosen = np.array([one == way for one in ways], dtype=np.bool_)
        power = errors_of(measured[chosen], predicted[chosen], (std / predicted)[chosen])
        count = int(chosen.sum())
        found.append(ErrorRow(gpu=bundle.gpu.name, family=FAMILY, operator=way, precision="–", n=count, latency=None, power=power))
    return found, tuple(unknown)

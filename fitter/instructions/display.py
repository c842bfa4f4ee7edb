"""Tables of instruction energies in `fit show` and in the report."""

import math
from typing import Any, Final

from estimator.bundle.content import Bundle
from estimator.counts.energies import (
    CONSTANT,
    HEAT,
    ISSUE,
    LOOP,
    PUBLISHED_FLAG,
    STALL,
    InstructionEnergies,
    energies_from_section,
    measured_links,
)
from estimator.display.pages import Shown
from fitter.instructions.ptx import PUBLISHED_MODES, UNDECIDED
from fitter.instructions.published import level_ratio
from fitter.power.solver import PICO

BOARD_TERMS: Final = (
    (CONSTANT, "constant power beyond rest", "W", 1.0),
    (HEAT, "and for each kelvin", "W/K", 1.0),
    (STALL, "stalled issue slot", "pJ", PICO),
    (ISSUE, "instruction issued to a warp", "pJ", PICO),
    (LOOP, "loop control, a turn", "pJ", PICO),
)
"""Terms that do not depend on the instructions."""


def bundle_energies(bundle: Bundle) -> InstructionEnergies | None:
    """The instruction energies of a bundle, None if it has no energies (or only links).  Raises BundleError for a damaged section."""
    return energies_from_section(bundle.instruction_energies, f"bundle {bundle.name}: instruction_energies")


def instruction_tables(bundle: Bundle) -> list[Shown]:
    """Tables of energies of instructions, transactions, PTX instructions and links; empty if the bundle has no energies."""
    energies = bundle_energies(bundle)
    links = _link_table(bundle)
    if energies is None:
        return [links]
    section = bundle.instruction_energies
    rows = []
    for term, name, unit, scale in BOARD_TERMS:
        value, std = energies.term(term)
        if math.isfinite(value):
            decided = energies.identified[energies.terms.index(term)]
            rows.append((name, value / scale, std / scale, unit, "" if decided else UNDECIDED))
    for name, one in section["instructions"].items():
        rows.append((name, one["epi_j"] / PICO, one["std_j"] / PICO, "pJ", one.get("low_confidence", "")))
    hops = section["transactions"].items()
    rows += [(f"{level}, a transaction of {one['bytes']} byte", one["ept_j"] / PICO, one["std_j"] / PICO, "pJ", "") for level, one in hops]
    volt = "unknown voltage" if math.isnan(energies.reference_voltage_v) else f"{energies.reference_voltage_v:.4g} V"
    warm = "" if math.isnan(energies.temperature_c) else f", {energies.temperature_c:.0f} °C"
    point = f"{energies.reference_clock_mhz:g} MHz, {volt}{warm}"
    title = f"Instruction energies at {point} from {energies.rows} runs ({energies.assembler}); per thread of a full warp, issue included"
    return [Shown(title=title, head=("what", "energy", "± std", "unit", "of low confidence"), rows=rows), _ptx_table(energies), links]


def _ptx_table(energies: InstructionEnergies) -> Shown:
    """Table of PTX instructions with their energies, the published formula's figures, and the reasons for missing ones."""
    rows: list[list[Any]] = []
    for name, one in energies.ptx.items():
        figures = [one.published_j.get(f"{mode}.mtsm", math.nan) / PICO for mode in PUBLISHED_MODES]
        published = ["–" if math.isnan(j) else f"{j:.4g}" for j in figures]
        known = math.isfinite(one.energy_j)
        energy = [f"{j / PICO:.4g}" if known else "unknown" for j in (one.energy_j, one.std_j)]
        companions = "with companions" if one.companions else ""
        ratio = level_ratio(energies, name.removesuffix(f".{one.level}")) if one.level == "O0" else math.nan
        rows.append([name, one.instruction, *energy, ratio, *published, "; ".join(filter(None, (companions, one.low_confidence)))])
    heads = ("kernel", "PTX instruction", "pJ", "± std", "O0 / O3", "published, whole GPU", "published, one thread", "of low confidence")
    return Shown(
        title=f"PTX instructions, by thread; beside them the published difference formula ({PUBLISHED_FLAG})", head=heads, rows=rows
    )


def _link_table(bundle: Bundle) -> Shown:
    """Table of rates and energies of links and copies."""
    links = measured_links(bundle.instruction_energies, f"bundle {bundle.name}: instruction_energies")
    rows = [
        (name, link.link, link.bytes_per_s / 1e9, link.j_per_byte / PICO, link.std_j / PICO, link.runs, link.why_unknown)
        for name, link in links.items()
    ]
    head = ("what", "link", "GB/s", "pJ/byte beyond rest", "± std", "runs", "not known because")
    return Shown(title="Data over a link, and copies", head=head, rows=rows)

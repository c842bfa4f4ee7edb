"""Instruction energies for people: lines of `fit show`, a section of the report, and the chart of the published formula's bias."""

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from estimator.bundles.content import Bundle
from estimator.display.charts import Series, axis_over, scatter_svg
from estimator.display.pages import figure_html, table_html
from estimator.instructions.energies import (
    CONSTANT,
    HEAT,
    ISSUE,
    LINKS,
    LOOP,
    PUBLISHED_FLAG,
    STALL,
    InstructionEnergies,
    energies_from_section,
)
from estimator.instructions.links import LinkEnergy, links_from_document
from fitter.instructions.ptx import PUBLISHED_MODES
from fitter.instructions.published import sampling_errors
from fitter.rows.instruction_rows import SAMPLING

PICO: Final = 1e-12
GIGA: Final = 1e9
LOW_CONFIDENCE: Final = " *"


def bundle_energies(bundle: Bundle) -> InstructionEnergies | None:
    """The instruction energies of a bundle, None where it has none (or only links).  Raises BundleError for a damaged section."""
    return energies_from_section(bundle.instruction_energies, f"bundle {bundle.name}: instruction_energies")


def instruction_lines(bundle: Bundle) -> list[str]:
    """What `fit show` says of instruction energies; nothing where a bundle has none."""
    energies = bundle_energies(bundle)
    if energies is None:
        return _link_lines(bundle)
    section = bundle.instruction_energies
    lines = [f"instruction energies at {_point(energies)} from {energies.rows} runs ({energies.assembler})"]
    lines += [f"    {name:28} {value:10.4g} ± {std:.2g} {unit}{mark}" for name, value, std, unit, mark in _board_terms(energies)]
    lines.append("  per instruction and thread of a full warp, issue included (* of low confidence, reasons below)")
    for name, entry in section["instructions"].items():
        lines.append(f"    {name:28} {entry['epi_j'] / PICO:10.4g} ± {entry['std_j'] / PICO:.2g} pJ{_mark(_doubt(entry))}")
    lines += _doubt_lines({name: _doubt(entry) for name, entry in section["instructions"].items()})
    if section["transactions"]:
        lines.append("  per transaction of one hop")
    for level, entry in section["transactions"].items():
        bits = f"{entry['pj_per_bit']:.3g} pJ/bit"
        lines.append(f"    {level:28} {entry['ept_j'] / PICO:10.4g} ± {entry['std_j'] / PICO:.2g} pJ for {entry['bytes']} byte, {bits}")
    return lines + _link_lines(bundle) + _ptx_lines(energies)


def _doubt(entry: Mapping[str, Any]) -> str:
    """Why a class's energy is of low confidence; bundles of old releases say only whether the data set it."""
    return str(entry.get("low_confidence", "" if entry["identified"] else "not decided by the runs"))


def _mark(doubt: str) -> str:
    return LOW_CONFIDENCE if doubt else ""


def _doubt_lines(doubts: Mapping[str, str]) -> list[str]:
    """The reasons, each with the classes that it is of."""
    by_reason: dict[str, list[str]] = {}
    for name, doubt in doubts.items():
        if doubt:
            by_reason.setdefault(doubt, []).append(name)
    return [f"     * {reason}: {', '.join(names)}" for reason, names in by_reason.items()]


def _ptx_lines(energies: InstructionEnergies) -> list[str]:
    """A line for each PTX row, and beneath why figures are missing."""
    lines = [
        f"  per PTX instruction by level and thread (* of low confidence); beside it the published difference ({PUBLISHED_FLAG}), "
        f"whole GPU / one thread"
    ]
    notes: dict[str, int] = {}
    for name, one in energies.ptx.items():
        figures = []
        for mode in PUBLISHED_MODES:
            joule = one.published_j.get(f"{mode}.mtsm", math.nan)
            reason = one.unpublished.get(mode, "")
            note = f" [{notes.setdefault(reason, len(notes) + 1)}]" if math.isnan(joule) and reason else ""
            figures.append("–" + note if math.isnan(joule) else f"{joule / PICO:.4g} pJ")
        companions = " with companions" if one.companions else ""
        energy = "   unknown" if math.isnan(one.energy_j) else f"{one.energy_j / PICO:9.4g} ± {one.std_j / PICO:.2g} pJ"
        lines.append(f"    {name:20} {one.instruction:28} {energy}{_mark(one.low_confidence)}   {' / '.join(figures)}{companions}")
        if math.isnan(one.energy_j):
            lines.append(f"     * {one.low_confidence}")
    lines += [f"     [{number}] {reason}; a campaign runs it with modes = [{reason.split()[-1]!r}]" if reason.split()[-1] in PUBLISHED_MODES
              else f"     [{number}] {reason}" for reason, number in notes.items()]  # fmt: skip
    against = sampling_errors(energies)
    lines += ["  ways of sampling against corrected energies, by the published formula"] if against else []
    return [*lines, *(f"    {one.text}" for one in against)]


def _links(bundle: Bundle) -> dict[str, LinkEnergy]:
    return links_from_document(bundle.instruction_energies.get(LINKS, {}), f"bundle {bundle.name}: instruction_energies.{LINKS}")


def _link_lines(bundle: Bundle) -> list[str]:
    lines = []
    for name, link in _links(bundle).items():
        known = f"{link.j_per_byte / PICO:.4g} ± {link.std_j / PICO:.2g} pJ/byte"
        energy = f"energy not known: {link.why_unknown}" if math.isnan(link.j_per_byte) else known
        lines.append(f"    {name:28} {link.bytes_per_s / GIGA:10.4g} GB/s, {energy}")
    return ["  data over a link, and copies: rate, and energy beyond rest", *lines] if lines else []


def _point(energies: InstructionEnergies) -> str:
    voltage = "unknown voltage" if math.isnan(energies.reference_voltage_v) else f"{energies.reference_voltage_v:.4g} V"
    warmth = "" if math.isnan(energies.temperature_c) else f", {energies.temperature_c:.0f} °C"
    return f"{energies.reference_clock_mhz:g} MHz, {voltage}{warmth}"


def _board_terms(energies: InstructionEnergies) -> list[tuple[str, float, float, str, str]]:
    """What is there whatever runs: name, value, standard deviation, unit, and a mark where the runs do not decide it."""
    described = (
        (CONSTANT, "constant power beyond rest", "W", 1.0),
        (HEAT, "and for each kelvin", "W/K", 1.0),
        (STALL, "stalled issue slot", "pJ", PICO),
        (ISSUE, "instruction issued to a warp", "pJ", PICO),
        (LOOP, "loop control, a turn", "pJ", PICO),
    )
    found = []
    for term, name, unit, scale in described:
        value, std = energies.term(term)
        if math.isfinite(value):
            decided = energies.identified[energies.terms.index(term)]
            found.append((name, value / scale, std / scale, unit, "" if decided else LOW_CONFIDENCE))
    return found


def bias_svg(energies: InstructionEnergies) -> str:
    """The published difference over the energy by regression of every PTX row, whole GPU and one thread; "" without any."""
    modes = (("full", "whole GPU"), ("single", "one thread, published"))
    series = [_points(energies, name, f"{mode}.mtsm", relative=False) for mode, name in modes]
    series = [part for part in series if len(part.x)]
    if not series:
        return ""
    x = axis_over("energy of a PTX instruction by regression [pJ]", [part.x for part in series], logarithmic=True)
    y = axis_over("by the published difference [pJ]", [values for part in series for values in (part.x, part.y)], logarithmic=True)
    text = "Points above the line hold static power that the published formula leaves in the energy of an instruction."
    return scatter_svg("Bias of the published formula", text, series, x, y, diagonal=True)


def sampling_svg(energies: InstructionEnergies) -> str:
    """The published difference over the regression, by way of sampling, the whole GPU at work; "" without any."""
    series = [_points(energies, method.upper(), f"full.{method}", relative=True) for method in SAMPLING]
    series = [part for part in series if len(part.x)]
    if not series:
        return ""
    x = axis_over("energy of a PTX instruction by regression [pJ]", [part.x for part in series], logarithmic=True)
    y = axis_over("published difference over regression [1]", [part.y for part in series], logarithmic=False)
    text = "One is no bias; the three ways differ by the readings that they take."
    return scatter_svg("Ways of sampling", text, series, x, y, diagonal=False)


def _points(energies: InstructionEnergies, name: str, key: str, *, relative: bool) -> Series:
    """Regression and published difference of the PTX rows that have both, in pJ, or the difference relative to the regression."""
    pairs = [(one.energy_j, one.published_j.get(key, math.nan)) for one in energies.ptx.values()]
    kept = np.array([pair for pair in pairs if pair[0] > 0 and pair[1] > 0]).reshape(-1, 2)
    return Series(name=name, x=kept[:, 0] / PICO, y=kept[:, 1] / (kept[:, 0] if relative else PICO))


def instruction_html(bundle: Bundle) -> str:
    """The report's section on instruction energies; "" where the bundle has none."""
    energies = bundle_energies(bundle)
    if energies is None:
        return _link_table(bundle)
    section = bundle.instruction_energies
    rows = [[name, value, std, unit, "not decided by the runs" if mark else ""] for name, value, std, unit, mark in _board_terms(energies)]
    rows += [[name, entry["epi_j"] / PICO, entry["std_j"] / PICO, "pJ", _doubt(entry)] for name, entry in section["instructions"].items()]
    rows += [
        [f"{level}, {entry['bytes']} byte", entry["ept_j"] / PICO, entry["std_j"] / PICO, "pJ", ""]
        for level, entry in section["transactions"].items()
    ]
    heads = ("what", "energy", "± std", "unit", "of low confidence")
    table = table_html(f"Instruction energies at {_point(energies)}", heads, rows) + _ptx_table(energies) + _link_table(bundle)
    captions = (
        (bias_svg(energies), f"The published difference formula against the regression ({PUBLISHED_FLAG}); on the line both agree."),
        (sampling_svg(energies), "The same formula on the whole GPU, with the readings of three published ways of sampling."),
    )
    figures = "".join(figure_html(chart, caption) for chart, caption in captions if chart)
    return table + (f'<div class="charts">{figures}</div>' if figures else "")


def _ptx_table(energies: InstructionEnergies) -> str:
    """PTX instructions with their energies, the published formula's figures, and why some are missing."""
    rows = []
    for name, one in energies.ptx.items():
        known = math.isfinite(one.energy_j)
        figures = [one.published_j.get(f"{mode}.mtsm", math.nan) for mode in PUBLISHED_MODES]
        published = [
            one.unpublished.get(mode, "–") if math.isnan(j) else j / PICO for mode, j in zip(PUBLISHED_MODES, figures, strict=True)
        ]
        energy = [one.energy_j / PICO, one.std_j / PICO] if known else ["unknown", "unknown"]
        rows.append([name, one.instruction, *energy, *published, one.low_confidence])
    heads = ("kernel", "PTX instruction", "pJ", "± std", "published, whole GPU", "published, one thread", "of low confidence")
    title = f"PTX instructions, by thread; beside them the published difference formula ({PUBLISHED_FLAG})"
    return table_html(title, heads, rows) if rows else ""


def _link_table(bundle: Bundle) -> str:
    """Rates and energies of links and copies; "" without any."""
    rows = [
        [name, link.link, link.bytes_per_s / GIGA, link.why_unknown or "–" if math.isnan(link.j_per_byte) else link.j_per_byte / PICO,
         "–" if math.isnan(link.std_j) else link.std_j / PICO, link.runs]
        for name, link in _links(bundle).items()
    ]  # fmt: skip
    return (
        table_html("Data over a link, and copies", ("what", "link", "GB/s", "pJ/byte beyond rest", "± std", "runs"), rows) if rows else ""
    )

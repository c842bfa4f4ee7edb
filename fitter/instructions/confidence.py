"""Which energies of classes are of low confidence, and why: what the rows say of each, beside its stated error."""

import math
from collections.abc import Mapping
from typing import Final

from estimator.counts.energies import INSTRUCTION, InstructionEnergies
from estimator.counts.opcodes import RARE, loop_classes
from fitter.rows.instruction_dataset import InstructionRows

OWN_SHARE: Final = 0.12
"""Share of some measured body from which on a class of instructions has an energy of its own; below it is one of the rare."""

LARGEST_ERROR: Final = 0.25
"""A standard deviation of a larger share of an energy says little more than its order of magnitude [relative]."""


def shares_of_bodies(rows: InstructionRows) -> dict[str, list[float]]:
    """By class, its share of the issued instructions of every run that has it."""
    found: dict[str, list[float]] = {}
    for row in rows.rows:
        classes, issued = loop_classes(row.body)
        for name, count in classes.items():
            found.setdefault(name, []).append(count / issued)
    return found


def doubts_of(energies: InstructionEnergies, rows: InstructionRows) -> dict[str, str]:
    """By class, why its energy is of low confidence; nothing of those that are not.  `rows` are those of the regression."""
    shares = shares_of_bodies(rows)
    lumped = [name for name in shares if name not in energies.classes]
    found = {}
    for name in energies.classes:
        reason = _of_rare(lumped) if name == RARE else _reason(energies, name, shares.get(name, []))
        if reason:
            found[name] = reason
    return found


def _of_rare(lumped: list[str]) -> str:
    more = f" and {len(lumped) - 4} more" if len(lumped) > 4 else ""
    return f"one figure for {', '.join(sorted(lumped)[:4])}{more}, which no run is made of"


def _reason(energies: InstructionEnergies, name: str, shares: list[float]) -> str:
    term = energies.terms.index(INSTRUCTION + name)
    value, std = energies.epi_j(name)
    if not energies.identified[term]:
        return "not decided by the runs"
    if not energies.values[term] > 0:
        return "at the bound of 0 beside its issue"
    if std > LARGEST_ERROR * value:
        return f"its error is more than {LARGEST_ERROR:.0%} of it"
    runs = sum(share >= OWN_SHARE for share in shares)
    if runs < 2:
        return "one run is made of it, so that nothing checks it"
    return ""


def doubt_of_classes(energies: InstructionEnergies, classes: Mapping[str, float]) -> str:
    """Why the energy of instructions of several classes is of low confidence: by those that are OWN_SHARE of it, or have none."""
    joules = {}
    for name, count in classes.items():
        price = energies.price(name)
        joules[name] = count * price.factor * energies.term(INSTRUCTION + price.name)[0] if price.name else math.inf
    least = OWN_SHARE * sum(joule for joule in joules.values() if math.isfinite(joule))
    doubts = {name: energies.doubt(name) for name, joule in joules.items() if joule >= least}
    return "; ".join(f"{name}: {doubt}" for name, doubt in doubts.items() if doubt)

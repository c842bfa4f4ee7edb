"""Instruction classes whose energies have low confidence, with the reasons: from the rows and from the stated errors."""

import math
from collections.abc import Mapping
from typing import Final

from estimator.counts.energies import INSTRUCTION, InstructionEnergies
from estimator.counts.opcodes import RARE, loop_classes
from fitter.rows.columns import InstructionRows

OWN_SHARE: Final = 0.12
"""A class has an energy of its own if it makes up at least this share of some measured body; otherwise it is a rare class."""

LARGEST_ERROR: Final = 0.25
"""Largest relative standard deviation of an energy with normal confidence; beyond it only the order of magnitude is known."""

UNDECIDED: Final = "not decided by the runs"


def shares_of_bodies(rows: InstructionRows) -> dict[str, list[float]]:
    """Shares of each class in the issued instructions of the runs that contain it, by class."""
    found: dict[str, list[float]] = {}
    for row in rows.rows:
        classes, issued = loop_classes(row.body)
        for name, count in classes.items():
            found.setdefault(name, []).append(count / issued)
    return found


def doubts_of(energies: InstructionEnergies, rows: InstructionRows) -> dict[str, str]:
    """Reasons for low confidence by class; other classes are absent.  `rows` are those of the regression."""
    shares = shares_of_bodies(rows)
    reasons = {name: _reason(energies, name, shares.get(name, [])) for name in energies.classes}
    return {name: reason for name, reason in reasons.items() if reason}


def _reason(energies: InstructionEnergies, name: str, shares: list[float]) -> str:
    if name == RARE:
        return "one figure for all classes that no run is made of"
    term = energies.terms.index(INSTRUCTION + name)
    value, std = energies.epi_j(name)
    if not energies.identified[term]:
        return UNDECIDED
    if not energies.values[term] > 0:
        return "at the bound of 0 beside its issue"
    if std > LARGEST_ERROR * value:
        return f"its error is more than {LARGEST_ERROR:.0%} of it"
    return "one run is made of it, so that nothing checks it" if sum(share >= OWN_SHARE for share in shares) < 2 else ""


def doubt_of_classes(energies: InstructionEnergies, classes: Mapping[str, float]) -> str:
    """Reason for low confidence of instructions of several classes: from classes with OWN_SHARE of the energy, or without an energy."""
    joules = {}
    for name, count in classes.items():
        price = energies.price(name)
        joules[name] = count * price.factor * energies.term(INSTRUCTION + price.name)[0] if price.name else math.inf
    least = OWN_SHARE * sum(joule for joule in joules.values() if math.isfinite(joule))
    doubts = {name: energies.doubt(name) for name, joule in joules.items() if joule >= least}
    return "; ".join(f"{name}: {doubt}" for name, doubt in doubts.items() if doubt)

"""PTX rows: energy of each PTX instruction from its machine instructions, and from the published formula; classes of low confidence.

The reasons for low confidence come from the rows and from the stated errors.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from estimator.counts.energies import INSTRUCTION, PUBLISHED_FLAG, Expansion, InstructionEnergies
from estimator.counts.opcodes import RARE, loop_classes
from estimator.vocabulary.errors import BundleError
from estimator.vocabulary.frozen import FrozenMapping
from fitter.rows.columns import InstructionRow, InstructionRows, at_level
from fitter.rows.instruction_dataset import SAMPLING

OVERHEAD: Final = "empty_loop"
"""Kernel whose energy the published formula subtracts."""

PUBLISHED_MODES: Final = ("full", "single")
"""Launch modes in which the published formula is evaluated: the whole GPU, and one thread as published."""

VARIANT: Final = re.compile(r"_k\d+_u\d+$")
"""Chains and unroll in a kernel's name; the best measured variant represents an instruction."""

MODIFIERS: Final = frozenset({"rn", "ftz", "lo"})
"""Modifiers of PTX instructions that do not change the machine instruction's class."""

BITWISE: Final = frozenset({"and.b32", "or.b32", "xor.b32", "not.b32"})
"""Bitwise instructions; all become the machine instruction of `lop3.b32`."""

Parts = dict[str, float]


def ptx_rows(energies: InstructionEnergies, rows: InstructionRows) -> InstructionEnergies:
    """Add a row for every kernel that prices a PTX instruction on registers, at each of its optimisation levels."""
    builds = {row.build: row for row in rows.rows if _on_registers(row) and row.kernel != OVERHEAD and row.instruction}
    pure: dict[tuple[str, str], tuple[Parts, float]] = {}
    for row in sorted(builds.values(), key=lambda row: -row.unroll):
        if len(row.operations) == 1:
            name, count = next(iter(row.operations.items()))
            pure.setdefault((_plain(name), row.level), _divided(row.body, count))
    published = published_differences(rows)
    found: dict[str, Expansion] = {}
    for build, row in sorted(builds.items(), key=lambda item: (len(published.get(item[0], {})), item[1].unroll)):
        classes, issued, companions = _own_share(row, pure)
        value, std, doubt = _price(energies, classes, issued)
        found[at_level(VARIANT.sub("", row.kernel), row.level)] = Expansion(
            instruction=row.instruction,
            level=row.level,
            classes=FrozenMapping(classes),
            issued=issued,
            energy_j=value,
            std_j=std,
            companions=companions,
            low_confidence=doubt,
            published_j=FrozenMapping(published.get(build, {})),
            published_flag=PUBLISHED_FLAG if published.get(build) else "",
        )
    return replace(energies, ptx=FrozenMapping(dict(sorted(found.items()))))


def _price(energies: InstructionEnergies, classes: Parts, issued: float) -> tuple[float, float, str]:
    """Energy of a PTX instruction by thread, its standard deviation [J], and the reason for low confidence; nan if unknown."""
    doubt = doubt_of_classes(energies, classes)
    try:
        return *energies.per_thread_j(classes, issued), doubt
    except BundleError as error:
        return math.nan, math.nan, doubt or str(error)


def _on_registers(row: InstructionRow) -> bool:
    """Whether a kernel accesses no memory in its loop."""
    return not row.link and not any(row.transactions.values())


def _plain(name: str) -> str:
    """A PTX instruction without MODIFIERS."""
    return "lop3.b32" if name in BITWISE else ".".join(word for word in name.split(".") if word not in MODIFIERS)


def priced_operations(row: InstructionRow) -> tuple[frozenset[str], float]:
    """PTX instructions that a kernel prices together, and their number in one turn of the loop.

    The named one, else the most frequent.  If these are fewer than the kernel's operations, others alternate with it
    (minimum and maximum, addition and subtraction, the links of a carry chain); the most frequent are added first.
    """
    counts = row.operations
    first = row.instruction if row.instruction in counts else max(counts, key=lambda one: counts[one])
    names, total = {first}, counts[first]
    for other in sorted(counts, key=lambda one: -counts[one]):
        if other not in names and total + counts[other] <= row.unroll:
            names.add(other)
            total += counts[other]
    return frozenset(names), total


def _divided(body: Mapping[str, float], count: float) -> tuple[Parts, float]:
    """Classes and issued instructions for one operation, without the loop's control."""
    classes, issued = loop_classes(body)
    control = issued - sum(classes.values())
    loop = min(control, 3.0)
    return {name: number / count for name, number in classes.items()}, (issued - loop) / count


def _own_share(row: InstructionRow, pure: Mapping[tuple[str, str], tuple[Parts, float]]) -> tuple[Parts, float, bool]:
    """Classes and issue of one priced instruction without its companions, and whether some companions remain."""
    names, count = priced_operations(row)
    classes, issued = _divided(row.body, 1.0)
    companions = False
    for other, times in row.operations.items():
        if other in names:
            continue
        if (_plain(other), row.level) not in pure:
            companions = True
            continue
        parts, slots = pure[_plain(other), row.level]
        for part, number in parts.items():
            classes[part] = max(0.0, classes.get(part, 0.0) - number * times)
        issued = max(0.0, issued - slots * times)
    left = {part: number / count for part, number in classes.items() if number > 0}
    if not left and classes:  # the assembler merged it with its companions
        whole, slots = _divided(row.body, count)
        return whole, slots, True
    return left, issued / count, companions


def published_differences(rows: InstructionRows) -> dict[str, Parts]:
    """(E_total − E_overhead) / n by kernel with its level, then by launch mode and way of sampling [J a thread's instruction].

    Both energies are power times time without power at rest.  Their times differ, so the static energy of the time difference remains.
    Source: Arafa et al. (arXiv 2002.07795), eq. 1.
    """
    empty = {(row.mode, row.level): row for row in reversed(rows.rows) if row.kernel == OVERHEAD}
    found: dict[str, Parts] = {}
    for row in rows.rows:
        overhead = empty.get((row.mode, row.level))
        if row.mode not in PUBLISHED_MODES or overhead is None or row.kernel == OVERHEAD or not _on_registers(row):
            continue
        _, count = priced_operations(row)
        for method in SAMPLING:
            per_turn = row.published[method] / row.turns / row.threads - overhead.published[method] / overhead.turns / overhead.threads
            if np.isfinite(per_turn):
                found.setdefault(row.build, {})[f"{row.mode}.{method}"] = per_turn / count
    return found


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

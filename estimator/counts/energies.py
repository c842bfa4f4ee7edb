"""Energy of machine instructions and of memory transactions.

    E = Σ_c EPI_c N_c + e_issue N_issue + e_loop N_loop + Σ_m EPT_m N_m + EPStall N_stall + P_const T

N_c counts executed instructions of a class by thread, N_issue instructions issued to warps, N_loop loop iterations by thread, N_m
transactions of a level (128 byte for shared memory and L1, 32 byte for L2 and DRAM), N_stall slots in which a scheduler of a working SM
issues nothing.  P_const is the additional power of a board that runs a kernel, relative to the same board at rest.  Used and stalled
slots both keep an SM awake, so e_issue and EPStall include its power, and it needs no separate term.

Core terms hold at one voltage and scale with V²; DRAM does not.
Source: Arunkumar et al., GPUJoule (HPCA 2019), eq. 4; stalls and issue by slots instead of cycles, lanes separate from the issue.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from math import isfinite, nan, sqrt
from typing import TYPE_CHECKING, Annotated, Any, Final, NotRequired, TypedDict

import numpy as np

from estimator.counts.opcodes import LANES
from estimator.counts.prices import Price, price_of
from estimator.vocabulary.documents import Document
from estimator.vocabulary.errors import BundleError
from estimator.vocabulary.frozen import EMPTY, FrozenMapping
from estimator.vocabulary.gpu import ClockMhz
from estimator.vocabulary.quantities import HZ_PER_MHZ, Array
from estimator.vocabulary.reader import WHEN_GIVEN, Count, FaultError, Span, Words, check_covariance, check_lengths, plain, read
from estimator.vocabulary.values import frozen

SCHEDULERS: Final = 4
"""Schedulers of an SM, each with one issue slot a clock (CUDA programming guide, compute capability 7.0 on)."""

TRANSACTION_BYTES: Final = {"shared": 128, "l1": 128, "l2": 32, "dram": 32}
"""Size of one transaction by level [byte]; L2 and DRAM figures are for one hop, as in GPUJoule."""

INSTRUCTION: Final = "instruction:"
TRANSACTION: Final = "transaction:"
CONSTANT: Final = "constant"
HEAT: Final = "heat"
ISSUE: Final = "issue"
LOOP: Final = "loop"
STALL: Final = "stall"
SHAPE_STD: Final = 0.15
"""Error of the change of constant power from the reference to another voltage and clock [relative to that change] (assumed)."""


def stall_slots(time_s: float, sm_clock_mhz: float, active_sms: float, issued: float) -> float:
    """Slots in which the schedulers of `active_sms` issue nothing in `time_s` [1]."""
    return max(0.0, SCHEDULERS * active_sms * time_s * sm_clock_mhz * HZ_PER_MHZ - issued)


@frozen
class Activity:
    """Counts of a kernel: executed instructions by class and thread, issued ones, loop iterations by thread, transactions, stalls, time.

    `voltage_v` and `sm_clock_mhz` are nan for the reference of the energies; `kelvin` is the temperature above that reference [K].
    """

    instructions: Mapping[str, float]
    issued: float
    transactions: Mapping[str, float]
    stalls: float
    time_s: float
    loops: float = 0.0
    voltage_v: float = nan
    sm_clock_mhz: float = nan
    kelvin: float = 0.0


EnergyJ = Annotated[float, Span(-1e-3, 1e-3, "J", nan=True)]
"""Energy of one instruction, transaction or byte; null if unknown."""

EnergyStdJ = Annotated[float, Span(0.0, 1e-3, "J", nan=True)]


@frozen
class LinkEnergy:
    """Energy of link traffic, or of a copy, on this board."""

    link: Annotated[
        str, Words(("host", "peer", "device")), "what data cross: PCI Express, a link to another GPU, nothing (a copy within the board)"
    ]
    bytes_per_s: Annotated[float, Span(0.0, 1e15, "byte/s"), "rate over the link"]
    j_per_byte: Annotated[EnergyJ, "energy beyond the board at rest for each byte; null where rest was not known"]
    std_j: Annotated[EnergyStdJ, "its standard deviation"]
    runs: Annotated[Count, "measured"]
    why_unknown: Annotated[str, "why the energy is not known"] = field(default="", metadata=WHEN_GIVEN)


Joule = Annotated[float, Span(-1e-3, 1e-3, "J")]
JouleStd = Annotated[float, Span(0.0, 1e-3, "J")]
Occurrences = Annotated[float, Span(0.0, 1e9)]


@frozen
class Expansion:
    """Machine instructions of one PTX instruction, and its energy."""

    instruction: Annotated[str, "the PTX instruction"]
    level: Annotated[str, "optimisation level of the assembler"] = field(default="", metadata=WHEN_GIVEN)
    energy_j: Annotated[EnergyJ, "by thread in a full warp, from the classes; null where one of them has no energy"]
    std_j: Annotated[EnergyStdJ, "its standard deviation"]
    classes: Annotated[Mapping[str, Occurrences], "machine instructions of each class for one of it, by thread"]
    issued: Annotated[Occurrences, "instructions issued to a warp for one of it"]
    companions: Annotated[bool, "whether other PTX instructions of the same kernel could not be taken out of it"] = False
    published_j: Annotated[
        Mapping[str, Joule],
        "by launch mode and way of sampling, the published difference formula by thread; static power is left in it",
    ] = field(default=EMPTY, metadata=WHEN_GIVEN)
    published_flag: Annotated[str, "what is wrong with that formula"] = field(default="", metadata=WHEN_GIVEN)
    low_confidence: Annotated[str, "why the energy is of low confidence or not known"] = field(default="", metadata=WHEN_GIVEN)


Figure = tuple[float, float]
"""A value and its standard deviation."""


@frozen
class InstructionEnergies:
    """Fitted energies of one board.

    terms, values, covariance   terms of the equation above: J for events, W for constant power, W/K for heat; shape (t,), (t, t)
    identified                  whether the data rather than the prior determine a term
    reference_voltage_v         core voltage of the core terms, nan if not read [V]
    reference_clock_mhz         SM clock at which `constant` holds [MHz]
    temperature_c               die temperature at which `constant` holds [degree Celsius]
    scatter                     scatter of the rows beyond their own errors [relative]
    doubts                      reason for low confidence by class; classes that are not listed have none
    """

    terms: tuple[str, ...]
    values: Array
    covariance: Array
    identified: tuple[bool, ...]
    reference_voltage_v: float
    reference_clock_mhz: float
    temperature_c: float
    scatter: float
    rows: int
    ptx: Mapping[str, Expansion] = field(default=EMPTY)
    assembler: str = ""
    gain_std: float = 0.0
    doubts: Mapping[str, str] = field(default=EMPTY)

    def weights(self, activity: Activity) -> Array:
        """Occurrences of each term in an activity, scaled by the voltage; shape (t,)."""
        volt = _ratio(activity.voltage_v, self.reference_voltage_v) ** 2
        return term_weights(activity, self.terms, volt, _ratio(activity.sm_clock_mhz, self.reference_clock_mhz))

    def energy_j(self, activity: Activity) -> Figure:
        """Energy above the board at rest and its standard deviation [J]; `price` sets the energy of classes that were not measured.

        Raises BundleError for a class without a price.
        """
        missing = sorted(name for name in activity.instructions if not self.price(name).name)
        if missing:
            raise BundleError(f"no energy of {', '.join(missing[:5])} in this bundle; measure it with `collect --campaign instructions`")
        weights = self.weights(activity)
        variance = float(weights @ self.covariance @ weights) + sum(std**2 for std in self.spread_j(activity).values())
        return float(weights @ self.values), sqrt(max(0.0, variance))

    def price(self, name: str) -> Price:
        """The price of a class."""
        return price_of(name, self.classes)

    def spread_j(self, activity: Activity) -> dict[str, float]:
        """Errors beside the covariance [J]: of each class that is priced as another class, and of constant power at another clock."""
        volt = _ratio(activity.voltage_v, self.reference_voltage_v) ** 2
        shape = volt * _ratio(activity.sm_clock_mhz, self.reference_clock_mhz)
        found = {}
        if shape != 1.0 and CONSTANT in self.terms:
            found[CONSTANT] = SHAPE_STD * abs(shape - 1.0) * self.term(CONSTANT)[0] * activity.time_s
        for name, count in activity.instructions.items():
            price = self.price(name)
            if price.spread:
                found[name] = price.spread * price.factor * count * volt * self.term(INSTRUCTION + price.name)[0]
        return found

    def doubt(self, name: str) -> str:
        """The reason why the energy of a class has low confidence or is unknown; "" otherwise."""
        price = self.price(name)
        return price.reason or self.doubts.get(price.name, "")

    def per_thread_j(self, classes: Mapping[str, float], issued: float) -> Figure:
        """Energy of instructions of one thread in a full warp with their share of the issue, and its standard deviation [J]."""
        return self.energy_j(Activity(instructions=classes, issued=issued / LANES, transactions={}, stalls=0.0, time_s=0.0))

    def epi_j(self, name: str) -> Figure:
        """Energy per instruction of a class and thread in a full warp, issue included, and its standard deviation [J]."""
        return self.per_thread_j({name: 1.0}, 1.0)

    def term(self, name: str) -> Figure:
        """A term and its standard deviation; nan for a term that was not fitted."""
        if name not in self.terms:
            return nan, nan
        place = self.terms.index(name)
        return float(self.values[place]), float(np.sqrt(self.covariance[place, place]))

    @property
    def classes(self) -> tuple[str, ...]:
        """Classes with their own energy."""
        return tuple(term.removeprefix(INSTRUCTION) for term in self.terms if term.startswith(INSTRUCTION))


def term_weights(activity: Activity, terms: Sequence[str], volt: float, clock: float) -> Array:
    """Occurrences of each term, shape (t,): core terms times `volt`, the square of the relative voltage.

    Constant power is mostly the power of the clock tree, and scales with volt · clock, the relative SM clock; that of each kelvin is
    leakage, and scales with volt².  Classes without their own term count by `price_of`, classes without a price do not count.
    """
    known = frozenset(term.removeprefix(INSTRUCTION) for term in terms if term.startswith(INSTRUCTION))
    counts = {ISSUE: activity.issued, LOOP: activity.loops, STALL: activity.stalls}
    counts |= {CONSTANT: activity.time_s, HEAT: activity.kelvin * activity.time_s}
    counts |= {TRANSACTION + level: count for level, count in activity.transactions.items()}
    for name, count in activity.instructions.items():
        price = price_of(name, known)
        term = INSTRUCTION + price.name
        counts[term] = counts.get(term, 0.0) + price.factor * count
    scales = {CONSTANT: volt * clock, HEAT: volt**2, f"{TRANSACTION}dram": 1.0}
    return np.array([counts.get(term, 0.0) * scales.get(term, volt) for term in terms])


def _ratio(value: float, reference: float) -> float:
    return value / reference if isfinite(value) and isfinite(reference) else 1.0


LINKS: Final = "links"
"""Field of the section `instruction_energies` that exists only if links were measured; the only field if nothing else was."""

Relative = Annotated[float, Span(0.0, 1e3)]
Term = Annotated[float, Span(-1e5, 1e5)]


class EpiRecord(TypedDict):
    """Energy per instruction of a class and thread in a full warp, issue included."""

    epi_j: Annotated[Joule, "energy"]
    std_j: Annotated[JouleStd, "its standard deviation"]
    identified: Annotated[bool, "whether the data rather than the prior set it"]
    low_confidence: NotRequired[Annotated[str, "why the energy is of low confidence"]]


class EptRecord(TypedDict):
    """Energy per transaction of a memory level, one hop."""

    bytes: Annotated[float, Span(1, 65536, "byte"), "size of a transaction"]
    ept_j: Annotated[Joule, "energy"]
    std_j: Annotated[JouleStd, "its standard deviation"]
    pj_per_bit: Annotated[float, Span(-1e9, 1e9, "pJ/bit"), "energy"]


class LinksSection(TypedDict):
    """Energies if only links, or nothing, was measured."""

    links: NotRequired[Annotated[Mapping[str, LinkEnergy], "links and copies by name"]]


class EnergySection(LinksSection):
    """Fitted energies: terms with their covariance, and tables for readers."""

    terms: Annotated[tuple[str, ...], "names of the terms"]
    values: Annotated[tuple[Term, ...], "[J]; of `constant` [W], of `heat` [W/K]"]
    covariance: Annotated[tuple[tuple[Annotated[float, Span(-1e10, 1e10)], ...], ...], "covariance of values"]
    identified: Annotated[tuple[bool, ...], "whether the data rather than the prior set a term"]
    reference_voltage_v: Annotated[float, Span(0.2, 2.0, "V", nan=True), "core voltage of the core terms; null where none was read"]
    reference_clock_mhz: Annotated[ClockMhz, "SM clock at which `constant` holds"]
    temperature_c: Annotated[float, Span(-60.0, 200.0, "°C", nan=True), "die temperature at which `constant` holds"]
    scatter: Annotated[Relative, "what rows scatter beyond their own errors [relative]"]
    rows: Annotated[Count, "runs behind the fit"]
    assembler: Annotated[str, "assembler that built the kernels"]
    gain_std: Annotated[Relative, "standard deviation of the sensor's gain [relative]"]
    instructions: Annotated[Mapping[str, EpiRecord], "by class of machine instructions"]
    transactions: Annotated[Mapping[str, EptRecord], "by level of memory"]
    ptx: Annotated[Mapping[str, Expansion], "by PTX instruction"]


def _check_section(section: Any) -> None:
    """Refuse terms whose number differs from their values or covariance."""
    if "terms" in section:
        terms = section["terms"]
        if len(set(terms)) < len(terms):
            raise FaultError("holds a term twice", "terms")
        check_lengths({name: section[name] for name in ("values", "covariance", "identified")}, len(terms))
        check_covariance(section["covariance"], "covariance")


if TYPE_CHECKING:
    Section = Any
else:
    Section = Annotated[EnergySection | LinksSection, _check_section]


def section_of(energies: InstructionEnergies) -> Document:
    """The bundle's section: the terms with their covariance, and tables of energies per instruction, transaction and PTX row."""
    instructions = {}
    for name in energies.classes:
        value, std = energies.epi_j(name)
        known = energies.identified[energies.terms.index(INSTRUCTION + name)]
        doubt = {"low_confidence": energies.doubts[name]} if name in energies.doubts else {}
        instructions[name] = {"epi_j": value, "std_j": std, "identified": known, **doubt}
    transactions = {}
    for level, size in TRANSACTION_BYTES.items():
        value, std = energies.term(TRANSACTION + level)
        if isfinite(value):
            transactions[level] = {"bytes": size, "ept_j": value, "std_j": std, "pj_per_bit": value * 1e12 / (8 * size)}
    own = {name: getattr(energies, name) for name in InstructionEnergies.__annotations__ if name in EnergySection.__required_keys__}
    section: Document = plain({**own, "instructions": instructions, "transactions": transactions})
    return section


def measured_links(section: Any, at: str) -> Mapping[str, LinkEnergy]:
    """The links of a bundle's section.  Raises BundleError like `energies_from_section`."""
    links: Mapping[str, LinkEnergy] = _checked(section, at).get(LINKS, {})
    return links


PUBLISHED_FLAG: Final = "static power left in"
"""Fault of the published difference formula."""


def energies_from_section(section: Any, at: str = "instruction_energies") -> InstructionEnergies | None:
    """The energies in a bundle's section; None if it is empty or holds only links.

    Raises BundleError, naming the keys, for a field that is missing, unknown or inconsistent with the others.
    """
    found = _checked(section, at)
    if "terms" not in found:
        return None
    own = {name: found[name] for name in set(found) & set(InstructionEnergies.__annotations__)}
    doubts = {name: one["low_confidence"] for name, one in found["instructions"].items() if "low_confidence" in one}
    arrays = {name: np.array(found[name]) for name in ("values", "covariance")}
    return InstructionEnergies(**(own | arrays), doubts=FrozenMapping(doubts))


def _checked(section: Any, at: str) -> Any:
    try:
        return read(Section, section, at)
    except FaultError as fault:
        raise BundleError(str(fault)) from None

"""Energy of machine instructions and of memory transactions.

    E = Σ_c EPI_c N_c + e_issue N_issue + e_loop N_loop + Σ_m EPT_m N_m + EPStall N_stall + P_const T

N_c counts executed instructions of a class by thread, N_issue instructions issued to warps, N_loop turns of a measured loop by thread, N_m
transactions of a level (128 byte for shared memory and L1, 32 byte for L2 and DRAM), N_stall slots in which a scheduler of a working SM
issues nothing.  P_const is what a board with a kernel on it draws beyond the same board at rest.  A used slot and a stalled one both
hold an SM awake, so that its power is in e_issue and EPStall and needs no term of its own.

Core terms hold at one voltage and scale with V²; DRAM does not.
Source: Arunkumar et al., GPUJoule (HPCA 2019), eq. 4; stalls and issue by slots instead of cycles, lanes apart from the issue.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from estimator.errors import BundleError
from estimator.frozen import FrozenMapping
from estimator.instructions.links import links_from_document
from estimator.instructions.opcodes import LANES
from estimator.instructions.prices import Price, price_of
from estimator.quantities import HZ_PER_MHZ, Array

SCHEDULERS: Final = 4
"""Schedulers of an SM, each with one issue slot a clock (CUDA programming guide, compute capability 7.0 on)."""

TRANSACTION_BYTES: Final[dict[str, int]] = {"shared": 128, "l1": 128, "l2": 32, "dram": 32}
"""Size of one transaction by level [byte]; L2 and DRAM figures are for one hop, as GPUJoule's."""

INSTRUCTION: Final = "instruction:"
TRANSACTION: Final = "transaction:"
CONSTANT: Final = "constant"
HEAT: Final = "heat"
ISSUE: Final = "issue"
LOOP: Final = "loop"
STALL: Final = "stall"
UNSCALED: Final = frozenset({f"{TRANSACTION}dram", HEAT})
"""Terms that do not go with V²."""


def stall_slots(time_s: float, sm_clock_mhz: float, active_sms: float, issued: float) -> float:
    """Slots in which the schedulers of `active_sms` issue nothing in `time_s` [1]."""
    return max(0.0, SCHEDULERS * active_sms * time_s * sm_clock_mhz * HZ_PER_MHZ - issued)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What a kernel does: executed instructions of each class by thread, issued ones, loop turns by thread, transactions, stalls, time.

    `voltage_v` and `sm_clock_mhz` are nan for those at which the energies are stated; `kelvin` how much warmer than there.
    """

    instructions: Mapping[str, float]
    issued: float
    transactions: Mapping[str, float]
    stalls: float
    time_s: float
    loops: float = 0.0
    voltage_v: float = math.nan
    sm_clock_mhz: float = math.nan
    kelvin: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """What one PTX instruction became, and what it costs.

    level              optimisation level of the assembler ("O3"); "" where it is not told
    classes            machine instructions of each class for one of it, by thread
    issued             instructions issued to a warp for one of it
    energy_j, std_j    by thread in a full warp, from the classes [J]; nan where one of them has no energy
    companions         whether other PTX instructions of the same kernel could not be taken out of it
    doubt              why the energy is of low confidence or not known; "" where it is neither
    published_j        by launch mode and way of sampling ("full.mtsm"; "full.measured" from corrected energies), the published
                       difference formula, by thread [J]; static power is left in it, so that it is no energy of the instruction
    unpublished        by launch mode, why that formula has no figure
    """

    instruction: str
    classes: Mapping[str, float]
    issued: float
    energy_j: float
    std_j: float
    level: str = ""
    companions: bool = False
    doubt: str = ""
    published_j: Mapping[str, float] = field(default_factory=lambda: FrozenMapping({}))
    unpublished: Mapping[str, str] = field(default_factory=lambda: FrozenMapping({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionEnergies:
    """Fitted energies of one board.

    terms, values, covariance   of the equation above: J for events, W for constant power, W/K for heat; shape (t,), (t, t)
    identified                  whether the data rather than the prior set a term
    reference_voltage_v         core voltage of the core terms, nan where none was read [V]
    reference_clock_mhz         SM clock at which `constant` holds [MHz]
    temperature_c               die temperature at which `constant` holds [degree Celsius]
    scatter                     what the rows scatter beyond their own errors [relative]
    doubts                      by class, why its energy is of low confidence; those that are not there are not
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
    ptx: Mapping[str, Expansion] = field(default_factory=lambda: FrozenMapping({}))
    assembler: str = ""
    gain_std: float = 0.0
    doubts: Mapping[str, str] = field(default_factory=lambda: FrozenMapping({}))

    def weights(self, activity: Activity) -> Array:
        """How often each term occurs in an activity, voltage taken into account; shape (t,)."""
        volt = _ratio(activity.voltage_v, self.reference_voltage_v) ** 2
        clock = _ratio(activity.sm_clock_mhz, self.reference_clock_mhz)
        return term_weights(activity, self.terms, volt, clock)

    def energy_j(self, activity: Activity) -> tuple[float, float]:
        """Energy beyond the board at rest and its standard deviation [J]; classes without an energy of their own as `price` says.

        Raises BundleError for a class that was not measured and that nothing stands for.
        """
        missing = sorted(name for name in activity.instructions if not self.price(name).name)
        if missing:
            raise BundleError(f"no energy of {', '.join(missing[:5])} in this bundle; measure it with `collect --campaign instructions`")
        weights = self.weights(activity)
        variance = float(weights @ self.covariance @ weights) + sum(std**2 for std in self.spread_j(activity).values())
        return float(weights @ self.values), math.sqrt(max(0.0, variance))

    def price(self, name: str) -> Price:
        """What a class is priced at."""
        return price_of(name, self.classes)

    def spread_j(self, activity: Activity) -> dict[str, float]:
        """By class that is priced as another one: how far that may be off in an activity, beside the covariance [J]."""
        volt = _ratio(activity.voltage_v, self.reference_voltage_v) ** 2
        found = {}
        for name, count in activity.instructions.items():
            price = self.price(name)
            if price.spread:
                found[name] = price.spread * price.factor * count * volt * self.term(INSTRUCTION + price.name)[0]
        return found

    def doubt(self, name: str) -> str:
        """Why the energy of a class is of low confidence, or not known; "" where it is neither."""
        price = self.price(name)
        return price.reason or self.doubts.get(price.name, "")

    def per_thread_j(self, classes: Mapping[str, float], issued: float) -> tuple[float, float]:
        """Energy of instructions of one thread in a full warp, their share of the issue included, and its standard deviation [J]."""
        return self.energy_j(Activity(instructions=classes, issued=issued / LANES, transactions={}, stalls=0.0, time_s=0.0))

    def epi_j(self, name: str) -> tuple[float, float]:
        """Energy per instruction of a class and thread in a full warp, issue included, and its standard deviation [J]."""
        return self.per_thread_j({name: 1.0}, 1.0)

    def term(self, name: str) -> tuple[float, float]:
        """A term and its standard deviation; nan for one that was not fitted."""
        if name not in self.terms:
            return math.nan, math.nan
        place = self.terms.index(name)
        return float(self.values[place]), float(np.sqrt(self.covariance[place, place]))

    @property
    def classes(self) -> tuple[str, ...]:
        """Classes with an energy of their own."""
        return tuple(term.removeprefix(INSTRUCTION) for term in self.terms if term.startswith(INSTRUCTION))


def activity_counts(activity: Activity, terms: Sequence[str]) -> dict[str, float]:
    """Occurrences by term; classes that are no term of their own count as `price_of` says, those that nothing stands for not at all."""
    known = frozenset(term.removeprefix(INSTRUCTION) for term in terms if term.startswith(INSTRUCTION))
    counts = {ISSUE: activity.issued, LOOP: activity.loops, STALL: activity.stalls}
    counts |= {CONSTANT: activity.time_s, HEAT: activity.kelvin * activity.time_s}
    for name, count in activity.instructions.items():
        price = price_of(name, known)
        term = INSTRUCTION + price.name
        counts[term] = counts.get(term, 0.0) + price.factor * count
    for level, count in activity.transactions.items():
        counts[TRANSACTION + level] = count
    return counts


def term_weights(activity: Activity, terms: Sequence[str], volt: float, clock: float) -> Array:
    """How often each term occurs, shape (t,): core terms times `volt`, the square of the relative voltage.

    Constant power is mostly that of a clock that runs everywhere, and goes with volt · clock, the relative SM clock.
    """
    counts = activity_counts(activity, terms)
    scales = {CONSTANT: volt * clock} | dict.fromkeys(UNSCALED, 1.0)
    return np.array([counts.get(term, 0.0) * scales.get(term, volt) for term in terms])


def _ratio(value: float, reference: float) -> float:
    return value / reference if math.isfinite(value) and math.isfinite(reference) else 1.0


SECTION_FIELDS: Final = (
    "terms", "values", "covariance", "identified", "reference_voltage_v", "reference_clock_mhz", "temperature_c", "scatter", "rows",
    "assembler", "gain_std", "instructions", "transactions", "ptx",
)  # fmt: skip
"""Fields of a bundle's section `instruction_energies`."""

LINKS: Final = "links"
"""Its field that is there only where links were measured (`estimator.instructions.links`), and the only one where nothing else was."""


def section_of(energies: InstructionEnergies) -> dict[str, Any]:
    """The bundle's section: the terms with their covariance, and energies per instruction, transaction and PTX row as tables to read."""
    instructions = {}
    for name in energies.classes:
        value, std = energies.epi_j(name)
        known = energies.identified[energies.terms.index(INSTRUCTION + name)]
        doubt = {"low_confidence": energies.doubts[name]} if name in energies.doubts else {}
        instructions[name] = {"epi_j": value, "std_j": std, "identified": known, **doubt}
    transactions = {}
    for level, size in TRANSACTION_BYTES.items():
        value, std = energies.term(TRANSACTION + level)
        if math.isfinite(value):
            transactions[level] = {"bytes": size, "ept_j": value, "std_j": std, "pj_per_bit": value * 1e12 / (8 * size)}
    return {
        "terms": list(energies.terms),
        "values": energies.values.tolist(),
        "covariance": energies.covariance.tolist(),
        "identified": list(energies.identified),
        "reference_voltage_v": _null(energies.reference_voltage_v),
        "reference_clock_mhz": energies.reference_clock_mhz,
        "temperature_c": _null(energies.temperature_c),
        "scatter": energies.scatter,
        "rows": energies.rows,
        "assembler": energies.assembler,
        "gain_std": energies.gain_std,
        "instructions": instructions,
        "transactions": transactions,
        "ptx": {name: _expansion_document(one) for name, one in energies.ptx.items()},
    }


PUBLISHED_FLAG: Final = "static power left in"
"""What is wrong with the published difference formula."""


def _expansion_document(one: Expansion) -> dict[str, Any]:
    published: dict[str, Any] = {"published_j": dict(one.published_j), "published_flag": PUBLISHED_FLAG} if one.published_j else {}
    published |= {"unpublished": dict(one.unpublished)} if one.unpublished else {}
    published |= {"low_confidence": one.doubt} if one.doubt else {}
    return {
        "instruction": one.instruction,
        "level": one.level,
        "energy_j": _null(one.energy_j),
        "std_j": _null(one.std_j),
        "classes": dict(one.classes),
        "issued": one.issued,
        "companions": one.companions,
        **published,
    }


def energies_from_section(section: Mapping[str, Any], at: str = "instruction_energies") -> InstructionEnergies | None:
    """The energies in a bundle's section; None where it is empty or holds nothing but links.

    Raises BundleError, naming the keys, for a field that is missing, foreign or does not fit the others.
    """
    if set(section) <= {LINKS}:
        links_from_document(section.get(LINKS, {}), f"{at}.{LINKS}")
        return None
    for name in SECTION_FIELDS:
        if name not in section:
            raise BundleError(f"{at} lacks the field {name!r}")
    for name in section:
        if name not in SECTION_FIELDS and name != LINKS:
            raise BundleError(f"{at} has an unknown field {name!r}")
    links_from_document(section.get(LINKS, {}), f"{at}.{LINKS}")
    try:
        terms = tuple(_text(term) for term in section["terms"])
        values = np.array([_real(value) for value in section["values"]])
        covariance = np.array([[_real(value) for value in row] for row in section["covariance"]]).reshape(len(terms), -1)
        identified = tuple(bool(value) for value in section["identified"])
        found = InstructionEnergies(
            terms=terms,
            values=values,
            covariance=covariance,
            identified=identified,
            reference_voltage_v=_number(section["reference_voltage_v"]),
            reference_clock_mhz=_real(section["reference_clock_mhz"]),
            temperature_c=_number(section["temperature_c"]),
            scatter=_real(section["scatter"]),
            rows=int(_real(section["rows"])),
            assembler=_text(section["assembler"]),
            gain_std=_real(section["gain_std"]),
            doubts=FrozenMapping(
                {str(name): _text(one["low_confidence"]) for name, one in section["instructions"].items() if "low_confidence" in one}
            ),
            ptx=FrozenMapping({str(name): _expansion(one) for name, one in section["ptx"].items()}),
        )
        _check_tables(section)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise BundleError(f"{at} is damaged ({error}); fit again") from error
    if values.shape != (len(terms),) or covariance.shape != (len(terms), len(terms)) or len(identified) != len(terms):
        raise BundleError(f"{at}: {len(terms)} terms do not fit {values.size} values and a covariance of shape {covariance.shape}")
    if len(set(terms)) < len(terms) or (np.diag(covariance) < 0).any():
        raise BundleError(f"{at} is damaged (a term is there twice, or has a variance below zero); fit again")
    return found


def _check_tables(section: Mapping[str, Any]) -> None:
    """Raises KeyError, TypeError and the like where a table to read lacks a field or holds no number."""
    for name, fields in (("instructions", ("epi_j", "std_j")), ("transactions", ("bytes", "ept_j", "std_j", "pj_per_bit"))):
        for entry in section[name].values():
            for field_name in fields:
                _real(entry[field_name])
            if name == "instructions" and not isinstance(entry["identified"], bool):
                raise TypeError(f"identified is {entry['identified']!r}")


def _expansion(one: Mapping[str, Any]) -> Expansion:
    return Expansion(
        classes=FrozenMapping({str(name): _real(count) for name, count in one["classes"].items()}),
        issued=_real(one["issued"]),
        energy_j=_number(one["energy_j"]),
        std_j=_number(one["std_j"]),
        instruction=_text(one["instruction"]),
        level=_text(one.get("level", "")),
        companions=bool(one["companions"]),
        doubt=_text(one.get("low_confidence", "")),
        unpublished=FrozenMapping({str(mode): _text(reason) for mode, reason in one.get("unpublished", {}).items()}),
        published_j=FrozenMapping({str(name): _real(value) for name, value in one.get("published_j", {}).items()}),
    )


def _number(value: Any) -> float:
    return math.nan if value is None else _real(value)


def _real(value: Any) -> float:
    """A finite number.  Raises TypeError, ValueError or OverflowError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{str(value)[:20]!r} is no number")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is not finite")
    return number


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{str(value)[:20]!r} is no text")
    return value


def _null(value: float) -> float | None:
    return value if math.isfinite(value) else None

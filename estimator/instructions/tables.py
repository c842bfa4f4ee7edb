"""Published energies per instruction and per transaction as TOML, in the form that fitted ones have."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np

from estimator.documents import parse_toml
from estimator.errors import CountsError
from estimator.instructions.energies import INSTRUCTION, STALL, TRANSACTION, TRANSACTION_BYTES, InstructionEnergies
from estimator.regular_files import read_regular
from estimator.resources import resource_folder, resource_names
from estimator.specifications import near_match

Vocabulary = Literal["sass", "joule"]
"""How classes of instructions are named: as machine opcodes, or as GPUJoule's PTX types ("f32.fma")."""

NANO: Final = 1e-9
BITS: Final = 8
PRINTED_STD: Final = 0.01 / math.sqrt(12.0)
"""Standard deviation of a number that was rounded to 0.01 [the number's unit]."""

FIELDS: Final = frozenset(
    {"name", "title", "source", "vocabulary", "instructions_nj", "transactions_nj", "stall_nj", "constant_w", "power_limit_w"}
)
LARGEST: Final = 1 << 20
"""Longest file [byte]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyTable:
    """Energies with their names: `constant_w` is the power of the board at rest, `power_limit_w` what it may draw, nan if unknown [W]."""

    name: str
    title: str
    source: str
    vocabulary: Vocabulary
    energies: InstructionEnergies
    constant_w: float = math.nan
    power_limit_w: float = math.nan

    def with_dram(self, pj_per_bit: float) -> "EnergyTable":
        """The same with another DRAM: GPUJoule puts HBM at 21.1 pJ/bit in the place of GDDR5.  Raises CountsError for no energy."""
        if not (math.isfinite(pj_per_bit) and pj_per_bit > 0):
            raise CountsError(f"an energy of DRAM of {pj_per_bit} pJ/bit cannot be")
        term = f"{TRANSACTION}dram"
        if term not in self.energies.terms:
            raise CountsError(f"{self.name} has no energy of DRAM to put another in its place")
        place = self.energies.terms.index(term)
        values, covariance = self.energies.values.copy(), self.energies.covariance.copy()
        values[place] = pj_per_bit * 1e-12 * BITS * TRANSACTION_BYTES["dram"]
        covariance[place, :] = covariance[:, place] = 0.0
        return replace(self, energies=replace(self.energies, values=values, covariance=covariance))


def energy_table_names() -> tuple[str, ...]:
    """Names of the tables that are shipped."""
    return resource_names("energies", ".toml")


def load_energy_table(name_or_path: str) -> EnergyTable:
    """A shipped table by its name, or a TOML file.  Raises CountsError, naming the field, for one that cannot be used."""
    if name_or_path.endswith(".toml") or "/" in name_or_path:
        path = Path(name_or_path)
    else:
        names = energy_table_names()
        if name_or_path not in names:
            raise CountsError(f"no table of energies {name_or_path!r}{near_match(name_or_path, names)}; there are {', '.join(names)}")
        path = resource_folder("energies") / f"{name_or_path}.toml"
    try:
        if not path.exists():
            raise CountsError(f"{path}: no such file; shipped tables are {', '.join(energy_table_names())}")
        document = parse_toml(read_regular(path, LARGEST))
    except OSError as error:
        raise CountsError(f"{path}: cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise CountsError(f"{path}: no TOML ({error})") from error
    return _table(document, str(path))


def _table(document: Mapping[str, Any], at: str) -> EnergyTable:
    for field in document:
        if field not in FIELDS:
            raise CountsError(f"{at}: unknown field {field!r}{near_match(field, FIELDS)}")
    name, title, source, words = (_text(document, field, at) for field in ("name", "title", "source", "vocabulary"))
    vocabulary = next((one for one in get_args(Vocabulary) if one == words), None)
    if vocabulary is None:
        raise CountsError(f"{at}: vocabulary = {words!r} must be {' or '.join(map(repr, get_args(Vocabulary)))}")
    values: dict[str, float] = {}
    for field, prefix in (("instructions_nj", INSTRUCTION), ("transactions_nj", TRANSACTION)):
        own = document.get(field)
        if not isinstance(own, Mapping) or not own:
            raise CountsError(f"{at}: {field} must be a table with at least one entry")
        for key, value in own.items():
            if prefix == TRANSACTION and key not in TRANSACTION_BYTES:
                raise CountsError(f"{at}: {field}.{key} is no level; there are {', '.join(TRANSACTION_BYTES)}")
            values[prefix + key] = _positive(value, f"{at}: {field}.{key}")
    if "stall_nj" in document:
        values[STALL] = _positive(document["stall_nj"], f"{at}: stall_nj")
    constant, limit = (
        _positive(document[field], f"{at}: {field}") if field in document else math.nan for field in ("constant_w", "power_limit_w")
    )
    energies = InstructionEnergies(
        terms=tuple(values),
        values=np.array(list(values.values())) * NANO,
        covariance=np.eye(len(values)) * (PRINTED_STD * NANO) ** 2,
        identified=(True,) * len(values),
        reference_voltage_v=math.nan,
        reference_clock_mhz=math.nan,
        temperature_c=math.nan,
        scatter=0.0,
        rows=0,
    )
    return EnergyTable(
        name=name, title=title, source=source, vocabulary=vocabulary, energies=energies, constant_w=constant, power_limit_w=limit
    )


def _text(document: Mapping[str, Any], field: str, at: str) -> str:
    value = document.get(field)
    if not isinstance(value, str) or not value:
        raise CountsError(f"{at}: {field} must be a text")
    return value


LARGEST_FIGURE: Final = 1e9
"""Largest energy [nJ] and power [W] that a table may hold: a joule an instruction."""


def _positive(value: Any, at: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LARGEST_FIGURE:
        shown = repr(value)[:40] if isinstance(value, float) else "a whole number" if isinstance(value, int) else repr(str(value)[:40])
        raise CountsError(f"{at} = {shown} must be a number above 0 and up to {LARGEST_FIGURE:g}")
    return float(value)

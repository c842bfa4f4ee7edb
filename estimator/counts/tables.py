"""Published energies per instruction and per transaction as TOML, in the form of fitted energies."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from estimator.counts.energies import INSTRUCTION, STALL, TRANSACTION, TRANSACTION_BYTES, InstructionEnergies
from estimator.vocabulary.errors import CountsError
from estimator.vocabulary.reader import LEAST_ONE, Span, Text, Words, read_file
from estimator.vocabulary.resources import resource_folder, resource_names
from estimator.vocabulary.values import frozen

Vocabulary = Literal["sass", "joule"]
"""Naming of instruction classes: machine opcodes, or GPUJoule's PTX types ("f32.fma")."""

Positive = Annotated[float, Span(1e-12, 1e9)]
"""An energy [nJ] or a power [W]: at most a joule an instruction."""


@frozen
class TableFile:
    """A file of published energies by thread and by transaction of one hop."""

    name: Text
    title: Text
    source: Text
    vocabulary: Vocabulary
    instructions_nj: Annotated[Mapping[str, Positive], LEAST_ONE]
    transactions_nj: Annotated[Mapping[Annotated[str, Words(tuple(TRANSACTION_BYTES))], Positive], LEAST_ONE]
    stall_nj: Positive | None = None
    constant_w: Annotated[float, Span(1e-12, 1e9, nan=True)] = math.nan


@frozen
class EnergyTable:
    """Energies with their names: `constant_w` is the power of the board at rest, nan if unknown [W]."""

    name: str
    source: str
    vocabulary: Vocabulary
    energies: InstructionEnergies
    constant_w: float = math.nan

    def with_dram(self, pj_per_bit: float) -> "EnergyTable":
        """The table with another DRAM: GPUJoule replaces GDDR5 by HBM with 21.1 pJ/bit.  Raises CountsError without an energy of DRAM."""
        term = f"{TRANSACTION}dram"
        if term not in self.energies.terms:
            raise CountsError(f"{self.name} has no energy of DRAM to put another in its place")
        place = self.energies.terms.index(term)
        values, covariance = self.energies.values.copy(), self.energies.covariance.copy()
        values[place] = pj_per_bit * 8e-12 * TRANSACTION_BYTES["dram"]
        covariance[place, :] = covariance[:, place] = 0.0
        return replace(self, energies=replace(self.energies, values=values, covariance=covariance))


def load_energy_table(name_or_path: str) -> EnergyTable:
    """A shipped table by its name, or a TOML file.  Raises CountsError, naming the field, for a table that cannot be used."""
    if name_or_path.endswith(".toml") or "/" in name_or_path:
        path = Path(name_or_path)
    else:
        names = resource_names("energies", ".toml")
        if name_or_path not in names:
            raise CountsError(f"no table of energies {name_or_path!r}; there are {', '.join(names)}")
        path = resource_folder("energies") / f"{name_or_path}.toml"
    file = read_file(TableFile, path, "energies", CountsError)
    values = {INSTRUCTION + name: value for name, value in file.instructions_nj.items()}
    values |= {TRANSACTION + name: value for name, value in file.transactions_nj.items()}
    values |= {} if file.stall_nj is None else {STALL: file.stall_nj}
    energies = InstructionEnergies(
        terms=tuple(values),
        values=np.array(list(values.values())) * 1e-9,
        covariance=np.eye(len(values)) * (0.01e-9 / math.sqrt(12.0)) ** 2,  # figures are rounded to 0.01 nJ
        identified=(True,) * len(values),
        reference_voltage_v=math.nan,
        reference_clock_mhz=math.nan,
        temperature_c=math.nan,
        scatter=0.0,
        rows=0,
    )
    own = {name: getattr(file, name) for name in ("name", "source", "vocabulary", "constant_w")}
    return EnergyTable(**own, energies=energies)

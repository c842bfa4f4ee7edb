"""Measured runs of generated kernels, accepted for the fit of instruction energies."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from estimator.quantities import Array, BoolArray

SAMPLING: Final = ("mtsm", "sma", "papi")
"""Published ways of sampling whose energies stand beside a row's own."""


def at_level(kernel: str, level: str) -> str:
    """A kernel's name with the optimisation level of its assembler."""
    return f"{kernel}.{level}" if level else kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionRow:
    """One run of a generated kernel: counts and energy of one launch.

    `energy_j` is what the board drew in all, `idle_w` its power at rest just before (nan: unknown).  `published` holds energies by
    way of sampling.  `random` marks random operands, with which energies are stated.  Of what crosses a link to the host or to another
    board, and of copies, `link` says which link and `link_bytes` how much; such rows have an energy a byte and are in no regression.
    """

    source: str
    row: int
    gpu: str
    kernel: str
    instruction: str
    mode: str
    random: bool
    unroll: int
    body: dict[str, float]
    operations: dict[str, float]
    turns: float
    threads: float
    warps: float
    blocks: float
    transactions: dict[str, float]
    latency_s: float
    power_w: float
    power_std_w: float
    idle_w: float
    idle_c: float
    temperature_c: float
    asked_mhz: float
    sm_clock_mhz: float
    voltage_v: float
    throttled: bool
    assembler: str
    published: dict[str, float]
    link: str = ""
    link_bytes: float = 0.0

    @property
    def level(self) -> str:
        """Optimisation level of the assembler ("O3"), by its words in `assembler`; "" of copies, which nothing assembles."""
        return next((word[1:] for word in self.assembler.split() if word.startswith("-O")), "")

    @property
    def build(self) -> str:
        """Kernel and level ("ffma_k8_u64.O3"): what runs is another kernel at another level."""
        return at_level(self.kernel, self.level)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionRows:
    """Accepted rows of generated kernels."""

    rows: tuple[InstructionRow, ...]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def gpus(self) -> tuple[str, ...]:
        """GPUs of the rows, in first-seen order."""
        return tuple(dict.fromkeys(row.gpu for row in self.rows))

    def select(self, keep: BoolArray) -> "InstructionRows":
        """Some of the rows."""
        return replace(self, rows=tuple(row for row, kept in zip(self.rows, keep, strict=True) if kept))

    def column(self, name: str) -> Array:
        """A number of every row, shape (n,)."""
        return np.array([float(getattr(row, name)) for row in self.rows])


def join_instruction_rows(parts: list[InstructionRows]) -> InstructionRows | None:
    """Rows of several data sets as one; None for none."""
    rows = tuple(row for part in parts for row in part.rows)
    return InstructionRows(rows=rows) if rows else None

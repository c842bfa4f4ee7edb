"""The table of instructions (`instructions.toml`), read once: every row, and the lists of opcodes that rows and other families share."""

import tomllib
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

from estimator.frozen import FrozenMapping
from microbench.families.rows import Row
from microbench.kernel import Slot, Support

Entry = Mapping[str, Any]
"""A table of TOML."""

_TABLE: Final[Entry] = tomllib.loads(Path(__file__).with_name("instructions.toml").read_text(encoding="utf-8"))

MOST_OPERANDS: Final = 4
"""Operands of a row that does not give their number: one for each of the letters x, y, z, w."""


def opcodes(*words: str) -> tuple[str, ...]:
    """Opcodes in their order; a lower-case word stands for the opcodes of a list of the table."""
    lists = _TABLE["opcodes"]
    return tuple(one for word in words for one in (opcodes(*lists[word]) if word in lists else (word,)))


def _operands(given: str | Entry) -> tuple[Slot, ...]:
    """Slots x0, x1… of a named set of operands, or of one that stands in the row."""
    chosen: dict[str, Any] = dict(_TABLE["operands"][given] if isinstance(given, str) else given)
    ranges: Sequence[tuple[float, float]] = chosen.pop("ranges")
    number, pairs = chosen.pop("number", MOST_OPERANDS), chosen.pop("pairs", "")
    return tuple(
        Slot(name=f"x{place}", low=low, high=high, **(chosen | {pairs: f"x{place - 1}"} if pairs and place % 2 else chosen))
        for place, (low, high) in enumerate(islice(cycle(ranges), number))
    )


def _row(given: Entry) -> Row:
    """A row as its kernel needs it; a field that no row has raises TypeError."""
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    values |= {name: opcodes(*values[name]) for name in ("sass", "companions", "uniform") if name in values}
    values |= {name: FrozenMapping(values[name]) for name in ("temporaries", "flop") if name in values}
    if "support" in values:
        values["support"] = Support(**values["support"])
    if "operands" in values:
        values["operands"] = _operands(values["operands"])
    return Row(**values | {"start": Slot(name="d", **values["start"])})


ROWS: Final[tuple[Row, ...]] = tuple(map(_row, _TABLE["row"]))
"""Every instruction that a table row describes."""

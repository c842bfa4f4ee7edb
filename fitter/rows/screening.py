"""Screening: which rows of a file can be true, and why the others are left out.

The checks run in the order of their certainty: what cannot be read, what names nothing known, what no hardware can do.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, TypeVar

import numpy as np

from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import Array, BoolArray, IntArray
from estimator.vocabulary.specifications import canonical_gpu_name, gpu_names, is_named, load_gpu
from fitter.errors import InputError
from fitter.rows.rejected import OTHER_GPU, RejectedRow
from fitter.rows.tables import LONGEST_TEXT, Table

ABOVE_LIMIT_SHARE: Final = 1.03
"""Boards overshoot their limit by less than this; more is another unit or another limit [1]."""

AT_REST_SHARE: Final = 0.5
"""A board on which a kernel runs draws more than this share of the least that its table has for it at rest [1]."""

LEAST_LIMIT_SHARE: Final = 0.02
"""The same of the power limit, where nothing is known of the board at rest: the three boards with a table draw 10 to 18 % of theirs [1]."""

CLOCK_MARGIN: Final = 1.1
"""A clock this far beyond the GPU's range is another unit or another GPU [1]."""

SIMULATED_PREFIX: Final = "sim:"

LONGEST_RUN_S: Final = 30 * 86400.0
"""No launch, iteration or run takes a month: such a time is an error of whoever wrote it [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What a number column may hold: above `low` (or `low` itself where `closed`) and up to `high`; `reason` rejects the row."""

    reason: str
    low: float = 0.0
    high: float = np.inf
    closed: bool = False
    whole: bool = False

    def broken(self, values: Array) -> BoolArray:
        """Values beyond the limits, shape (n,); nan is within them."""
        with np.errstate(invalid="ignore"):
            low = values < self.low if self.closed else values <= self.low
            found: BoolArray = low | (values > self.high) | (self.whole & np.isfinite(values) & (values % 1.0 != 0.0))
        return found

    def text(self) -> str:
        """The limits for people."""
        low = f"{'from' if self.closed else 'above'} {self.low:g}"
        return f"must be a {'whole ' if self.whole else ''}number {low}{f' to {self.high:g}' if np.isfinite(self.high) else ''}"


LIMITS: Final[Mapping[str, Limit]] = {
    "latency_s": Limit(reason="BAD_LATENCY", high=LONGEST_RUN_S),
    "temperature_c": Limit(reason="BAD_TEMPERATURE", low=-60.0, high=150.0, closed=True),
    "iterations": Limit(reason="BAD_ITERATIONS", low=1.0, closed=True, high=1e15),
    "blocks": Limit(reason="BAD_SHAPE", low=1.0, closed=True, high=2.0**31 - 1.0, whole=True),
    "block_threads": Limit(reason="BAD_SHAPE", low=1.0, closed=True, high=1024.0, whole=True),
    "blocks_per_sm": Limit(reason="BAD_SHAPE", low=1.0, closed=True, high=32.0, whole=True),
    "power_w": Limit(reason="BAD_POWER"),
    "energy_j": Limit(reason="BAD_POWER"),
    "idle_w": Limit(reason="BAD_POWER", closed=True),
    "power_std_w": Limit(reason="BAD_POWER", closed=True),
    "sm_clock_mhz": Limit(reason="BAD_CLOCK"),
    "sm_clock_measured_mhz": Limit(reason="BAD_CLOCK"),
}
"""Limits of columns; sizes of a grid and threads of a block as in the CUDA programming guide, technical specifications."""

COUNT_LIMIT: Final = Limit(reason="BAD_COUNT", closed=True)
"""Limits of all other counts."""


class Screen:
    """Verdicts on the rows of one table: the first reason of each row counts; rejections of its power alone stand apart."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.whole: dict[int, tuple[str, str]] = {}
        self.power: dict[int, tuple[str, str]] = {}
        self.reject(table.oversized(), "BAD_TEXT", f"a cell of more than {LONGEST_TEXT} characters")

    def reject(self, rows: BoolArray | Iterable[int], reason: str, detail: str | Callable[[int], str] = "", *, power: bool = False) -> None:
        """Reject rows (a mask, or numbers of rows), or their power; `detail` is a text or a function of the row's place."""
        found = self.power if power else self.whole
        for i in np.flatnonzero(rows).tolist() if isinstance(rows, np.ndarray) else rows:
            if i not in found:
                found[i] = (reason, detail if isinstance(detail, str) else detail(i))

    def reject_repeated(self) -> None:
        """Reject rows that equal an earlier one."""
        self.reject(self.table.repeated(), "DUPLICATE", "equals an earlier row in every column")

    def reject_limits(self, names: Iterable[str], needed: Collection[str] = (), *, power: Collection[str] = ()) -> None:
        """Reject rows with a cell that is no number, that LIMITS does not allow, or that is missing among the `needed` ones.

        power: columns that concern the power alone.
        """
        for name in names:
            limit, values = LIMITS.get(name, COUNT_LIMIT), self.table.numbers(name)
            bad = self.table.garbled(name) | limit.broken(values) | ((name in needed) & np.isnan(values))
            self.reject(bad, limit.reason, lambda i, n=name, v=values, m=limit: f"{n} = {v[i]:g} {m.text()}", power=name in power)  # type: ignore[misc]

    def gpus(self, asked: GpuSpec | None) -> list[GpuSpec | None]:
        """The GPU of each row; rows of an unknown one, or of another one than `asked`, are rejected.

        Raises InputError for a table that names none where none is asked for.
        """
        if "gpu" not in self.table:
            if asked is None:
                raise InputError(f"{self.table.path}: no column 'gpu'; add it, or name the GPU of all rows with --gpu")
            return [asked] * len(self.table)
        texts = self.table.texts("gpu")
        found = {text: known_gpu(text, asked) if text else None for text in set(texts)}
        known = f"known: {', '.join(gpu_names())}; or its file: --gpu FILE.toml"
        self.reject([i for i, text in enumerate(texts) if found[text] is None], "UNKNOWN_GPU", lambda i: f"{texts[i][:80]!r}; {known}")
        if asked is not None:
            self.reject([i for i, text in enumerate(texts) if found[text] != asked], OTHER_GPU, lambda i: texts[i][:80])
        return [found[text] for text in texts]

    def reject_clocks(self, specs: Sequence[GpuSpec | None], **columns: Array) -> None:
        """Reject rows whose clock no such GPU has."""
        names = [spec.name if spec else "" for spec in specs]
        low = np.array([spec.sm_clock_min_mhz if spec else 0.0 for spec in specs]) / CLOCK_MARGIN
        high = np.array([spec.sm_clock_limit_mhz if spec else np.inf for spec in specs]) * CLOCK_MARGIN
        for name, values in columns.items():
            with np.errstate(invalid="ignore"):
                beyond = (values < low) | (values > high)
            texts = {
                i: f"{name} = {values[i]:g}; {names[i]} runs {low[i]:.0f} to {high[i]:.0f} MHz" for i in np.flatnonzero(beyond).tolist()
            }
            self.reject(texts, "BAD_CLOCK", texts.__getitem__)

    def reject_power(self, power_w: Array, specs: Sequence[GpuSpec | None], limit_w: Array) -> None:
        """Reject powers below what such a board draws at rest, and above its power limit."""
        of_spec = {spec: least_power_w(spec) if spec else 0.0 for spec in set(specs)}
        least = np.array([of_spec[spec] for spec in specs])
        with np.errstate(invalid="ignore"):
            low, high = power_w < least, power_w > ABOVE_LIMIT_SHARE * limit_w
        self.reject(
            low,
            "BAD_POWER",
            lambda i: f"{power_w[i]:.4g} W, less than the board draws at rest; is it in watts, joules per iteration?",
            power=True,
        )
        self.reject(high, "ABOVE_LIMIT", lambda i: f"{power_w[i]:.4g} W; limit {limit_w[i]:g} W", power=True)

    def kept(self) -> IntArray:
        """Places of the accepted rows."""
        return np.array([i for i in range(len(self.table)) if i not in self.whole], dtype=np.int64)

    def powerless(self) -> BoolArray:
        """Rows whose power is rejected, shape (n,)."""
        found = np.zeros(len(self.table), dtype=np.bool_)
        found[list(self.power)] = True
        return found

    def rejected(self) -> list[RejectedRow]:
        """Every rejection in the order of the rows; of a row that is rejected as a whole the power is not told as well."""
        told = [(i, *why, False) for i, why in self.whole.items()]
        told += [(i, *why, True) for i, why in self.power.items() if i not in self.whole]
        source, number = self.table.name, self.table.row
        return [
            RejectedRow(source=source, row=int(number[i]), reason=reason, detail=detail, power_only=power)
            for i, reason, detail, power in sorted(told)
        ]


def asked_gpu(text: str | None) -> GpuSpec | None:
    """The GPU that `--gpu` names, by name or file; None without one.  Raises SpecificationError for an unknown one."""
    return None if text is None else load_gpu(text.removeprefix(SIMULATED_PREFIX))


def known_gpu(text: str, asked: GpuSpec | None = None) -> GpuSpec | None:
    """The specification of the GPU that a row names, `asked` where it is that; a simulated board is the GPU that it simulates."""
    bare = text.removeprefix(SIMULATED_PREFIX)
    if asked is not None and is_named(asked, bare):
        return asked
    name = canonical_gpu_name(bare)
    return None if name is None else load_gpu(name)


def least_power_w(spec: GpuSpec) -> float:
    """No board of this kind draws less while a kernel runs [W]."""
    return LEAST_LIMIT_SHARE * spec.power_limit_w if spec.idle_w is None else AT_REST_SHARE * min(spec.idle_w.value)


def need_columns(table: Table, needed: Iterable[str], kind: str) -> None:
    """Raises InputError for a table that lacks a column."""
    missing = next((name for name in needed if name not in table), None)
    if missing is not None:
        raise InputError(f"{table.path}: no column {missing!r}; a {kind} needs {', '.join(needed)}")


Columns = TypeVar("Columns")


def taken(rows: Columns, index: IntArray | BoolArray, whole: Collection[str] = ()) -> Columns:
    """Some rows of a dataclass of columns; the fields `whole` stay as they are."""
    keep = np.flatnonzero(index) if index.dtype == np.bool_ else index
    changes: dict[str, Any] = {}
    for field in fields(rows):  # type: ignore[arg-type]
        if field.name not in whole:
            value = getattr(rows, field.name)
            changes[field.name] = tuple(value[i] for i in keep) if isinstance(value, tuple) else value[keep]
    return replace(rows, **changes)  # type: ignore[type-var]


Value = TypeVar("Value")


def numbered(values: Iterable[Value]) -> tuple[tuple[Value, ...], IntArray]:
    """Different values in first-seen order, and the number of each value among them, shape (n,)."""
    known: dict[Value, int] = {}
    index = np.array([known.setdefault(value, len(known)) for value in values], dtype=np.int64)
    return tuple(known), index


def first_known(*columns: Array | float) -> Array:
    """The first finite value of several columns, shape (n,)."""
    found: Array = np.asarray(columns[-1], dtype=np.float64)
    for column in reversed(columns[:-1]):
        found = np.where(np.isfinite(column), column, found)
    return found

"""Screening: accepts the plausible rows of a file, and rejects the others with a reason.

The checks run in the order of their certainty: unreadable values, unknown names, values that no hardware reaches.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final, TypeVar

import numpy as np

from collector.dataset.schema import FLAGS
from estimator.questions.estimates import least_clocks
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import HZ_PER_MHZ, Array, BoolArray, IntArray
from estimator.vocabulary.specifications import canonical_gpu_name, is_named, load_gpu
from estimator.vocabulary.values import frozen
from estimator.vocabulary.work import operator_work
from estimator.vocabulary.workload import Operator
from fitter.errors import InputError
from fitter.rows.rejected import OTHER_GPU, RejectedRow
from fitter.rows.tables import LONGEST_TEXT, Table

AT_REST_SHARE: Final = 0.5
"""Least power of a board under load, as a share of the least power at rest in its table [1]."""

LEAST_LIMIT_SHARE: Final = 0.02
"""Least power under load, as a share of the power limit, if power at rest is unknown; three boards draw 10 to 18 % at rest [1]."""

OVERSHOOT: Final = 1.15
"""Largest power over the limit [1]; more is another unit or another limit.  H200 boards drew 1.11 times their limit in the half second
before it acted."""

FEWEST_OF_A_UNIT: Final = 8
"""Fewer rows tell nothing about a file's unit (assumed)."""

CLOCK_MARGIN: Final = 1.1
"""Factor on the GPU's clock range; clocks beyond it mean another unit or another GPU [1]."""

SIMULATED_PREFIX: Final = "sim:"

LONGEST_RUN_S: Final = 30 * 86400.0
"""Longest plausible time of a launch, iteration or run: a month [s]."""


@frozen
class Limit:
    """Limits of a number column: above `low` (or `low` itself where `closed`) and up to `high`; `reason` rejects the row."""

    reason: str
    low: float = 0.0
    high: float = np.inf
    closed: bool = False
    whole: bool = False
    needed: bool = False

    def broken(self, values: Array) -> BoolArray:
        """Values beyond the limits, shape (n,); nan is within them unless `needed`."""
        with np.errstate(invalid="ignore"):
            low = (values < self.low if self.closed else values <= self.low) | (self.needed & np.isnan(values))
            found: BoolArray = low | (values > self.high) | (self.whole & np.isfinite(values) & (values % 1.0 != 0.0))
        return found

    def text(self) -> str:
        """The limits for people."""
        return f"must be a {'whole ' if self.whole else ''}number {'from' if self.closed else 'above'} {self.low:g} to {self.high:g}"


LIMITS: Final[Mapping[str, Limit]] = {
    "latency_s": Limit(reason="BAD_LATENCY", low=1e-9, closed=True, high=LONGEST_RUN_S, needed=True),
    "temperature_c": Limit(reason="BAD_TEMPERATURE", low=-60.0, high=150.0, closed=True),
    "iterations": Limit(reason="BAD_ITERATIONS", low=1.0, closed=True, high=1e15),
    "blocks": Limit(reason="BAD_SHAPE", low=1.0, closed=True, high=2.0**31 - 1.0, whole=True, needed=True),
    "block_threads": Limit(reason="BAD_SHAPE", low=1.0, closed=True, high=1024.0, whole=True, needed=True),
    "blocks_per_sm": Limit(reason="BAD_SHAPE", low=1.0, closed=True, high=32.0, whole=True),
    "power_w": Limit(reason="BAD_POWER"),
    "energy_j": Limit(reason="BAD_POWER"),
    "idle_w": Limit(reason="BAD_POWER", closed=True),
    "power_std_w": Limit(reason="BAD_POWER", closed=True),
    "power_limit_w": Limit(reason="BAD_POWER"),
    "weight_copies": Limit(reason="BAD_COUNT", low=1.0, closed=True),
    "sm_clock_mhz": Limit(reason="BAD_CLOCK"),
    "sm_clock_measured_mhz": Limit(reason="BAD_CLOCK"),
}
"""Limits of columns: no launch is shorter than a clock; sizes of a grid and threads of a block as in the CUDA
programming guide, technical specifications."""

COUNT_LIMIT: Final = Limit(reason="BAD_COUNT", closed=True)
"""Limits of all other counts."""


COLLECTION_COLUMNS: Final = ("collection", "source", "gpu_uuid", "host")
"""Columns that name the laboratory of a row, the first one that is filled counts; "#" ends a name."""

Detail = str | Callable[[int], str]
"""Detail of a rejected row: a text, or a function of its place in the table."""


class Screen:
    """Verdicts on the rows of one table: the first reason of each row counts; rejections of only the power are separate.

    table             remaining rows: without damaged rows, unknown GPUs, and repetitions of earlier rows
    specs, gpu_index  GPUs of the rows, and the one of each row
    """

    def __init__(self, table: Table, gpu: GpuSpec | None, *, repeated: bool = True) -> None:
        """Apply the checks of all tables; raises InputError for a table without a GPU if `gpu` is None.

        gpu: the GPU to keep, also the GPU of a table without such a column.  repeated: rows equal to an earlier one are rejected.
        """
        self.told: tuple[RejectedRow, ...] = ()
        self.specs: list[GpuSpec] = []
        self.gpu_index: IntArray = np.zeros(len(table), dtype=np.int64)
        self._start(table)
        self.reject(table.damaged, "BAD_TEXT", f"a cell of more than {LONGEST_TEXT} bytes, or the file ends within the row")
        self._reject_gpus(gpu)
        if repeated:
            self.reject(table.frame.duplicated().to_numpy(), "DUPLICATE", "equals an earlier row in every column")
        self.narrow()

    def _start(self, table: Table) -> None:
        self.table = table
        self.whole, self.power = (np.full(len(table), -1, dtype=np.int64) for _ in range(2))
        self.verdicts: list[tuple[str, Detail]] = []

    def reject(self, rows: BoolArray | Sequence[int], reason: str, detail: Detail, *, power: bool = False) -> None:
        """Reject rows (a mask, or their places), or their power."""
        found = self.power if power else self.whole
        index = np.flatnonzero(rows) if isinstance(rows, np.ndarray) else np.array(rows, dtype=np.int64)
        found[index[found[index] < 0]] = len(self.verdicts)
        self.verdicts.append((reason, detail))

    def narrow(self) -> None:
        """Remove the rejected rows from the table; later checks skip them.  Call it before any power is rejected."""
        self.told = self.rejected()
        keep = self.whole < 0
        self.gpu_index = self.gpu_index[keep]
        self._start(self.table.select(keep))

    def of_gpu(self, value: Callable[[GpuSpec], float]) -> Array:
        """A number of the GPU of each row, shape (n,)."""
        values: Array = np.array([value(spec) for spec in self.specs], dtype=np.float64)
        return values[self.gpu_index]

    def reject_limits(self, names: Iterable[str], *, power: Collection[str] = ()) -> None:
        """Reject rows with a cell that is not a number or is outside LIMITS.

        power: columns that concern only the power.
        """
        for name in names:
            limit, values = LIMITS.get(name, COUNT_LIMIT), self.table.numbers(name)
            self.reject_texts((name,), limit.reason, power=name in power)
            bad = limit.broken(values)
            self.reject(bad, limit.reason, lambda i, n=name, v=values, m=limit: f"{n} = {v[i]:g} {m.text()}", power=name in power)  # type: ignore[misc]

    def reject_texts(self, names: Iterable[str], reason: str, *, power: bool = False) -> None:
        """Reject rows with other text than a number in one of these columns, which would count as not stated."""
        for name in names:
            bad, cells = self.table.garbled(name), self.table.frame.get(name)
            self.reject(bad, reason, lambda i, n=name, c=cells: f"{n} = {str(c.iloc[i])[:40]!r} is no plain number", power=power)  # type: ignore[misc]

    def reject_flags(self, flags: Collection[str], rows: BoolArray | bool = True, *, power: bool = False) -> None:
        """Reject rows that `collect` marked with one of these flags."""
        for flag in sorted(flags):
            self.reject(self.table.marked(flag) & rows, flag.upper(), FLAGS[flag], power=power)

    def _reject_gpus(self, asked: GpuSpec | None) -> None:
        """Find the GPU of each row; rows of an unknown one, or of another one than `asked`, are rejected."""
        codes, texts = self.table.coded("gpu")
        if not any(texts):
            if asked is None:
                raise InputError(f"{self.table.path}: names no GPU; add a column 'gpu', or name that of all rows with --gpu")
            self.specs = [asked]
            return
        found = [known_gpu(text, asked) if text else None for text in texts]
        self.specs = list(dict.fromkeys(spec for spec in found if spec is not None))
        number = {spec: place for place, spec in enumerate(self.specs)}
        self.gpu_index = np.array([-1 if spec is None else number[spec] for spec in found])[codes]
        listed = "`estimate gpus` lists all; or name its file: --gpu FILE.toml"
        self.reject(self.gpu_index < 0, "UNKNOWN_GPU", lambda i: f"{texts[codes[i]][:80]!r}; {listed}")
        if asked is not None:
            self.reject(self.gpu_index != number.get(asked, -1), OTHER_GPU, lambda i: texts[codes[i]][:80])

    def clocks(self, name: str) -> Array:
        """A column of SM clocks [MHz]; rows with a clock outside the range of their GPU are rejected."""
        values = self.table.numbers(name)
        low = self.of_gpu(lambda spec: spec.sm_clock_min_mhz) / CLOCK_MARGIN
        high = self.of_gpu(lambda spec: spec.sm_clock_limit_mhz) * CLOCK_MARGIN

        def detail(i: int) -> str:
            return f"{name} = {values[i]:g}; {self.specs[self.gpu_index[i]].name} runs {low[i]:.0f} to {high[i]:.0f} MHz"

        self.reject((values < low) | (values > high), "BAD_CLOCK", detail)
        return values

    def reject_power(self, power_w: Array, limit_w: Array) -> None:
        """Reject powers below the board's power at rest, above its power limit, and more than a factor of 2 from a row's energy.

        Raises InputError if all lie on one side: the file holds milli- or kilowatts.
        """
        least_w = self.of_gpu(
            lambda spec: LEAST_LIMIT_SHARE * spec.power_limit_w if spec.idle_w is None else AT_REST_SHARE * min(spec.idle_w.value)
        )
        low, high = power_w < least_w, power_w > OVERSHOOT * limit_w
        read = np.isfinite(power_w) & (self.whole < 0) & (self.power < 0)
        for wrong, where in ((low, "below rest"), (high, "above the power limit")):
            if read.sum() >= FEWEST_OF_A_UNIT and wrong[read].all():
                raise InputError(f"{self.table.name}: all {read.sum()} powers are {where}; power_w must be in watts, energy_j in joules")
        with np.errstate(divide="ignore", invalid="ignore"):  # from rejected rows
            stated, other = self.table.numbers("power_w"), self.table.numbers("energy_j") / self.table.numbers("latency_s")
            apart = np.abs(np.log2(stated / other)) > 1.0
        self.reject(apart, "BAD_POWER", lambda i: f"power_w = {stated[i]:g} contradicts energy_j / latency_s = {other[i]:.4g}", power=True)
        self.reject(low, "BAD_POWER", lambda i: f"{power_w[i]:.4g} W; at rest the board draws over {least_w[i]:.3g} W", power=True)
        self.reject(high, "ABOVE_LIMIT", lambda i: f"{power_w[i]:.4g} W; limit {limit_w[i]:g} W", power=True)

    def kept(self) -> IntArray:
        """Places of the accepted rows."""
        return np.flatnonzero(self.whole < 0)

    def places(self) -> dict[str, Any]:
        """GPU and place of each row, as the columns of rows name them."""
        # As named, else the source of a published table, the board or host that measured, else "".
        named = zip(*map(self.table.texts, COLLECTION_COLUMNS), strict=True)
        collections, number = numbered(next(filter(None, found), "").partition("#")[0] for found in named)
        return {
            "gpus": tuple(self.specs),
            "gpu_index": self.gpu_index,
            "sources": (self.table.name,),
            "source_index": np.zeros(len(self.table), dtype=np.int64),
            "row": self.table.row,
            "collections": collections,
            "collection_index": number,
        }

    def rejected(self) -> tuple[RejectedRow, ...]:
        """Every rejection in the order of the rows.

        A fully rejected row has no second entry for its power.
        """
        found = list(self.told)
        for power, verdicts in ((False, self.whole), (True, np.where(self.whole < 0, self.power, -1))):
            for i in np.flatnonzero(verdicts >= 0).tolist():
                reason, detail = self.verdicts[verdicts[i]]
                text, row = detail if isinstance(detail, str) else detail(i), int(self.table.row[i])
                found.append(RejectedRow(source=self.table.name, row=row, reason=reason, detail=text, power_only=power))
        return tuple(sorted(found, key=lambda one: one.row))


def asked_gpu(gpu: str | GpuSpec | None) -> GpuSpec | None:
    """The GPU that `--gpu` names, by name or file; None without one.  Raises SpecificationError for an unknown one."""
    return load_gpu(gpu.removeprefix(SIMULATED_PREFIX)) if isinstance(gpu, str) else gpu


def known_gpu(text: str, asked: GpuSpec | None) -> GpuSpec | None:
    """The specification of a row's GPU, `asked` if the names are equal; a simulated board has the specification of its model."""
    bare = text.removeprefix(SIMULATED_PREFIX)
    if asked is not None and is_named(asked, bare):
        return asked
    return load_gpu(name) if (name := canonical_gpu_name(bare)) else None


ROOF_TOLERANCE: Final = 1.05
"""Largest ratio of the roof to a valid time [1]; published rates and timers have errors of some per cent."""


def roof_seconds(operators: Sequence[Operator], gpu: GpuSpec, index: IntArray, sm_clock_mhz: Array) -> Array:
    """The shortest time that a GPU's peak rates allow for the operator of each row [s], shape (n,); nan without a rate.

    Only limits that hold for any state of the caches count: arithmetic at the peak rate, the compulsory traffic beyond the size of L2 at
    the published DRAM bandwidth, and all of it at twice the assumed L2 bandwidth, since no vendor publishes it.
    index: the operator of each row.  sm_clock_mhz: nan where unknown, then the highest clock of the GPU.
    """
    clock_hz = first_known(sm_clock_mhz, gpu.sm_clock_limit_mhz) * HZ_PER_MHZ
    byte = np.array([work.read_byte + work.write_byte for work in map(operator_work, operators)])[index]
    dram = np.maximum(byte - gpu.l2_bytes, 0.0) / gpu.dram_bytes_per_s
    # The L2 bandwidths of specifications are estimates; real ones were found up to twice as high.
    l2 = byte / (2.0 * gpu.l2_bytes_per_clock * clock_hz)
    roof: Array = np.maximum(np.maximum(least_clocks(operators, gpu)[index] / clock_hz, dram), l2)
    linked = np.array([operator.family == "communication" for operator in operators])[index]
    # A sum inside a switch beats the rate of the links, but not what one GPU must take in.
    links = 0.5 * byte / gpu.link_bytes_per_s / 2.0 if gpu.link_bytes_per_s else np.nan
    return np.maximum(roof, np.where(linked, links, 0.0))


Columns = TypeVar("Columns")


def taken(rows: Columns, index: IntArray | BoolArray, whole: Collection[str] = ()) -> Columns:
    """Some rows of a dataclass of columns; the fields `whole` stay unchanged."""
    keep = np.flatnonzero(index) if index.dtype == np.bool_ else index
    changes: dict[str, Any] = {}
    for field in fields(rows):  # type: ignore[arg-type]
        if field.name not in whole:
            value = getattr(rows, field.name)
            changes[field.name] = tuple(value[i] for i in keep) if isinstance(value, tuple) else value[keep]
    return replace(rows, **changes)  # type: ignore[type-var]


Value = TypeVar("Value")


def numbered(values: Iterable[Value]) -> tuple[tuple[Value, ...], IntArray]:
    """Unique values in first-seen order, and the index of each value among them, shape (n,)."""
    known: dict[Value, int] = {}
    index = np.array([known.setdefault(value, len(known)) for value in values], dtype=np.int64)
    return tuple(known), index


def first_known(*columns: Array | float) -> Array:
    """The first finite value of several columns, shape (n,)."""
    found: Array = np.asarray(columns[-1], dtype=np.float64)
    for column in reversed(columns[:-1]):
        found = np.where(np.isfinite(column), column, found)
    return found

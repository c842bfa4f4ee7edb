"""GpuSpec: properties of a GPU, and the rates per cycle that follow.

Every figure comes from a TOML file in `configs/gpus`, with its source beside it.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Annotated, Any, Final

import numpy as np

from estimator.vocabulary.quantities import FORMATS, RATES, Array
from estimator.vocabulary.reader import LEAST_ONE, FaultError, Pattern, Span, Text, Words, check_ascending, check_known, check_lengths, read
from estimator.vocabulary.values import frozen

ClockMhz = Annotated[float, Span(10, 10_000, "MHz")]
Volt = Annotated[float, Span(0.2, 2.0, "V")]
IdleWatt = Annotated[float, Span(0.01, 1e4, "W")]
Precision = Annotated[str, Words(RATES)]
Rates = Mapping[Precision, Annotated[float, Span(0.1, 1e6, "flop per clock and SM")]]
"""Types of the fields; limits are wide enough for any GPU, narrow enough to catch a wrong unit."""

PROCESSES: Final = ("", "tsmc-12n", "samsung-8n", "tsmc-7n", "tsmc-4n")
MEMORIES: Final = ("", "hbm2", "hbm2e", "hbm3", "hbm3e", "gddr5", "gddr6", "gddr6x", "gddr7")

UUID_DIGITS: Final = 32
PROFILE_NAME: Final = re.compile(r"[A-Za-z0-9._ -]+")


@dataclass(frozen=True, kw_only=True)
class ClockTable:
    """A quantity over the SM clock: `sm_clock_mhz` ascending, `value` of the same length, and its source."""

    sm_clock_mhz: Annotated[tuple[ClockMhz, ...], LEAST_ONE, "ascending SM clocks [MHz]"]
    value: Annotated[tuple[float, ...], "of the quantity, at each clock"]
    source: Annotated[str, "where the table comes from"] = ""

    def __post_init__(self) -> None:
        check_ascending(self.sm_clock_mhz, "sm_clock_mhz")
        check_lengths({"value": self.value}, len(self.sm_clock_mhz))

    def at(self, sm_clock_mhz: Array) -> Array:
        """The quantity at given clocks, linear between entries, constant beyond the ends."""
        return np.interp(sm_clock_mhz, *self._columns)

    @cached_property
    def _columns(self) -> tuple[Array, Array]:
        return np.array(self.sm_clock_mhz), np.array(self.value)

    @cached_property
    def rising(self) -> "ClockTable":
        """The table without dips: midpoint of the highest value up to each clock and the lowest value from it on.

        A table that never falls is returned exactly.
        """
        _, value = self._columns
        highest, lowest = np.maximum.accumulate(value), np.minimum.accumulate(value[::-1])[::-1]
        return ClockTable(sm_clock_mhz=self.sm_clock_mhz, value=tuple((0.5 * (highest + lowest)).tolist()), source=self.source)


def check_values(kind: Any) -> Callable[[ClockTable | None], None]:
    """A check that refuses values of a table that are not of this kind."""

    def check(table: ClockTable | None) -> None:
        read(tuple[kind, ...], table.value if table else (), "value")

    return check


@frozen
class GpuSpec:
    """One GPU model.

    Rates are dense and per SM and clock: `tensor_flop_per_clock` and `cuda_flop_per_clock` map a precision to
    flop / (clock · SM).  `sm_clock_max_mhz` is the clock at which the vendor quotes peak rates;
    `sm_clock_min_mhz` and `sm_clock_step_mhz` describe the clocks that can be locked, `sm_clock_limit_mhz` the
    highest of them.  `voltage_v` [V] and `idle_w` [W] are tables over the SM clock, None if unknown.
    `product_names` are the names that drivers report, `short_names` those that people type; they identify the GPU.  `asleep_w` is
    the power without a context, at the lowest clocks: for the reader, no estimate uses it.  These three are not compared.
    """

    name: Annotated[Text, "name of the GPU"]
    architecture: Annotated[Text, "architecture"]
    compute_capability: Annotated[str, Pattern(r"\d{1,2}\.\d", "as 9.0"), "compute capability"]
    num_sms: Annotated[int, Span(1, 1024, "SMs")]
    sm_clock_max_mhz: Annotated[ClockMhz, "SM clock of the published peak rates"]
    sm_clock_limit_mhz: Annotated[ClockMhz, "highest SM clock that can be locked"]
    sm_clock_min_mhz: Annotated[ClockMhz, "lowest SM clock that can be locked"]
    sm_clock_step_mhz: Annotated[float, Span(0.5, 1_000, "MHz"), "step of the SM clocks that can be locked"]
    sm_clock_usual_mhz: Annotated[float, Span(0, 10_000, "MHz"), "SM clock under load, if nobody locks it; 0: the highest"] = 0.0
    memory_clock_mhz: Annotated[float, Span(10, 100_000, "MHz")]
    dram_bytes_per_s: Annotated[float, Span(1e9, 1e14, "byte/s")]
    dram_bytes: Annotated[float, Span(1e8, 1e14, "byte")]
    l2_bytes: Annotated[float, Span(1e4, 1e11, "byte")]
    l2_bytes_per_clock: Annotated[float, Span(16, 1e6, "byte per clock")]
    shared_bytes_per_clock: Annotated[float, Span(4, 1e4, "byte per clock and SM")]
    shared_bytes_per_sm: Annotated[float, Span(1024, 1e8, "byte")]
    registers_per_sm: Annotated[int, Span(1024, 1e7, "registers")]
    warps_per_sm: Annotated[int, Span(1, 1024, "warps")]
    blocks_per_sm: Annotated[int, Span(1, 1024, "blocks")]
    sfu_op_per_clock: Annotated[float, Span(0.1, 1e4, "operations per clock and SM")]
    tensor_flop_per_clock: Annotated[Rates, "dense peak rate of tensor cores by precision"]
    cuda_flop_per_clock: Annotated[Rates, "dense peak rate of CUDA cores by precision"]
    power_limit_w: Annotated[float, Span(1, 1e5, "W")]
    link_bytes_per_s: Annotated[float, Span(0, 1e14, "byte/s"), "links to other GPUs of a node, one direction; 0 where unknown"] = 0.0
    process: Annotated[str, Words(PROCESSES), "manufacturing process; empty where unknown"] = ""
    memory: Annotated[str, Words(MEMORIES), "kind of DRAM"] = ""
    silicon_clock_mhz: Annotated[float, Span(0, 10_000, "MHz"), "highest SM clock of any board with this chip; 0 where unknown"] = 0.0
    voltage_v: Annotated[ClockTable | None, check_values(Volt), "core voltage over the SM clock; absent where unknown"] = None
    idle_w: Annotated[ClockTable | None, check_values(IdleWatt), "power at rest over the SM clock; absent where unknown"] = None
    sources: Annotated[Mapping[str, Text], "origin of each figure"] = field(default_factory=dict)
    product_names: Annotated[tuple[Text, ...], "what drivers call it"] = field(default=(), compare=False)
    short_names: Annotated[tuple[Text, ...], "what people call it"] = field(default=(), compare=False)
    asleep_w: Annotated[IdleWatt | None, "power without a context; absent where unknown"] = field(default=None, compare=False)

    def __post_init__(self) -> None:
        idle_w, low, high = self.idle_w, self.sm_clock_min_mhz, self.sm_clock_limit_mhz
        for name in ("sm_clock_max_mhz", "sm_clock_usual_mhz"):
            if not low <= (clock := getattr(self, name) or high) <= high:
                ends = f"sm_clock_min_mhz = {low:g} and sm_clock_limit_mhz = {high:g}"
                raise FaultError(f"= {clock:g} must lie within {ends}; change these as well", name)
        if idle_w and (rest_w := min(idle_w.value)) >= self.power_limit_w:
            raise FaultError(f"= {self.power_limit_w:g} must lie above power at rest, {rest_w:g} W in idle_w", "power_limit_w")
        if idle_w and self.asleep_w and self.asleep_w > (rest_w := max(idle_w.value)):
            raise FaultError(f"= {self.asleep_w:g} must not lie above power at rest, {rest_w:g} W in idle_w", "asleep_w")
        if 0.0 < self.silicon_clock_mhz < high:
            raise FaultError(f"= {self.silicon_clock_mhz:g} must not lie below sm_clock_limit_mhz = {high:g}", "silicon_clock_mhz")
        if "fp32" not in self.cuda_flop_per_clock:
            raise FaultError("lacks fp32, which gives the number of lanes", "cuda_flop_per_clock")
        check_known(self.sources, tuple(one.name for one in fields(self)), "sources")

    def __hash__(self) -> int:
        return hash(self.name)  # rows of a table are grouped by GPU: a hash of all fields costs more than reading the row

    @property
    def usual_clock_mhz(self) -> float:
        """SM clock of a busy board whose clock nobody locks and no limit holds [MHz]."""
        return self.sm_clock_usual_mhz or self.sm_clock_limit_mhz

    @property
    def fp32_lanes(self) -> float:
        """fp32 lanes of an SM: one fused multiply-add (2 flop) a clock each."""
        return self.cuda_flop_per_clock["fp32"] / 2.0

    def clocks_mhz(self) -> Array:
        """Every SM clock that can be locked, ascending [MHz], shape (n,)."""
        count = round((self.sm_clock_limit_mhz - self.sm_clock_min_mhz) / self.sm_clock_step_mhz) + 1
        return self.sm_clock_min_mhz + self.sm_clock_step_mhz * np.arange(count, dtype=np.float64)

    def matrix_flop_per_clock(self, precision: str, cuda_cores: bool) -> float:
        """Peak rate of a matrix product [flop / (clock · SM)]; nan if the GPU has no such rate.

        tf32 on a GPU without it runs as fp32.
        """
        table, form = self.cuda_flop_per_clock if cuda_cores else self.tensor_flop_per_clock, FORMATS[precision]
        if form.beside and form.beside not in table:
            return math.nan
        return table.get(form.rate, self.cuda_flop_per_clock.get("fp32" if form.rate == "tf32" else form.rate, math.nan))

    def on_tensor_cores(self, precision: str) -> bool:
        """Whether products in this format run on tensor cores."""
        return FORMATS[precision].rate in self.tensor_flop_per_clock


def simulated_uuid(name: str) -> str:
    """UUID of a simulated board: it encodes the name of the board's profile."""
    digits = name.encode().hex().ljust(UUID_DIGITS, "0")[:UUID_DIGITS]
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def is_simulated_uuid(uuid: str) -> bool:
    """Whether a UUID encodes a name; fewer than one in 10^9 UUIDs of real boards does."""
    try:
        name = bytes.fromhex(uuid.removeprefix("GPU-").replace("-", "")).rstrip(b"\0").decode("ascii")
    except ValueError:
        return False
    # A shorter name of a profile gives a UUID that looks like a real one.
    return len(name) >= 6 and PROFILE_NAME.fullmatch(name) is not None and simulated_uuid(name) == uuid

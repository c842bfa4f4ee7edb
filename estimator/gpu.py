"""GpuSpec: what a GPU is, and the rates per cycle that follow.

Every figure comes from a TOML file in `configs/gpus`, with its source beside it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from estimator.quantities import HZ_PER_MHZ, Array

UUID_DIGITS: Final = 32
SHORTEST_NAME: Final = 6
"""Shorter names of profiles leave a UUID that nothing tells from a real one."""
PROFILE_NAME: Final = re.compile(r"[A-Za-z0-9._ -]+")


@dataclass(frozen=True, kw_only=True)
class ClockTable:
    """A quantity over the SM clock: `sm_clock_mhz` ascending, `value` of the same length, and its source."""

    sm_clock_mhz: tuple[float, ...]
    value: tuple[float, ...]
    source: str = ""

    def at(self, sm_clock_mhz: Array) -> Array:
        """The quantity at given clocks, linear between entries, constant beyond the ends."""
        return np.interp(sm_clock_mhz, *self._columns)

    @cached_property
    def _columns(self) -> tuple[Array, Array]:
        return np.array(self.sm_clock_mhz), np.array(self.value)

    def rising(self) -> "ClockTable":
        """The same without dips: half-way between the highest value up to each clock and the lowest from it on.

        Of a table that never falls it is that table, to the bit.
        """
        return self._rising

    @cached_property
    def _rising(self) -> "ClockTable":
        _, value = self._columns
        highest, lowest = np.maximum.accumulate(value), np.minimum.accumulate(value[::-1])[::-1]
        return ClockTable(sm_clock_mhz=self.sm_clock_mhz, value=tuple((0.5 * (highest + lowest)).tolist()), source=self.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One GPU model.

    Rates are dense and per SM and clock: `tensor_flop_per_clock` and `cuda_flop_per_clock` map a precision to
    flop / (clock · SM).  `sm_clock_max_mhz` is the clock at which the vendor quotes peak rates;
    `sm_clock_min_mhz` and `sm_clock_step_mhz` describe the clocks that can be locked, `sm_clock_limit_mhz` the
    highest of them.  `voltage_v` [V] and `idle_w` [W] are tables over the SM clock, None where unknown.
    `product_names` are what drivers call it; they tell which GPU it is, and are no property of it.
    """

    name: str
    architecture: str
    compute_capability: str
    num_sms: int
    sm_clock_max_mhz: float
    sm_clock_limit_mhz: float
    sm_clock_min_mhz: float
    sm_clock_step_mhz: float
    memory_clock_mhz: float
    dram_bytes_per_s: float
    dram_bytes: float
    l2_bytes: float
    l2_bytes_per_clock: float
    shared_bytes_per_clock: float
    shared_bytes_per_sm: float
    registers_per_sm: int
    warps_per_sm: int
    blocks_per_sm: int
    sfu_op_per_clock: float
    tensor_flop_per_clock: Mapping[str, float]
    cuda_flop_per_clock: Mapping[str, float]
    power_limit_w: float
    voltage_v: ClockTable | None = None
    idle_w: ClockTable | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    product_names: tuple[str, ...] = field(default=(), compare=False)

    @property
    def fp32_lanes(self) -> float:
        """fp32 lanes of an SM: one fused multiply-add (2 flop) a clock each."""
        return self.cuda_flop_per_clock["fp32"] / 2.0

    def clocks_mhz(self) -> Array:
        """Every SM clock that can be locked, ascending [MHz], shape (n,)."""
        count = round((self.sm_clock_limit_mhz - self.sm_clock_min_mhz) / self.sm_clock_step_mhz) + 1
        return self.sm_clock_min_mhz + self.sm_clock_step_mhz * np.arange(count, dtype=np.float64)

    def matrix_flop_per_clock(self, precision: str, cuda_cores: bool) -> float:
        """Peak rate of a matrix product [flop / (clock · SM)]; nan where the GPU has no such rate.

        tf32 on a GPU without it runs as fp32.
        """
        table = self.cuda_flop_per_clock if cuda_cores else self.tensor_flop_per_clock
        return table.get(precision, self.cuda_flop_per_clock.get("fp32" if precision == "tf32" else precision, float("nan")))

    def peak_flop_per_s(self, precision: str, cuda_cores: bool = False) -> float:
        """Peak rate at `sm_clock_max_mhz` [flop/s]."""
        return self.matrix_flop_per_clock(precision, cuda_cores) * self.num_sms * self.sm_clock_max_mhz * HZ_PER_MHZ


def simulated_uuid(name: str) -> str:
    """UUID of a simulated board: it spells the name of the board's profile."""
    digits = name.encode().hex().ljust(UUID_DIGITS, "0")[:UUID_DIGITS]
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def is_simulated_uuid(uuid: str) -> bool:
    """Whether a UUID spells a name, which of those of real boards not one in 10^9 does."""
    try:
        name = bytes.fromhex(uuid.removeprefix("GPU-").replace("-", "")).rstrip(b"\0").decode("ascii")
    except ValueError:
        return False
    return len(name) >= SHORTEST_NAME and PROFILE_NAME.fullmatch(name) is not None and simulated_uuid(name) == uuid

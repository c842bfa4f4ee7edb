"""The protocols at the hardware edge and the values that cross it.

A `Gpu` reports a board's state and sets its clock; a `PowerSensor` returns everything new
since its last read; a `KernelRunner` (`microbench.runners.runner`) runs one launch a given number of times.  All three share one `Clock`,
and all waiting goes through it: the real clock sleeps while a thread drains sensors and states, the simulated one
advances its world, whose polls are then all ready to be read.

Host time is integer nanoseconds of one monotonic clock.
"""

from collections.abc import Callable
from typing import Final, Protocol

from collector.errors import ClockError
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import Array, IntArray
from estimator.vocabulary.values import frozen
from microbench.kernel import PreparedKernel as PreparedKernel
from microbench.runners.runner import KernelRunner as KernelRunner
from microbench.runners.runner import LaunchRecord as LaunchRecord

THROTTLE_BITS: Final = {
    "gpu_idle": 0x01,
    "applications_clocks": 0x02,
    "sw_power_cap": 0x04,
    "hw_slowdown": 0x08,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake": 0x80,
    "display_clocks": 0x100,
}
"""Clock event reasons with NVML's numbers (nvml.h, nvmlClocksEventReason*)."""

LIMITING_REASONS: Final = frozenset({"sw_power_cap", "hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake"})
"""Reasons for which a board runs below the requested clock."""

CLOCK_TOLERANCE_MHZ: Final = 0.51
"""Largest difference from a supported clock [MHz]: drivers report half steps rounded."""


def limiting_reasons(mask: int) -> tuple[str, ...]:
    """Names of the reasons in a bit mask that mean "slower than requested", in the order of their bits."""
    return tuple(name for name, bit in THROTTLE_BITS.items() if mask & bit and name in LIMITING_REASONS)


def supported_clock(clock: float, supported: tuple[float, ...]) -> float:
    """The supported clock nearest to a requested one [MHz].  Raises ClockError if none is near."""
    nearest = min(supported, key=lambda other: abs(other - clock))
    if not abs(nearest - clock) <= CLOCK_TOLERANCE_MHZ:
        raise ClockError(
            f"SM clock {clock:g} MHz is not supported; this board takes {supported[0]:g} to {supported[-1]:g} MHz, nearest {nearest:g} MHz"
        )
    return nearest


class Clock(Protocol):
    """Host time, and the only way to wait."""

    def now_ns(self) -> int:
        """Monotonic host time [ns]."""

    def wait(self, seconds: float) -> None:
        """Wait this long, 0 or more [s]."""

    def unix_s(self) -> float:
        """Wall time [s since 1970], for provenance only."""


@frozen
class GpuIdentity:
    """Identity of a board.

    `name` is the driver's product name, `canonical_name` that of `configs/gpus` ("" where unknown);
    `simulated` is true without hardware.
    """

    name: str
    canonical_name: str
    uuid: str
    pci_address: str
    driver: str
    vbios: str
    compute_capability: str
    simulated: bool


@frozen
class GpuState:
    """The board at one instant.  `voltage_v` is nan if it cannot be read; `throttle_mask` holds THROTTLE_BITS.

    `other_processes` are the ids of processes, without ours, that have work on the board; None if the driver does not report them.
    """

    host_ns: int
    sm_clock_mhz: float
    memory_clock_mhz: float
    temperature_c: float
    voltage_v: float
    power_limit_w: float
    throttle_mask: int
    other_processes: tuple[int, ...] | None = None


@frozen
class StateReadings:
    """States polled since the last read, oldest first; every column has shape (n,)."""

    host_ns: IntArray
    sm_clock_mhz: Array
    temperature_c: Array
    voltage_v: Array
    throttle_mask: IntArray


@frozen
class PowerReadings:
    """Polls of one power field since the last read, oldest first, repeats included; columns of shape (n,).

    `field` is "instant", "average" or "usage" for a board's own sensor, "total" for an external meter.
    `host_ns` is the time at which the host took the reading, not the time that the value describes.
    """

    field: str
    host_ns: IntArray
    power_w: Array


@frozen
class EnergyReading:
    """An energy counter: energy since some origin [J], a multiple of 1 mJ on NVML."""

    host_ns: int
    energy_j: float


class Gpu(Protocol):
    """Identity, state and clocks of one board."""

    def identity(self) -> GpuIdentity:
        """Identity of the board."""

    def state(self) -> GpuState:
        """The board now."""

    def read_states(self) -> StateReadings:
        """Every state polled since the last call: one on a real board, all polls so far on a simulated one."""

    def supported_clocks_mhz(self) -> tuple[float, ...]:
        """SM clocks that can be locked, ascending [MHz]; empty if locking is not possible."""

    def lock_clock_mhz(self, sm_clock_mhz: float) -> None:
        """Hold the SM clock.  Raises ClockError for a clock that is not supported or not permitted."""

    def unlock_clock(self) -> None:
        """Give the SM clock back to the driver.  A second call is harmless."""

    def power_limit_w(self) -> float:
        """The enforced power limit [W]."""

    def voltage_readable(self) -> bool:
        """Whether `state` contains the core voltage."""


class PowerSensor(Protocol):
    """One source of power readings."""

    def name(self) -> str:
        """Name of the source: "nvml", "pmd"…"""

    def fields(self) -> tuple[str, ...]:
        """The fields that `read` returns, in that order."""

    def read(self) -> tuple[PowerReadings, ...]:
        """Everything new since the last call, one entry for each field (its columns may be empty)."""

    def read_energy(self) -> EnergyReading | None:
        """The energy counter; None without one."""


@frozen
class Instruments:
    """A board, its power sensors (its own first) and the clock they share: readable without running anything on the board.

    `simulated` is true without hardware; `notes` list possible disturbances of a measurement here.  `planted_energy_j` is the truth of
    a simulated board: the energy that it drew between two host times [ns].
    """

    word: str
    gpu: Gpu
    sensors: tuple[PowerSensor, ...]
    clock: Clock
    simulated: bool
    notes: tuple[str, ...] = ()
    planted_energy_j: Callable[[int, int], float] | None = None


@frozen
class Bench(Instruments):
    """The devices of a measurement: instruments, a runner on their clock, and the specification of the board."""

    runner: KernelRunner
    gpu_spec: GpuSpec

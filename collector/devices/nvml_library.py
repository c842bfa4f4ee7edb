"""The driver's management library, NVML: every call of the collector, and the only file that imports pynvml.

A call that the binding, a driver or a board lacks gives None; a board or a driver that fails raises a named error.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from collector.errors import BoardLostError, ClockError, ClockRightError, DeviceError, DriverError

NOT_SUPPORTED: Final = 3
NO_PERMISSION: Final = 4
FUNCTION_NOT_FOUND: Final = 13
"""nvmlReturn_t of nvml.h."""

VALUE_NOT_AVAILABLE: Final = 0xFFFF_FFFF
"""NVML's "no value" in 32 bits (NVML_VALUE_NOT_AVAILABLE)."""

ABSENT_CODES: Final = frozenset({NOT_SUPPORTED, NO_PERMISSION, 6, FUNCTION_NOT_FOUND, 21, 25})
"""Not supported, not permitted, not found, function missing, no data, argument version: no answer is available."""

LOST_CODES: Final = {
    1: "the driver was restarted; run the command again, a campaign with --resume",
    15: "it has fallen off the bus; look for Xid errors in the kernel's log (dmesg) and restart the machine",
    16: "it must be reset; let root run `nvidia-smi --gpu-reset -i INDEX` when nobody uses it, or restart the machine",
}
"""Uninitialised, GPU lost, reset required: the event and the remedy."""

REFUSALS: Final = {
    9: "the NVIDIA driver is not loaded; load it (modprobe nvidia) or restart the machine",
    12: "no NVIDIA driver is installed here (libnvidia-ml.so.1 is not found)",
    18: "the NVIDIA driver was updated, but the old one is still loaded; restart the machine",
    NO_PERMISSION: "this user may not reach the NVIDIA driver; check the rights of /dev/nvidia*",
}

FIELD_TYPES: Final = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
"""Member of the union for each value type (nvmlValueType_t).  Drivers differ in the type of the same field."""

NUMBERS: Final[dict[str, tuple[float, tuple[tuple[str, *tuple[int, ...]], ...]]]] = {
    "sm_clock_mhz": (1.0, (("nvmlDeviceGetClockInfo", 1),)),
    "memory_clock_mhz": (1.0, (("nvmlDeviceGetClockInfo", 2),)),
    "temperature_c": (1.0, (("nvmlDeviceGetTemperatureV", 0), ("nvmlDeviceGetTemperature", 0))),
    "throttle_mask": (1.0, (("nvmlDeviceGetCurrentClocksEventReasons",), ("nvmlDeviceGetCurrentClocksThrottleReasons",))),
    "power_limit_w": (1e-3, (("nvmlDeviceGetEnforcedPowerLimit",),)),
    "power_usage_w": (1e-3, (("nvmlDeviceGetPowerUsage",),)),
    "energy_j": (1e-3, (("nvmlDeviceGetTotalEnergyConsumption",),)),
}
"""Numbers of a board: our unit in NVML's, and the calls that give it, the newer one first.

The power limit is the enforced one, the temperature the core's.  The power usage is an average over a second on Ampere (except the
A100) and newer.  The energy counter begins when the driver is loaded.  Throttle bits are THROTTLE_BITS.
"""


@dataclass(frozen=True, slots=True)
class Calls:
    """NVML's calls, through its binding."""

    binding: Any

    def driver(self) -> str:
        """The driver's version; "" if unknown."""
        return self._ask("nvmlSystemGetDriverVersion") or ""

    def _ask(self, call: str, *arguments: Any) -> Any:
        """A call's result; None if it is not available.  Raises BoardLostError, DeviceError."""
        function = getattr(self.binding, call, None)
        if function is None:
            return None
        try:
            return function(*arguments)
        except self.binding.NVMLError as error:
            if error.value in ABSENT_CODES:
                return None
            raise self._failure(call, error) from error

    def _need(self, call: str, *arguments: Any) -> Any:
        """A call's result.  Raises DriverError without one."""
        answer = self._ask(call, *arguments)
        if answer is None:
            raise DriverError(f"the NVIDIA driver does not answer {call}; update the driver")
        return answer

    def _failure(self, call: str, error: Any) -> DeviceError:
        if error.value in LOST_CODES:
            return lost_board(error.value)
        return DeviceError(f"NVML {call} failed: {error}; run the command again, a campaign with --resume")


class NvmlLibrary(Calls):
    """NVML, initialised; made by `open_nvml`."""

    def devices(self) -> "tuple[NvmlDevice | None, ...]":
        """Every board, in NVML's order; None for one that no longer answers.  Raises DriverError, DeviceError."""
        return tuple(map(self._device, range(self._ask("nvmlDeviceGetCount") or 0)))

    def device_of(self, uuid: str) -> "NvmlDevice | None":
        """The board of a UUID, independent of the state of the others; None if it is missing.  Raises DriverError, DeviceError."""
        for device in self.devices():
            with suppress(BoardLostError):
                if device is not None and device.uuid() == uuid:
                    return device
        return None

    def _device(self, index: int) -> "NvmlDevice | None":
        try:
            return NvmlDevice(self.binding, self._need("nvmlDeviceGetHandleByIndex", index))
        except BoardLostError:
            return None


@dataclass(frozen=True, slots=True)
class NvmlDevice(Calls):
    """A board, by its handle; valid while the library is open."""

    handle: Any

    def _get(self, call: str, *arguments: Any) -> Any:
        """A call's result for this board, as of `_ask`."""
        return self._ask(call, self.handle, *arguments)

    def name(self) -> str:
        """The product's name."""
        return str(self._get("nvmlDeviceGetName") or "")

    def uuid(self) -> str:
        """The board's UUID."""
        return str(self._need("nvmlDeviceGetUUID", self.handle))

    def pci_address(self) -> str:
        """The PCI address as domain:bus:device.0, in lower case; "" if unknown."""
        info = self._get("nvmlDeviceGetPciInfo")
        place = "" if info is None else info.busId
        return (place.decode("ascii", "replace") if isinstance(place, bytes) else str(place)).lower()

    def vbios(self) -> str:
        """Version of the board's firmware; "" if unknown."""
        return str(self._get("nvmlDeviceGetVbiosVersion") or "")

    def compute_capability(self) -> str:
        """Compute capability, such as "9.0"; "" if unknown."""
        pair = self._get("nvmlDeviceGetCudaComputeCapability")
        return f"{pair[0]}.{pair[1]}" if pair else ""

    def mig_enabled(self) -> bool:
        """Whether the board is cut into instances (MIG)."""
        modes = self._get("nvmlDeviceGetMigMode")
        return bool(modes and modes[0] == 1)

    def virtualisation(self) -> int:
        """Virtualisation of the board: 0 not at all, 1 passed through, 2 a vGPU, above that a host of vGPUs."""
        return int(self._get("nvmlDeviceGetVirtualizationMode") or 0)

    def compute_processes(self) -> tuple[int, ...] | None:
        """Process ids with a compute context on the board; None if unknown."""
        found = self._get("nvmlDeviceGetComputeRunningProcesses")
        return None if found is None else tuple(int(process.pid) for process in found)

    def number(self, name: str) -> float:
        """One of NUMBERS; nan if neither driver nor board reports it."""
        unit, calls = NUMBERS[name]
        for call, *arguments in calls:
            value = self._get(call, *arguments)
            if value not in (None, VALUE_NOT_AVAILABLE):
                return float(value) * unit
        return math.nan

    def fields(self, wanted: Sequence[tuple[int, int]]) -> tuple[float, ...] | None:
        """Values of fields (number, scope), each in its own unit, nan without one; None if the driver has no fields."""
        found = self._get("nvmlDeviceGetFieldValues", wanted)
        return None if found is None else tuple(_field(one) for one in found)

    def supported_sm_clocks_mhz(self) -> tuple[float, ...]:
        """SM clocks at the highest memory clock, ascending [MHz]; empty if the driver lists none."""
        memory = self._get("nvmlDeviceGetSupportedMemoryClocks")
        clocks = self._get("nvmlDeviceGetSupportedGraphicsClocks", max(memory)) if memory else None
        return tuple(sorted(map(float, clocks or ())))

    def can_lock_clocks(self) -> bool:
        """Whether the driver can hold a clock; only a trial shows whether this user may."""
        try:
            self.binding._nvmlGetFunctionPointer("nvmlDeviceSetGpuLockedClocks")
        except self.binding.NVMLError:
            return False
        return True

    def lock_sm_clock(self, sm_clock_mhz: float) -> None:
        """Hold the SM clock.  Raises ClockError with the reason if the driver refuses; ClockRightError if rights are missing."""
        whole = round(sm_clock_mhz)
        self._set_clocks(f"SM clock {whole} MHz cannot be locked", "nvmlDeviceSetGpuLockedClocks", whole, whole)

    def reset_sm_clock(self) -> None:
        """Give the SM clock back to the driver.  Raises ClockError with the reason if the driver refuses."""
        self._set_clocks("the SM clock cannot be given back", "nvmlDeviceResetGpuLockedClocks")

    def _set_clocks(self, complaint: str, call: str, *arguments: Any) -> None:
        try:
            getattr(self.binding, call)(self.handle, *arguments)
        except self.binding.NVMLError as error:
            if error.value == NO_PERMISSION:
                raise ClockRightError(
                    f"{complaint}: this needs root (or CAP_SYS_ADMIN) or the clock helper (docs/how-to/lock-clocks-without-root.md); "
                    "--freqs current leaves the clocks alone"
                ) from error
            if error.value in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
                raise ClockError(f"{complaint}: neither this board nor its driver supports it; use --freqs current") from error
            if error.value in LOST_CODES:
                raise self._failure(call, error) from error
            raise ClockError(f"{complaint}: the driver refuses it ({error}); take another clock, or --freqs current") from error


def lost_board(code: int = 15) -> BoardLostError:
    """The error for one of LOST_CODES."""
    return BoardLostError(f"the board does not answer any more: {LOST_CODES[code]}")


def _field(found: Any) -> float:
    member = FIELD_TYPES.get(found.valueType)
    value = getattr(found.value, member) if member and not found.nvmlReturn else VALUE_NOT_AVAILABLE
    return math.nan if value == VALUE_NOT_AVAILABLE else float(value)


@contextmanager
def open_nvml() -> Iterator[NvmlLibrary]:
    """The library, initialised; shut down at the end.

    Raises DriverError if the binding or the driver is missing or cannot be used.
    """
    try:
        import pynvml as binding
    except ImportError:
        raise DriverError("nvidia-ml-py is not installed; install wattprint[collect]: pip install 'wattprint[collect]'") from None
    try:
        binding.nvmlInit()
    except binding.NVMLError as error:
        raise DriverError(REFUSALS.get(error.value, f"the NVIDIA driver cannot be used: {error}")) from error
    try:
        yield NvmlLibrary(binding)
    finally:
        with suppress(binding.NVMLError):  # the driver may be gone
            binding.nvmlShutdown()

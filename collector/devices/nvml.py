"""A real board through NVML: identity, state, clocks and the power fields that its driver offers."""

import math
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import numpy as np

from collector.devices.clock_helper import LeasedClock, allowed_clocks, helper_there, may_lock_clocks
from collector.devices.clock_record import ClockGuard
from collector.devices.nvml_library import NvmlDevice, NvmlLibrary, lost_board, open_nvml
from collector.devices.polling import Poller
from collector.devices.possible_power import possible_power
from collector.devices.protocols import EnergyReading, GpuIdentity, GpuState, PowerReadings, StateReadings
from collector.devices.voltage import open_voltage
from collector.errors import BoardLostError, ClockError, ClockRightError, DeviceError
from estimator.vocabulary.specifications import canonical_gpu_name
from estimator.vocabulary.values import frozen

POWER_POLL_S: Final = 0.002
"""Time between two reads of the power: several within the shortest update period seen (15 ms), a small share of a core.

Slow calls lengthen it (polling.PAUSE_SHARE); `--poll-ms` sets it for a sensor known to update slowly.
"""

STATE_POLL_S: Final = 0.02
"""Time between two reads of clock, temperature and throttle reasons."""

USAGE: Final = "usage"
"""The field of drivers without power fields: nvmlDeviceGetPowerUsage."""

POWER_FIELDS: Final = {"instant": (186, 0), "average": (185, 0), "module_instant": (186, 1)}
"""Our names of the power fields: number (nvml.h: 186 the current power, 185 an average over a second [mW]) and scope (0: the GPU).

The module (scope 1) is a GPU with the CPU beside it (Grace Hopper).
"""

MODULE: Final = "module"
SUPERCHIP: Final = "GH200"
OF_MODULE: Final = (
    "this board shares a module with a CPU: `instant` there is the power of the whole module (Yang, Adamek, Armour, figure 19), so the "
    "power field in use is average, a mean over a second; the energy counter is the module's too and is left out"
)
BEST_FIELD: Final = "instant"

PROCESS_SPACE: Final = "/proc/self/ns/pid"


@frozen
class BoardAddress:
    """Names of a board: NVML index, UUID, PCI address; and its product name.

    A board that no longer answers has only its index, and `trouble` states why.
    """

    index: int
    uuid: str
    pci_address: str
    name: str
    trouble: str = ""


class NvmlGpu:
    """A board through its driver; implements Gpu.  States are polled while `open_board` is open."""

    def __init__(self, device: NvmlDevice, voltage: Callable[[], float] | None) -> None:
        self._device = device
        self._voltage = voltage
        self._guard = ClockGuard(device.uuid())
        self._leased: LeasedClock | None = None
        self._identity = _identity(device)
        self._before_us = frozenset(device.compute_processes() or ())
        self._ours: int | None = None
        self.states = Poller("state", self._read_state, 4, STATE_POLL_S)

    def identity(self) -> GpuIdentity:
        """Identity of the board."""
        return self._identity

    def state(self) -> GpuState:
        """The board now; nan for values that the driver does not report.  Raises ClockError if the clock helper took its clock back."""
        if self._leased is not None:
            self._leased.check()
        clock, temperature, volt, mask = self._read_state()
        return GpuState(
            host_ns=time.monotonic_ns(),
            sm_clock_mhz=clock,
            memory_clock_mhz=self._device.number("memory_clock_mhz"),
            temperature_c=temperature,
            voltage_v=volt,
            power_limit_w=self.power_limit_w(),
            throttle_mask=int(mask),
            other_processes=self._other_processes(),
        )

    def read_states(self) -> StateReadings:
        """Every state polled since the last call.  Raises BoardLostError if the board is lost."""
        stamps, rows = self.states.take()
        return StateReadings(
            host_ns=stamps,
            sm_clock_mhz=rows[:, 0],
            temperature_c=rows[:, 1],
            voltage_v=rows[:, 2],
            throttle_mask=rows[:, 3].astype(np.int64),
        )

    def supported_clocks_mhz(self) -> tuple[float, ...]:
        """SM clocks that can be locked, ascending [MHz]; empty if the driver cannot lock them."""
        if not self._device.can_lock_clocks():
            return ()
        clocks = self._device.supported_sm_clocks_mhz()
        return clocks if may_lock_clocks() else allowed_clocks(self._identity.uuid, clocks)

    def lock_clock_mhz(self, sm_clock_mhz: float) -> None:
        """Hold the SM clock, guarded from before the first change; through the clock helper if this process may not.

        Raises ClockError if that is not supported, not permitted, or if another process holds this board's clock.
        """
        if self._leased is not None:
            self._leased.lock(sm_clock_mhz)
            return
        held_before = self._guard.armed
        self._guard.arm()
        try:
            self._device.lock_sm_clock(sm_clock_mhz)
        except ClockError as error:
            if not held_before:
                self._guard.disarm()
            if not (isinstance(error, ClockRightError) and helper_there()):
                raise
            self._leased = LeasedClock(self._identity.uuid, sm_clock_mhz)

    def unlock_clock(self) -> None:
        """Give the SM clock back; does nothing if this object never held it.

        Raises ClockError if the driver refuses; the record then stays, and the guard tries again at the end.
        """
        leased, self._leased = self._leased, None
        if leased is not None:
            leased.unlock()
        if self._guard.armed:
            self._device.reset_sm_clock()
            self._guard.disarm()

    def power_limit_w(self) -> float:
        """The enforced power limit [W]; nan if the driver reports none, or 0."""
        return self._device.number("power_limit_w") or math.nan

    def voltage_readable(self) -> bool:
        """Whether `state` contains the core voltage."""
        return self._voltage is not None

    def _other_processes(self) -> tuple[int, ...] | None:
        """Processes with work on the board, without this one; None if the driver does not report them.

        In a container the driver shows numbers of the host, not ours: this process is then the first one to appear after its start.
        """
        found = self._device.compute_processes()
        if found is None:
            return None
        if self._ours is None:
            new = [pid for pid in found if pid not in self._before_us]
            self._ours = os.getpid() if os.getpid() in found else (new[0] if new and not _sees_all_processes() else None)
        return tuple(pid for pid in found if pid != self._ours)

    def _read_state(self) -> tuple[float, float, float, float]:
        """SM clock [MHz], temperature [°C], voltage [V] and throttle bits."""
        clock, temperature, mask = (self._device.number(name) for name in ("sm_clock_mhz", "temperature_c", "throttle_mask"))
        return clock, temperature, math.nan if self._voltage is None else self._voltage(), 0.0 if math.isnan(mask) else mask


class NvmlPowerSensor:
    """A board's own power readings and energy counter; implements PowerSensor.

    Only the best field is polled: "instant", else "average", on a board that shares a module with a CPU "average", as "instant" covers the
    module; "usage" on a driver without power fields.
    """

    def __init__(self, device: NvmlDevice, poll_s: float = POWER_POLL_S) -> None:
        self._device = device
        found, self.notes = _power_fields(device)
        self._fields = found[:1]
        self.readings = Poller("power", partial(read_power_w, device, self._fields), 1, poll_s)

    def name(self) -> str:
        """Name of the source."""
        return "nvml"

    def fields(self) -> tuple[str, ...]:
        """The fields that `read` returns."""
        return self._fields

    def read(self) -> tuple[PowerReadings, ...]:
        """Everything polled since the last call; a poll without a value is left out.  Raises BoardLostError."""
        stamps, rows = self.readings.take()
        kept = possible_power(rows[:, 0])
        return tuple(PowerReadings(field=field, host_ns=stamps[kept], power_w=rows[kept, 0]) for field in self._fields)

    def read_energy(self) -> EnergyReading | None:
        """The energy counter; None if it is missing or counts more than the GPU."""
        if OF_MODULE in self.notes:
            return None
        before = time.monotonic_ns()
        energy_j = self._device.number("energy_j")
        return None if math.isnan(energy_j) else EnergyReading(host_ns=(before + time.monotonic_ns()) // 2, energy_j=energy_j)


@frozen
class NvmlBoard:
    """A real board and its own sensor, polled."""

    index: int
    gpu: NvmlGpu
    sensor: NvmlPowerSensor
    compute_processes: tuple[int, ...] | None


@contextmanager
def open_board(word: str, poll_s: float = POWER_POLL_S) -> Iterator[NvmlBoard]:
    """The board with this NVML index, UUID or PCI address, its power polled every `poll_s`; its clock is given back at the end.

    Raises DriverError without a usable driver, DeviceError for a word that names no board and for a board
    that is cut into instances or shared as a vGPU, whose power cannot be attributed to one user.
    """
    with open_nvml() as library:
        index = choose_board(word, board_addresses(library))
        device = library.devices()[index]
        if device is None:
            raise lost_board()
        if device.mig_enabled():
            raise DeviceError(
                f"GPU {index} is cut into MIG instances: the power of one cannot be told; switch MIG off or take another board"
            )
        if device.virtualisation() >= 2:  # from this mode on a board is shared, and its power covers all users
            raise DeviceError(f"GPU {index} is shared as a vGPU: the power of one share cannot be told; use a whole board")
        with open_voltage(device.uuid()) as voltage:
            gpu, sensor = NvmlGpu(device, voltage), NvmlPowerSensor(device, poll_s)
            processes = device.compute_processes()
            try:
                with gpu.states, sensor.readings:
                    yield NvmlBoard(index=index, gpu=gpu, sensor=sensor, compute_processes=processes)
            finally:
                gpu.unlock_clock()


def board_addresses(library: NvmlLibrary) -> tuple[BoardAddress, ...]:
    """The names of every board; a lost board does not hide the others."""
    return tuple(_address(device, index) for index, device in enumerate(library.devices()))


def _address(device: NvmlDevice | None, index: int) -> BoardAddress:
    trouble = str(lost_board())
    if device is not None:
        try:
            uuid, place = device.uuid(), device.pci_address()
            return BoardAddress(index=index, uuid=uuid, pci_address=place, name=device.name())
        except BoardLostError as error:
            trouble = str(error)
    return BoardAddress(index=index, uuid="", pci_address="", name="lost", trouble=trouble)


def choose_board(word: str, boards: tuple[BoardAddress, ...]) -> int:
    """NVML index of the board that a word names.

    Raises DeviceError, listing the boards, if it names none, BoardLostError for a board that no longer answers.
    """
    text, place = word.strip().lower(), pci_key(word)
    found = [
        board
        for board in boards
        if text == str(board.index) or (board.uuid and text == board.uuid.lower()) or (place and place == pci_key(board.pci_address))
    ]
    if not found:
        known = "; ".join(f"{board.index} {board.name} {board.uuid} {board.pci_address}".rstrip() for board in boards) or "none"
        raise DeviceError(f"--gpu {word.strip()!r} names no board here; boards: {known}")
    board = found[0]
    if board.trouble:
        raise BoardLostError(f"GPU {board.index}: {board.trouble}")
    return board.index


def pci_key(text: str) -> tuple[int, int, int] | None:
    """Domain, bus and device of a PCI address; None for any other text."""
    parts = re.fullmatch(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-7])?", text.strip().lower())
    return None if parts is None else (int(parts[1] or "0", 16), int(parts[2], 16), int(parts[3], 16))


def _identity(device: NvmlDevice) -> GpuIdentity:
    name = device.name()
    return GpuIdentity(
        name=name,
        canonical_name=canonical_gpu_name(name) or "",
        uuid=device.uuid(),
        pci_address=device.pci_address(),
        driver=device.driver(),
        vbios=device.vbios(),
        compute_capability=device.compute_capability(),
        simulated=False,
    )


def read_power_w(device: NvmlDevice, fields: Sequence[str]) -> tuple[float, ...] | None:
    """The power in these fields now [W], nan for a missing one; None if the driver has none of them."""
    if USAGE in fields:
        return (device.number("power_usage_w"),)
    found = device.fields([POWER_FIELDS[field] for field in fields]) if fields else None
    return None if found is None else tuple(1e-3 * value for value in found)


def _power_fields(device: NvmlDevice) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Power fields that give a possible power now, and remarks on those that do not.

    Some drivers answer 0 W, or less, for a power that they do not know.  Raises DeviceError if every field is like that.
    """
    read = dict(zip(POWER_FIELDS, read_power_w(device, tuple(POWER_FIELDS)) or (), strict=False))
    found = tuple(name for name, watt in read.items() if possible_power(watt))
    shared = any(name.startswith(MODULE) for name in found) or SUPERCHIP in device.name()
    if shared:
        found = tuple(name for name in found if name != BEST_FIELD)
    if all(name.startswith(MODULE) for name in found):
        read[USAGE] = device.number("power_usage_w")
        found = (USAGE,) if possible_power(read[USAGE]) else ()
    absurd = [f"{name} reads {watt:g} W" for name, watt in read.items() if not (math.isnan(watt) or possible_power(watt))]
    if absurd and not found:
        raise DeviceError(
            f"this board's power is not known to its driver: {', '.join(absurd)}, which no board draws; see `collect doctor`, "
            "or take an external meter's readings"
        )
    notes = [f"power field {text}, which no board draws: it is left out" for text in absurd]
    if shared:
        notes.append(OF_MODULE)
    elif found and found[0] != BEST_FIELD and (absurd or "average" in found):
        notes.append(f"the power field in use is {found[0]}; {BEST_FIELD}, which averages less, gives no power")
    return found, tuple(notes)


def _sees_all_processes() -> bool:
    """Whether process numbers here are those of the host, as shown by the driver."""
    try:
        # The host's own space of process numbers (Linux, include/linux/proc_ns.h, PROC_PID_INIT_INO).
        return os.stat(PROCESS_SPACE).st_ino == 0xEFFFFFFC
    except OSError:
        return True

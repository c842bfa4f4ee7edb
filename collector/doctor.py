"""What stands in the way of measuring here, and the remedy: packages, driver, boards, clocks, sensor, meter."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any, Final

from collector.boards import SIMULATED, named_boards
from collector.devices.clock_helper import HeldBoard, helper_boards, helper_there, may_lock_clocks
from collector.devices.clock_record import board_lock, left_records, state_folder
from collector.devices.nvml import POWER_POLL_S, NvmlBoard, board_addresses, open_board
from collector.devices.nvml_library import NvmlLibrary, open_nvml
from collector.errors import ClockError, ClockHelperError, CollectorError, DeviceError, DriverError

OK: Final = "ok"
WARNING: Final = "warning"
FAULT: Final = "fault"

WATCH_S: Final = 1.5
"""How long a board's readings are watched: every update period known fits in several times."""

DEAREST_POLL_SHARE: Final = 0.25
"""Share of the time between two polls above which a poll is called dear."""

POLLS_TIMED: Final = 100

NEEDED: Final = (("pyarrow", "collect"), ("nvidia-ml-py", "collect"))
USEFUL: Final = (
    ("cupy-cuda13x", "cuda13", "launches kernels"),
    ("cupti-python", "cuda13", "says which kernels ran"),
    ("torch", "torch", "runs softmax, normalisation, convolution and attention"),
    ("pyserial", "collect", "reads a power meter on a serial port"),
    ("uvicorn", "serve", "serves the status page of `collect daemon`"),
)
INSTEAD: Final = {"cupy-cuda13x": ("cupy-cuda12x", "cupy")}
"""Other distributions of the same package."""

SERIAL_PORTS: Final = ("ttyUSB*", "ttyACM*")
DEVICE_FOLDER: Final = Path("/dev")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check: what was looked at, how it is, what was seen, and what to do about it ("" where nothing)."""

    check: str
    state: str
    seen: str
    remedy: str = ""


def examine(word: str | None = None) -> Iterator[Finding]:
    """Every check, in the order in which a measurement needs what it looks at; of one board, or of all.

    A simulated board needs the packages that every dataset needs, and nothing else.
    """
    yield from _needed_packages()
    if word is not None and word.strip().startswith(SIMULATED):
        yield _simulated(word.strip())
        return
    yield from _useful_packages()
    yield from _binding()
    yield from _state()
    yield from _helper()
    yield from _serial_ports()
    try:
        with open_nvml() as library:
            yield Finding(check="driver", state=OK, seen=f"NVIDIA driver {library.driver()}")
            addresses = board_addresses(library, library.handles())
    except DriverError as error:
        yield Finding(check="driver", state=FAULT, seen=str(error), remedy="real boards need it; sim:PROFILE works without")
        return
    if not addresses:
        yield Finding(check="boards", state=FAULT, seen="the driver knows no board", remedy="see `lspci` and the kernel's log")
    for name in [word] if word is not None else [address.uuid or str(address.index) for address in addresses]:
        yield from _board(name)


def _simulated(word: str) -> Finding:
    """A simulated board, which needs neither a driver nor rights."""
    try:
        (board,) = named_boards((word,))
    except CollectorError as error:
        return Finding(check=f"board {word}", state=FAULT, seen=str(error), remedy="`collect devices` lists them")
    return Finding(check=f"board {word}", state=OK, seen=f"simulated {board.name}: needs no driver, says nothing of a real board")


def _needed_packages() -> Iterator[Finding]:
    for name, extra in NEEDED:
        found = _version(name)
        remedy = "" if found else f"pip install 'wattprint[{extra}]'"
        yield Finding(check=f"package {name}", state=OK if found else FAULT, seen=found or "not installed", remedy=remedy)


def _useful_packages() -> Iterator[Finding]:
    for name, extra, use in USEFUL:
        found = next((number for other in (name, *INSTEAD.get(name, ())) if (number := _version(other))), "")
        remedy = "" if found else f"it {use}: pip install 'wattprint[{extra}]'"
        yield Finding(check=f"package {name}", state=OK if found else WARNING, seen=found or "not installed", remedy=remedy)


def _binding() -> Iterator[Finding]:
    """Three packages bring a module `pynvml`; one is NVIDIA's."""
    owners = sorted(set(packages_distributions().get("pynvml", ())))
    foreign = [owner for owner in owners if owner != "nvidia-ml-py"]
    if foreign:
        remedy = f"pip uninstall {' '.join(foreign)}; pip install --force-reinstall nvidia-ml-py"
        yield Finding(check="binding", state=WARNING, seen=f"module pynvml belongs to {', '.join(owners)}", remedy=remedy)
    elif owners:
        yield Finding(check="binding", state=OK, seen="module pynvml belongs to nvidia-ml-py")


def _state() -> Iterator[Finding]:
    """Records of held clocks: can they be written, are some left?"""
    folder = state_folder()
    try:
        left = []
        for record in left_records(folder):
            with board_lock(folder, record.gpu_uuid) as free:
                if free:
                    left.append(record.gpu_uuid)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except (ClockError, OSError) as error:
        yield Finding(check="clock records", state=FAULT, seen=str(error), remedy="set WATTPRINT_STATE to a folder of your own")
        return
    if left:
        yield Finding(check="clock records", state=WARNING, seen=f"left held: {', '.join(left)}", remedy="collect clocks restore")
    elif not writable:
        seen = f"{folder} cannot be written"
        yield Finding(check="clock records", state=FAULT, seen=seen, remedy="set WATTPRINT_STATE to a folder of your own")
    else:
        yield Finding(check="clock records", state=OK, seen="no clock is left held")


def _helper() -> Iterator[Finding]:
    """The clock helper, where this process needs it or where it is."""
    needed = not may_lock_clocks()
    if not needed and not helper_there():
        return
    try:
        boards = helper_boards()
    except ClockHelperError as error:
        yield Finding(check="clock helper", state=WARNING if needed else OK, seen=error.seen, remedy=error.remedy if needed else "")
        return
    ranges = ", ".join(f"{board.uuid} {board.lowest_mhz} to {board.highest_mhz} MHz{_holder(board)}" for board in boards)
    yield Finding(check="clock helper", state=OK, seen=f"locks {ranges}")


def _holder(board: HeldBoard) -> str:
    return f" (held for process {board.lease.pid} of {board.lease.user})" if board.lease else ""


def _serial_ports() -> Iterator[Finding]:
    for path in sorted(port for pattern in SERIAL_PORTS for port in DEVICE_FOLDER.glob(pattern)):
        if os.access(path, os.R_OK | os.W_OK):
            yield Finding(check=f"serial port {path}", state=OK, seen="can be opened; --pmd takes it")
        else:
            remedy = "add yourself to the group that owns it (often: sudo usermod -aG dialout $USER) and log in again"
            yield Finding(check=f"serial port {path}", state=WARNING, seen="may not be opened by this user", remedy=remedy)


def _board(word: str) -> Iterator[Finding]:
    try:
        with open_nvml() as library, open_board(word) as board:
            yield from _identity(board)
            yield from _clocks(library, board)
            yield from _others(board)
            yield from _readings(board)
    except DeviceError as error:
        seen, _, remedy = str(error).partition("; ")
        yield Finding(check=f"board {word}", state=FAULT, seen=seen, remedy=remedy or "take another board, or simulate one")


def _identity(board: NvmlBoard) -> Iterator[Finding]:
    identity = board.gpu.identity()
    seen = f"{identity.name}, {identity.uuid}, VBIOS {identity.vbios or 'unknown'}"
    if identity.canonical_name:
        yield Finding(check=f"GPU {board.index}", state=OK, seen=f"{seen}, specification {identity.canonical_name}")
    else:
        remedy = "write its specification for --gpu-spec: docs/how-to/add-a-gpu.md"
        yield Finding(check=f"GPU {board.index}", state=FAULT, seen=f"{seen}, no specification", remedy=remedy)


def _clocks(library: NvmlLibrary, board: NvmlBoard) -> Iterator[Finding]:
    clocks = board.gpu.supported_clocks_mhz()
    check = f"GPU {board.index} clocks"
    if not clocks:
        yield Finding(check=check, state=WARNING, seen="cannot be locked", remedy="--freqs current leaves them alone")
    elif not may_lock_clocks():
        yield _by_helper(check, board.gpu.identity().uuid, clocks)
    else:
        yield Finding(check=check, state=OK, seen=f"{clocks[0]:g} to {clocks[-1]:g} MHz can be asked for")
    handle = library.handles()[board.index]
    if library.persistence(handle) is False:
        remedy = "nvidia-smi -pm 1, or run nvidia-persistenced"
        yield Finding(check=f"GPU {board.index} persistence", state=WARNING, seen="off: the driver unloads between runs", remedy=remedy)


def _by_helper(check: str, uuid: str, clocks: tuple[float, ...]) -> Finding:
    """Whether the clock helper locks a board's clocks for a process that may not."""
    seen = f"{clocks[0]:g} to {clocks[-1]:g} MHz"
    try:
        if any(board.uuid == uuid for board in helper_boards()):
            return Finding(check=check, state=OK, seen=f"{seen} can be asked for through the clock helper")
        remedy = "have root add the board to the clock helper's config, run as root, or use --freqs current"
    except ClockHelperError:
        remedy = "run as root, get the clock helper to work, or use --freqs current"
    return Finding(check=check, state=WARNING, seen=f"{seen}, but this process may not lock them (CAP_SYS_ADMIN)", remedy=remedy)


def _others(board: NvmlBoard) -> Iterator[Finding]:
    others = board.compute_processes
    check = f"GPU {board.index} users"
    if others is None:
        yield Finding(check=check, state=WARNING, seen="the driver does not tell who uses it", remedy="make sure that nobody does")
    elif others:
        seen = f"{len(others)} other processes compute on it: {', '.join(map(str, others))}"
        yield Finding(check=check, state=FAULT, seen=seen, remedy="wait until they have ended: their power would be measured")
    else:
        yield Finding(check=check, state=OK, seen="nobody else computes on it")


def _readings(board: NvmlBoard) -> Iterator[Finding]:
    check = f"GPU {board.index} power"
    fields = board.sensor.fields()
    if not fields:
        yield Finding(check=check, state=FAULT, seen="no power is reported", remedy="only another board helps")
        return
    for line in board.sensor.notes:
        yield Finding(
            check=f"{check} fields",
            state=WARNING,
            seen=line,
            remedy="what is measured names its field; a newer driver may have others",
        )
    cost_s = _poll_cost_s(board)
    dear = cost_s > DEAREST_POLL_SHARE * POWER_POLL_S
    seen = f"{', '.join(fields)}; a poll takes {1e6 * cost_s:.0f} µs"
    yield Finding(check=check, state=WARNING if dear else OK, seen=seen, remedy="the driver is slow: expect fewer readings" if dear else "")
    board.sensor.read()
    time.sleep(WATCH_S)
    readings = board.sensor.read()[0]
    changes = int((readings.power_w[1:] != readings.power_w[:-1]).sum())
    seen = f"{readings.power_w.size} readings in {WATCH_S:g} s, {changes} changes"
    still = changes == 0
    remedy = "a frozen sensor, or a very quiet board: try again under load" if still else ""
    yield Finding(check=f"GPU {board.index} updates", state=WARNING if still else OK, seen=seen, remedy=remedy)
    counter = board.sensor.read_energy()
    remedy = "" if counter else "energy has no second witness here"
    yield Finding(check=f"GPU {board.index} counter", state=OK if counter else WARNING, seen="there" if counter else "none", remedy=remedy)


def _poll_cost_s(board: NvmlBoard) -> float:
    """Mean time of a poll [s]."""
    begun = time.perf_counter()
    for _ in range(POLLS_TIMED):
        board.sensor.poll_once()
    return (time.perf_counter() - begun) / POLLS_TIMED


def _version(distribution: str) -> str:
    with suppress(PackageNotFoundError):
        return version(distribution)
    return ""


def finding_documents(findings: list[Finding]) -> list[dict[str, Any]]:
    """Findings as plain data."""
    return [{"check": item.check, "state": item.state, "seen": item.seen, "remedy": item.remedy} for item in findings]

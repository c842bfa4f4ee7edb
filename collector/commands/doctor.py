"""`collect doctor`: obstacles to measuring here, and their remedies."""

import math
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from collector.commands.options import output_options
from collector.commands.output import Speaker, columns
from collector.errors import ClockError, ClockHelperError, CollectorError, DeviceError, DriverError
from estimator.options.command_line import DONE, DONE_WITH_WARNINGS

if TYPE_CHECKING:
    from collector.devices.nvml import NvmlBoard
    from collector.devices.protocols import Gpu

OK, WARNING, FAULT = "ok", "warning", "fault"

WATCH_S: Final = 1.5
"""Duration of watching a board's readings: several times every known update period."""

LOAD_S: Final = 1.0
"""Length of the load whose error is stated."""

LIMIT_W: Final = 300.0
"""Its power above rest, on a board that reports no limit."""

PACKAGES: Final = (
    (("pyarrow",), FAULT, "collect", "writes datasets"),
    (("nvidia-ml-py",), FAULT, "collect", "reads boards"),
    (("cupy-cuda13x", "cupy-cuda12x", "cupy"), WARNING, "cuda13", "launches kernels"),
    (("cupti-python",), WARNING, "cuda13", "says which kernels ran"),
    (("torch",), WARNING, "torch", "runs softmax, normalisation, convolution and attention"),
    (("pyserial",), WARNING, "collect", "reads a power meter on a serial port"),
    (("uvicorn",), WARNING, "serve", "serves the status page of `collect daemon`"),
)
"""Packages: alternative distributions that contain it, the state without them, the extra, and its use."""

OWN_STATE: Final = "set WATTPRINT_STATE to a folder of your own"


class Finding(NamedTuple):
    """One check: its subject, its state, the observation, and the remedy ("" without one)."""

    check: str
    state: str
    seen: str
    remedy: str = ""


def _found(check: str, good: bool, seen: str, remedy: str, state: str = WARNING) -> Finding:
    """A finding: in order, or in `state` with a remedy."""
    return Finding(check, OK if good else state, seen, "" if good else remedy)


@click.command("doctor")
@click.option("--gpu", default=None, metavar="WORD", help="Look at this board alone: NVML index, UUID, PCI address or sim:PROFILE.")
@output_options
def doctor_command(gpu: str | None, speak: Speaker) -> int:
    """Look for obstacles to measuring here, and report their remedies.

    Packages, driver, boards, clocks, other users of a board, its power readings.  Nothing is changed.
    Exit status 3 if anything is wrong.
    """
    findings = list(examine(gpu))
    lines = columns([(found.state, found.check, "; ".join(filter(None, found[2:]))) for found in findings])
    speak.say([found._asdict() for found in findings], lines)
    return DONE if all(found.state == OK for found in findings) else DONE_WITH_WARNINGS


def examine(word: str | None) -> Iterator[Finding]:
    """Every check, in the order in which a measurement needs its subject; of one board, or of all.

    A simulated board needs only the packages that every dataset needs.
    """
    from collector.bench import open_bench
    from collector.boards import SIMULATED, named_boards
    from collector.devices.nvml import board_addresses
    from collector.devices.nvml_library import open_nvml

    simulated = word is not None and word.strip().startswith(SIMULATED)
    for names, state, extra, use in PACKAGES:
        if state == FAULT or not simulated:
            found = next(filter(None, map(_version, names)), "")
            yield _found(f"package {names[0]}", bool(found), found or "not installed", f"it {use}: pip install 'wattprint[{extra}]'", state)
    if word is not None and simulated:
        try:
            (board,) = named_boards((word.strip(),))
            yield Finding(f"board {word}", OK, f"simulated {board.name}: needs no driver, says nothing of a real board")
            with open_bench(word.strip()) as bench:
                yield _response(word.strip(), bench.gpu, bench.sensors[0].fields()[0])
        except CollectorError as error:
            yield Finding(f"board {word}", FAULT, str(error), "`collect devices` lists them")
        return
    yield _state()
    yield from _helper()
    try:
        with open_nvml() as library:
            yield Finding("driver", OK, f"NVIDIA driver {library.driver()}")
            addresses = board_addresses(library)
    except DriverError as error:
        yield Finding("driver", FAULT, str(error), "real boards need it; sim:PROFILE works without")
        return
    if not addresses:
        yield Finding("boards", FAULT, "the driver knows no board", "see `lspci` and the kernel's log")
    for name in [word] if word is not None else [address.uuid or str(address.index) for address in addresses]:
        yield from _board(name)


def _state() -> Finding:
    """Check of the records of held clocks: whether they can be written, and whether any are left."""
    from collector.devices.clock_record import board_lock, left_records, state_folder

    folder, left = state_folder(), []
    try:
        for record in left_records(folder):
            with board_lock(folder, record.gpu_uuid) as free:
                if free:
                    left.append(record.gpu_uuid)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (ClockError, OSError) as error:
        return Finding("clock records", FAULT, str(error), OWN_STATE)
    if left:
        return Finding("clock records", WARNING, f"left held: {', '.join(left)}", "collect clocks restore")
    writable = os.access(folder, os.W_OK)
    return _found("clock records", writable, "no clock is left held" if writable else f"{folder} cannot be written", OWN_STATE, FAULT)


def _helper() -> Iterator[Finding]:
    """Checks of the clock helper, if this process needs it or it is present."""
    from collector.devices.clock_helper import helper_boards, helper_there, may_lock_clocks

    if may_lock_clocks() and not helper_there():
        return
    try:
        ranges = []
        for board in helper_boards():
            holder = f" (held for {board.holder})" if board.holder else ""
            ranges.append(f"{board.uuid} {board.lowest_mhz} to {board.highest_mhz} MHz{holder}")
        yield Finding("clock helper", OK, f"locks {', '.join(ranges)}")
    except ClockHelperError as error:
        yield _found("clock helper", may_lock_clocks(), error.seen, error.remedy)


def _board(word: str) -> Iterator[Finding]:
    from collector.devices.nvml import open_board
    from collector.devices.nvml_library import open_nvml

    try:
        with open_nvml(), open_board(word) as board:
            yield from _looked_at(board)
            yield _readings(board)
            if fields := board.sensor.fields():
                yield _response(str(board.index), board.gpu, fields[0])
    except DeviceError as error:
        seen, _, remedy = str(error).partition("; ")
        yield Finding(f"board {word}", FAULT, seen, remedy or "take another board, or simulate one")


def _looked_at(board: "NvmlBoard") -> Iterator[Finding]:
    """Checks of identity, clocks and users of a board."""
    name, identity = f"GPU {board.index}", board.gpu.identity()
    spec = f"specification {identity.canonical_name}" if identity.canonical_name else "no specification"
    seen = f"{identity.name}, {identity.uuid}, VBIOS {identity.vbios or 'unknown'}, {spec}"
    yield _found(name, bool(identity.canonical_name), seen, "write its specification for --gpu-spec: docs/how-to/add-a-gpu.md", FAULT)
    yield _clocks(f"{name} clocks", board)
    others = board.compute_processes
    if others is None:
        yield Finding(f"{name} users", WARNING, "the driver does not tell who uses it", "make sure that nobody does")
    else:
        seen = f"{len(others)} other processes compute on it: {', '.join(map(str, others))}" if others else "nobody else computes on it"
        yield _found(f"{name} users", not others, seen, "wait until they have ended: their power would be measured", FAULT)


def _clocks(check: str, board: "NvmlBoard") -> Finding:
    """Whether this process can lock a board's clocks, itself or by the clock helper."""
    from collector.devices.clock_helper import helper_boards, may_lock_clocks

    clocks = board.gpu.supported_clocks_mhz()
    if not clocks:
        return Finding(check, WARNING, "cannot be locked", "--freqs current leaves them alone")
    seen = f"{clocks[0]:g} to {clocks[-1]:g} MHz"
    if may_lock_clocks():
        return Finding(check, OK, f"{seen} can be asked for")
    with suppress(ClockHelperError):
        if any(one.uuid == board.gpu.identity().uuid for one in helper_boards()):
            return Finding(check, OK, f"{seen} can be asked for through the clock helper")
    remedy = "run as root, have root add the board to the clock helper's config, or use --freqs current"
    return Finding(check, WARNING, f"{seen}, but this process may not lock them (CAP_SYS_ADMIN)", remedy)


def _readings(board: "NvmlBoard") -> Finding:
    """Whether the power of a board is read, and changes while it is watched."""
    sensor = board.sensor
    check, fields = f"GPU {board.index} power", sensor.fields()
    if not fields:
        return Finding(check, FAULT, "no power is reported", "only another board helps")
    sensor.read()
    time.sleep(WATCH_S)
    power_w = sensor.read()[0].power_w
    changes = int((power_w[1:] != power_w[:-1]).sum())
    p50_s, p99_s = sensor.readings.cost_s()
    cost = f"a call takes {1e3 * p50_s:.2g} ms, {1e3 * p99_s:.2g} ms at most in 99 of 100"
    seen = "; ".join((f"{fields[0]}: {power_w.size} readings in {WATCH_S:g} s, {changes} changes", cost, *sensor.notes))
    return _found(check, changes > 0 and not sensor.notes, seen, "a frozen sensor, or a very quiet board: try again under load")


def _response(word: str, gpu: "Gpu", field: str) -> Finding:
    """The known response of a board's sensor, and what a wrong one costs: the energy that readings during a load of 1 s miss.

    The worst of the responses that other drivers and fields of this board have (of all, if none is known), and of none.
    """
    from collector.sensing.catalogue import catalogue, find_sensor, missing_s

    identity, limit_w = gpu.identity(), gpu.power_limit_w()
    found = find_sensor(identity.name, identity.driver, field)
    others = [one for one in catalogue() if found is None or one.names(identity.name)]
    missing = [0.0, *(missing_s(one, LOAD_S) for one in others)]
    worst_s = max(missing) if found is None else max(abs(one - missing_s(found, LOAD_S)) for one in missing)
    height_w = limit_w if math.isfinite(limit_w) else LIMIT_W
    cost = f"a wrong one costs up to {worst_s * height_w:.3g} J of a load of {LOAD_S:g} s with {height_w:g} W above rest"
    known = "no response is known" if found is None else f"{found.averaging} {found.window_s or 0.0:g} s ({found.source()})"
    seen = f"driver {identity.driver}, {field}: {known}; {cost}"
    return _found(f"GPU {word} sensor", found is not None, seen, f"characterise it: collect sensor --gpu {word}")


def _version(distribution: str) -> str:
    with suppress(PackageNotFoundError):
        return version(distribution)
    return ""

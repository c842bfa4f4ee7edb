"""Clocks to give back even if a process is killed: records on disk, and a guard process that outlives its owner.

One file a board, synced before its clock is first changed, and a lock beside it that its writer holds while it lives: a record with a free
lock shows that its writer died; the process that finds it gives the clock back.

The guard is a small process that reads a pipe; its owner holds the other end.  The pipe closes when the owner ends,
in any way; without a farewell before that, the guard gives the clock back.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Annotated, Final

from collector.devices.file_lock import locked_file
from collector.devices.nvml_library import open_nvml
from collector.errors import ClockError, CollectorError
from estimator.vocabulary.documents import parse_json
from estimator.vocabulary.errors import UnwrittenError
from estimator.vocabulary.reader import Pattern, read
from estimator.vocabulary.regular_files import read_regular
from estimator.vocabulary.values import frozen
from estimator.vocabulary.whole_file import sync_folder, write_whole

FOLDER_VARIABLE: Final = "WATTPRINT_STATE"
SYSTEM_FOLDER: Final = Path("/run/wattprint")
"""Folder of root's records: emptied when the machine starts, when clocks are reset too."""

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
SAFE_NAME: Final = r"GPU-[0-9A-Za-z-]{1,64}"
BoardUuid = Annotated[str, Pattern(SAFE_NAME, "GPU-…, as NVML tells it")]


@frozen
class ClockRecord:
    """A board whose clock may be changed: its UUID, the process that changed it, and the boot id of the machine."""

    gpu_uuid: BoardUuid
    pid: int
    boot_id: str


def state_folder() -> Path:
    """Folder of records: $WATTPRINT_STATE; /run/wattprint for root; else the user's runtime folder."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named)
    if os.geteuid() == 0 and os.access(SYSTEM_FOLDER.parent, os.W_OK):
        return SYSTEM_FOLDER
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "wattprint" if runtime else Path(tempfile.gettempdir()) / f"wattprint-{os.getuid()}"


def boot_id() -> str:
    """Identifier of this boot of the machine; "" if the system does not report it."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def record_path(folder: Path, gpu_uuid: str) -> Path:
    """The record of a board.  Raises ClockError for an invalid UUID."""
    if not re.fullmatch(SAFE_NAME, gpu_uuid):
        raise ClockError(f"{gpu_uuid!r} is no UUID of a board; its clock is left alone")
    return folder / f"{gpu_uuid}.clock.json"


def write_record(folder: Path, record: ClockRecord) -> None:
    """Put a record on disk, file and folder synced.  Raises ClockError if that fails."""
    path = record_path(folder, record.gpu_uuid)
    try:
        write_whole(path, json.dumps(asdict(record)).encode())
    except UnwrittenError as error:
        raise ClockError(f"{error}; no clock is changed without a record of it") from error


def read_record(path: Path) -> ClockRecord | None:
    """A record; None if it no longer exists, or was not written completely."""
    try:
        return read(ClockRecord, parse_json(read_regular(path, 4096)))
    except (OSError, ValueError):
        return None


def remove_record(folder: Path, gpu_uuid: str) -> None:
    """Removes a board's record after its clock was given back."""
    record_path(folder, gpu_uuid).unlink(missing_ok=True)
    sync_folder(folder)


def left_records(folder: Path) -> list[ClockRecord]:
    """Records in a folder, of living and of dead writers."""
    return list(filter(None, map(read_record, sorted(folder.glob("*.clock.json")))))


@contextmanager
def board_lock(folder: Path, gpu_uuid: str) -> Iterator[bool]:
    """The right to change a board's clock, held within the block; False if another process has it.

    The system takes the right back from a process that dies, in any way.
    """
    descriptor = acquire_board(folder, gpu_uuid)
    if descriptor is None:
        yield False
        return
    try:
        yield True
    finally:
        os.close(descriptor)


def acquire_board(folder: Path, gpu_uuid: str) -> int | None:
    """A descriptor that holds a board's lock until it is closed; None if another process has it.  Raises ClockError."""
    path = record_path(folder, gpu_uuid).with_suffix(".lock")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.geteuid():
            raise ClockError(f"{folder}: belongs to another user; set {FOLDER_VARIABLE} to a folder of your own")
        return locked_file(path)
    except OSError as error:
        raise ClockError(f"{path}: cannot be written ({error.strerror}); no clock is changed without a record of it") from error


def take_board(folder: Path, gpu_uuid: str) -> int:
    """A descriptor that holds a board's lock, with this process's record on disk; a clock that was left held is given back first.

    Raises ClockError if another process holds this board's clock or no record can be made, and the errors of `reset_clock`.
    """
    give_back(folder, gpu_uuid)
    lock = acquire_board(folder, gpu_uuid)
    if lock is None:
        owner = read_record(record_path(folder, gpu_uuid))
        who = f"process {owner.pid}" if owner else "another process"
        raise ClockError(f"{who} holds the clock of {gpu_uuid}; wait until it has ended, or use --freqs current")
    try:
        write_record(folder, ClockRecord(gpu_uuid=gpu_uuid, pid=os.getpid(), boot_id=boot_id()))
    except ClockError:
        os.close(lock)
        raise
    return lock


def reset_clock(gpu_uuid: str) -> None:
    """Give the SM clock of a board back to the driver.  Raises DriverError, DeviceError; ClockError if the driver refuses."""
    with open_nvml() as library:
        device = library.device_of(gpu_uuid)
        if device is not None:
            device.reset_sm_clock()
            return
    raise ClockError(f"{gpu_uuid} is not here any more; its clock comes back with the driver")


def restore_left_clocks() -> list[tuple[str, str]]:
    """Give back every clock that a dead process left held: UUID and "" for success, or the reason for failure."""
    folder = state_folder()
    outcome = []
    for record in left_records(folder):
        try:
            if give_back(folder, record.gpu_uuid):
                outcome.append((record.gpu_uuid, ""))
        except (CollectorError, OSError) as error:
            outcome.append((record.gpu_uuid, str(error)))
    return outcome


def give_back(folder: Path, gpu_uuid: str) -> bool:
    """Give a dead writer's clock back and remove its record; True if that was done.

    The function does nothing while another process holds the board.  Raises the errors of `reset_clock`, and then keeps the record.
    """
    with board_lock(folder, gpu_uuid) as mine:
        record = read_record(record_path(folder, gpu_uuid)) if mine else None
        if record is None:
            return False
        if record.boot_id == boot_id():  # a reboot has reset the clocks already
            reset_clock(gpu_uuid)
        remove_record(folder, gpu_uuid)
        return True


READY: Final = b"ready\n"
FAREWELL: Final = b"done\n"
"""Message of an owner that has given its clock back; the guard then ends."""


class ClockGuard:
    """Guards the clock of one board from `arm` to `disarm`; no other process may change that clock meanwhile."""

    def __init__(self, gpu_uuid: str) -> None:
        self._uuid = gpu_uuid
        self._folder = state_folder()
        self._lock = -1
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def armed(self) -> bool:
        """Whether the clock is guarded now."""
        return self._guard is not None

    def arm(self) -> None:
        """Take the board, write the record, start the guard; harmless when armed.

        Raises ClockError if another process holds this board's clock, or record and guard cannot be made.
        """
        if self.armed:
            return
        guard = _start_guard(self._folder, self._uuid)  # first: no record is ever without a guard
        try:
            self._lock = take_board(self._folder, self._uuid)
        except CollectorError:
            _dismiss(guard)
            raise
        self._guard = guard

    def disarm(self) -> None:
        """Remove the record and dismiss the guard after the clock was given back; harmless when not armed."""
        guard, self._guard = self._guard, None
        if guard is not None:
            remove_record(self._folder, self._uuid)
            os.close(self._lock)
            _dismiss(guard)


def _start_guard(folder: Path, gpu_uuid: str) -> "subprocess.Popen[bytes]":
    """A guard that is ready.  Raises ClockError if it cannot be started."""
    command = [sys.executable, "-m", "collector.devices.clock_record", str(folder), gpu_uuid, str(os.getpid())]
    try:
        guard = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, bufsize=0)
    except OSError as error:
        raise ClockError(f"no guard for the clock can be started ({error.strerror}); the clock is left alone") from error
    if guard.stdout is None or guard.stdout.readline() != READY:
        guard.kill()
        guard.wait()
        raise ClockError("the guard for the clock did not start; the clock is left alone")
    return guard


def _dismiss(guard: "subprocess.Popen[bytes]") -> None:
    guard.communicate(FAREWELL, timeout=10.0)  # longest wait for its end [s]


def watch(folder: Path, gpu_uuid: str, owner: int, incoming: IO[bytes], outgoing: IO[bytes]) -> int:
    """Main function of the guard: wait for the end of process `owner`, and give the clock back unless it reported that it did.

    The exit status: 0, or 1 if the clock could not be given back and its record stays.
    """
    with suppress(CollectorError), open_nvml():  # loads the modules for a reset early, so that the reset takes no time
        pass
    with suppress(BrokenPipeError):  # the owner may have died meanwhile
        outgoing.write(READY)
        outgoing.flush()
    if incoming.read().endswith(FAREWELL):
        return 0
    deadline = time.monotonic() + 60.0
    # A later owner gives the clock back before it writes its own record.
    while (record := read_record(record_path(folder, gpu_uuid))) is not None and record.pid == owner:
        try:
            give_back(folder, gpu_uuid)
        except CollectorError:
            if time.monotonic() > deadline:
                return 1
        time.sleep(0.05)  # the dying owner's lock may outlive its pipe for a moment; a driver may be restarting
    return 0


if __name__ == "__main__":
    sys.exit(watch(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.stdin.buffer, sys.stdout.buffer))

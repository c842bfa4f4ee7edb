"""Records of clocks to give back: on disk, synced before a board's clock is first changed.

One file a board, and a lock beside it that its writer holds while it lives: a record with a free lock
shows that its writer died; the process that finds it gives the clock back.
"""

import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

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
    found = [read_record(path) for path in sorted(folder.glob("*.clock.json"))] if folder.is_dir() else []
    return [record for record in found if record is not None]


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
        handle = library.handle_of(gpu_uuid)
        if handle is not None:
            library.reset_sm_clock(handle)
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

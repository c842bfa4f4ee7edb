"""The right to measure on a real board: one process at a time on a machine, of all users.

If root has made SHARED_FOLDER, a claim is a lock on a file there, which only members of the folder's group can open: no other user can
take it.  Otherwise a claim is an abstract Unix socket: users without a shared folder exclude each other, but nothing keeps a user of
the machine from holding a board without measuring.  Either way the claim of a process ends with the process.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from collector.devices.file_lock import group_of, locked_file, peer_of, user_name
from collector.errors import BoardBusyError, DeviceError

SHARED_FOLDER: Final = Path("/run/wattprint-boards")
"""Made by packaging/wattprint-boards.tmpfiles.conf."""

CLAIM_PREFIX: Final = "\0wattprint-campaign-"
GROUP_MAY: Final = 0o660
"""Mode of a lock file; set explicitly, so that the umask of the first user has no effect."""

Holder = tuple[int, int] | None
"""Process and user that hold a board; None if the kernel does not report them."""

LOCKS: Final = Path("/proc/locks")


@contextmanager
def claimed_board(gpu_uuid: str, folder: Path = SHARED_FOLDER) -> Iterator[None]:
    """The right to measure on a real board, exclusive on this machine.

    Raises BoardBusyError, naming the process, if another one measures on it; DeviceError if this user may not claim boards.
    """
    if folder.is_dir():
        claim = _lock(folder / f"{gpu_uuid}.lock", gpu_uuid)
    else:
        claim = _bound(gpu_uuid)
    try:
        yield
    finally:
        os.close(claim)


def board_is_claimed(gpu_uuid: str) -> bool:
    """Whether a process measures on a real board now.  Raises DeviceError if this user may not claim boards."""
    try:
        with claimed_board(gpu_uuid):
            return False
    except BoardBusyError:
        return True


def _lock(path: Path, gpu_uuid: str) -> int:
    """A descriptor that holds the lock of a file until it is closed."""
    try:
        claim = locked_file(path, mode=GROUP_MAY)
        if claim is None:
            raise _busy(gpu_uuid, _lock_holder(path))
        with suppress(PermissionError):  # another user's file has its mode already
            os.fchmod(claim, GROUP_MAY)
    except OSError as error:
        if os.path.lexists(path):
            raise DeviceError(
                f"{path} of user {user_name(path.lstat().st_uid)} is no lock ({error.strerror}); have root remove it"
            ) from error
        remedy = f"have root add you to group {group_of(path.parent)} (usermod -aG), and log in again"
        raise DeviceError(f"{path}: this user may not claim boards ({error.strerror}); {remedy}") from error
    return claim


def _lock_holder(path: Path) -> Holder:
    """Process and user that hold a file's lock, from the kernel; None if the kernel does not report it."""
    with suppress(OSError, ValueError):
        status = path.stat()
        place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        for fields in map(str.split, LOCKS.read_text(encoding="ascii").splitlines()):
            if fields[1] == "FLOCK" and fields[5] == place:
                return int(fields[4]), os.stat(f"/proc/{fields[4]}").st_uid
    return None


def _bound(gpu_uuid: str) -> int:
    """A descriptor that holds a name until it is closed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as claim:
        try:
            claim.bind(CLAIM_PREFIX + gpu_uuid)
        except OSError as error:
            raise _busy(gpu_uuid, _name_holder(gpu_uuid)) from error
        claim.listen(1)
        return claim.detach()


def _name_holder(gpu_uuid: str) -> Holder:
    """Process and user that hold a name, from the kernel; None if the kernel does not report it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as caller, suppress(OSError):
        caller.connect(CLAIM_PREFIX + gpu_uuid)
        return peer_of(caller)
    return None


def _busy(gpu_uuid: str, holder: Holder) -> BoardBusyError:
    """The error that names the holder of a board, for people."""
    who = "another process" if holder is None else f"process {holder[0]} of user {user_name(holder[1])}"
    return BoardBusyError(f"{who} measures on {gpu_uuid} now; wait until it has ended, or queue the campaign with `collect submit`")

"""Locks that a dying process cannot keep: one daemon a state folder, one worker a board, one campaign a real board.

Files are locked with flock, whose lock belongs to the open file: a worker that inherits it keeps it when the daemon
dies.  The claim on a real board is an abstract Unix socket, since boards are shared by users who share no folder.
"""

import fcntl
import os
import re
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final

from collector.errors import BoardBusyError, DaemonError

LOCK_NAME: Final = "daemon.lock"
PATIENCE_S: Final = 1.0
"""How long a daemon tries to get its lock: a status command holds it for an instant [s]."""
RETRY_S: Final = 0.02

CLAIM_PREFIX: Final = "\0wattprint-campaign-"
CREDENTIALS: Final = struct.Struct("3i")
"""pid, uid and gid of the process at the other end (struct ucred)."""


@contextmanager
def daemon_lock(folder: Path) -> Iterator[None]:
    """The right to be the daemon of a state folder.  Raises DaemonError where there is one already."""
    deadline = time.monotonic() + PATIENCE_S
    while (descriptor := locked(folder / LOCK_NAME)) is None:
        if time.monotonic() > deadline:
            raise DaemonError(f"{folder}: another daemon runs there; `collect status` shows it, `collect stop --daemon` ends it")
        time.sleep(RETRY_S)
    try:
        yield
    finally:
        os.close(descriptor)


def daemon_runs(folder: Path) -> bool:
    """Whether a daemon lives in a state folder."""
    path = folder / LOCK_NAME
    if not path.exists():
        return False
    descriptor = locked(path)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


def locked(path: Path) -> int | None:
    """A descriptor that holds a file's lock until its last copy is closed; None where somebody holds it.  Raises DaemonError."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DaemonError(f"{path}: cannot be opened ({error.strerror}); the state folder must belong to the daemon's user") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        os.close(descriptor)
        raise DaemonError(f"{path}: cannot be locked ({error.strerror}); name a state folder on a local disk") from error
    return descriptor


def worker_lock_path(folder: Path, board: str) -> Path:
    """The lock of the worker on a board; it holds the worker's pid as text."""
    plain = re.sub(r"[^0-9A-Za-z-]+", "-", board)[:48]
    return folder / f"worker-{plain}-{sha256(board.encode()).hexdigest()[:8]}.lock"


def lock_owner(path: Path) -> int:
    """The pid in a worker's lock; 0 where there is none."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


@contextmanager
def claimed_board(gpu_uuid: str) -> Iterator[None]:
    """The right to measure on a real board, on this machine and whoever asks.

    Raises BoardBusyError where another process measures on it, and says which.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as claim:
        try:
            claim.bind(CLAIM_PREFIX + gpu_uuid)
        except OSError as error:
            raise BoardBusyError(
                f"{_holder(gpu_uuid)} measures on {gpu_uuid} now; wait until it has ended, or queue the campaign with `collect submit`"
            ) from error
        claim.listen(1)
        yield


def board_is_claimed(gpu_uuid: str) -> bool:
    """Whether a process measures on a real board now."""
    try:
        with claimed_board(gpu_uuid):
            return False
    except BoardBusyError:
        return True


def _holder(gpu_uuid: str) -> str:
    """Who holds a claim, for people."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as caller:
        try:
            caller.connect(CLAIM_PREFIX + gpu_uuid)
            credentials = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        except OSError:
            return "another process"
    return f"process {CREDENTIALS.unpack(credentials)[0]}"

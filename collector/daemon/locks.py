"""Locks that a dying process cannot keep: one daemon a state folder, one worker a board, which a worker keeps when its daemon dies."""

import fcntl
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from collector.devices.file_lock import locked_file
from collector.errors import DaemonError
from estimator.regular_files import read_regular

LOCK_NAME: Final = "daemon.lock"
PATIENCE_S: Final = 60.0
"""How long a daemon waits for a process that only looks whether there is one: an instant, unless that process is held up [s]."""
RETRY_S: Final = 0.02


@contextmanager
def daemon_lock(folder: Path) -> Iterator[None]:
    """The right to be the daemon of a state folder.  Raises DaemonError where there is one already."""
    path = folder / LOCK_NAME
    deadline = time.monotonic() + PATIENCE_S
    while (descriptor := locked(path)) is None:
        if _held_alone(path):
            raise DaemonError(f"{folder}: another daemon runs there; `collect status` shows it, `collect stop --daemon` ends it")
        if time.monotonic() > deadline:
            raise DaemonError(f"{path}: a process that only looks at it keeps it; is a `collect status` stopped? end it, then start again")
        time.sleep(RETRY_S)
    try:
        yield
    finally:
        os.close(descriptor)


def daemon_runs(folder: Path) -> bool:
    """Whether a daemon lives in a state folder."""
    path = folder / LOCK_NAME
    return path.exists() and _held_alone(path)


def _held_alone(path: Path) -> bool:
    """Whether somebody holds a lock.  Those who ask share it for an instant, and so do not take each other for a holder."""
    descriptor = locked(path, fcntl.LOCK_SH)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


def signal_daemon(folder: Path, pid: int) -> bool:
    """Send SIGTERM to a daemon; False where the process of that number is not it: it must have the lock of its folder open."""
    return signal_holder(folder / LOCK_NAME, pid, signal.SIGTERM)


def signal_holder(path: Path, pid: int, number: signal.Signals) -> bool:
    """Send a signal to the process that holds a lock; False where the process of that number has not even opened it."""
    lock = path.stat()
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not any((lock.st_dev, lock.st_ino) == found for found in _open_files(pid)):
            return False
        signal.pidfd_send_signal(process, number)
    except OSError:
        return False
    finally:
        os.close(process)
    return True


def _open_files(pid: int) -> Iterator[tuple[int, int]]:
    """Device and number of every file that a process has open; none where that is nobody's business of ours."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            status = link.stat()
            yield status.st_dev, status.st_ino


def locked(path: Path, how: int = fcntl.LOCK_EX) -> int | None:
    """A descriptor that holds a file's lock until its last copy is closed; None where somebody holds it.  Raises DaemonError.

    `how`: alone, or with others (LOCK_SH).
    """
    try:
        return locked_file(path, how)
    except OSError as error:
        remedy = "the state folder must belong to the daemon's user and lie on a local disk"
        raise DaemonError(f"{path}: cannot be locked ({error.strerror}); {remedy}") from error


def worker_lock_path(folder: Path, board: str) -> Path:
    """The lock of the worker on a board; it holds the worker's pid as text."""
    plain = re.sub(r"[^0-9A-Za-z-]+", "-", board)[:48]
    return folder / f"worker-{plain}-{sha256(board.encode()).hexdigest()[:8]}.lock"


LONGEST_PID: Final = 64
"""Bytes of a lock's text."""


def lock_owner(path: Path) -> int:
    """The pid in a worker's lock; 0 where there is none."""
    try:
        return int(read_regular(path, LONGEST_PID))
    except (OSError, ValueError):
        return 0

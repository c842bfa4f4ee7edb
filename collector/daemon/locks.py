"""Locks that end with their process: one daemon a state folder, one worker a board, which a worker keeps when its daemon dies."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final

from collector.devices.file_lock import locked_file
from collector.errors import DaemonError

LOCK_NAME: Final = "daemon.lock"
"""File of the daemon's lock in a state folder."""


@contextmanager
def daemon_lock(folder: Path) -> Iterator[None]:
    """The right to be the daemon of a state folder.  Raises DaemonError if it already has one."""
    deadline = time.monotonic() + 1.0
    while (descriptor := locked(folder / LOCK_NAME)) is None:
        if time.monotonic() > deadline:
            raise DaemonError(f"{folder}: another daemon runs there; `collect status` shows it, `collect stop --daemon` ends it")
        time.sleep(0.02)
    try:
        yield
    finally:
        os.close(descriptor)


def daemon_runs(folder: Path) -> bool:
    """Whether a daemon lives in a state folder.  Processes that check this share the lock, and do not mistake each other for a daemon."""
    path = folder / LOCK_NAME
    if not path.exists():
        return False
    descriptor = locked(path, fcntl.LOCK_SH)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is None


def locked(path: Path, how: int = fcntl.LOCK_EX) -> int | None:
    """A descriptor that holds a file's lock until its last copy is closed; None if another process holds it.  Raises DaemonError.

    `how`: alone, or with others (LOCK_SH).
    """
    try:
        return locked_file(path, how)
    except OSError as error:
        remedy = "the state folder must belong to the daemon's user and lie on a local disk"
        raise DaemonError(f"{path}: cannot be locked ({error.strerror}); {remedy}") from error


def worker_lock_path(folder: Path, board: str) -> Path:
    """The lock of the worker on a board."""
    return folder / f"worker-{sha256(board.encode()).hexdigest()[:16]}.lock"

"""Locks of files that a dying process cannot keep (flock(2)): they belong to the open file, and so to whoever inherits it."""

import fcntl
import os
from pathlib import Path


def locked_file(path: Path, how: int = fcntl.LOCK_EX, mode: int = 0o600) -> int | None:
    """A descriptor that holds a file's lock until its last copy is closed; None where somebody holds it.

    `how`: alone, or with others (LOCK_SH); `mode`: of a file that is made.  Raises OSError.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return descriptor

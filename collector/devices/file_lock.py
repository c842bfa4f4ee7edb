"""File locks (flock(2)) that end with the last process that has the file open."""

import fcntl
import os
from pathlib import Path


def locked_file(path: Path, how: int = fcntl.LOCK_EX, mode: int = 0o600) -> int | None:
    """A descriptor that holds a file's lock until its last copy is closed; None where somebody holds it.

    `how`: alone, or with others (LOCK_SH); `mode`: of a file that is made.  Raises OSError.
    """
    descriptor = _opened(path, mode)
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return descriptor


def _opened(path: Path, mode: int) -> int:
    """A descriptor of an existing or a new file.  Linux refuses O_CREAT on another user's file in a sticky folder (protected_regular)."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            try:
                return os.open(path, flags | os.O_CREAT | os.O_EXCL, mode)
            except FileExistsError:  # another process made it in between, or a link leads nowhere
                if path.is_symlink():
                    raise

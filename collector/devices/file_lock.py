"""File locks that the kernel releases when their process ends (flock(2)), and the holder of a socket or a file.

A lock belongs to the open file: a child process that inherits the file keeps the lock.
"""

import fcntl
import os
import pwd
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

CREDENTIALS: Final = struct.Struct("3i")
"""struct ucred of unix(7): process, user, group."""


def locked_file(path: Path, how: int = fcntl.LOCK_EX, mode: int = 0o600) -> int | None:
    """A descriptor that holds a file's lock until its last copy is closed; None if another process holds it.

    `how`: alone, or with others (LOCK_SH); `mode`: of a new file.  Raises OSError.
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
            except FileExistsError:  # another process made it in between, or a link is broken
                if path.is_symlink():
                    raise


def peer_of(end: socket.socket) -> tuple[int, int]:
    """Process and user at the other end, recorded by the kernel when they connected or listened.  Raises OSError."""
    pid, uid, _ = CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return pid, uid


def user_name(uid: int) -> str:
    """A user's name, else the number."""
    with suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return str(uid)


def group_of(path: Path) -> str:
    """The name of the group that owns a file, or its number; a description if the file cannot be read."""
    try:
        return path.group()
    except KeyError:
        return str(path.stat().st_gid)
    except OSError:
        return "that owns it"

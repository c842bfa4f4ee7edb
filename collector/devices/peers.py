"""Who is at the other end of a Unix socket, and what users and groups are called."""

import grp
import pwd
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

CREDENTIALS: Final = struct.Struct("3i")
"""struct ucred of unix(7): process, user, group."""


def peer_of(end: socket.socket) -> tuple[int, int]:
    """Process and user at the other end, as the kernel knew them when they connected or listened.  Raises OSError."""
    pid, uid, _ = CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return pid, uid


def user_name(uid: int) -> str:
    """A user's name, else the number."""
    with suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return str(uid)


def group_of(path: Path) -> str:
    """The group of a file, as far as that can be seen."""
    try:
        number = path.stat().st_gid
    except OSError:
        return "that owns it"
    with suppress(KeyError):
        return grp.getgrgid(number).gr_name
    return str(number)

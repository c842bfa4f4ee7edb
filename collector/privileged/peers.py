"""The other ends of the clock helper's connections: who they are by the kernel's word, and how much they may ask."""

import pwd
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from collector.privileged.protocol import line_of

CREDENTIALS: Final = struct.Struct("3i")
"""struct ucred of unix(7): process, user, group."""

PEER_GROUPS: Final = 59
"""SO_PEERGROUPS of Linux 4.13 (asm-generic/socket.h), which the module socket does not name."""

MOST_GROUPS_BYTES: Final = 1024
"""What Python's getsockopt takes: 256 groups.  Of a user with more, only the first group counts."""

REQUESTS_PER_S: Final = 20.0
REQUESTS_AT_ONCE: Final = 40.0


class Allowance:
    """So many a second, and so many at once."""

    def __init__(self, per_s: float, at_once: float) -> None:
        self._per_s, self._at_once, self._left = per_s, at_once, at_once
        self._at_s = time.monotonic()

    def take(self) -> bool:
        """One of them; False where none is left now."""
        now_s = time.monotonic()
        self._left, self._at_s = min(self._at_once, self._left + self._per_s * (now_s - self._at_s)), now_s
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


@dataclass(slots=True, kw_only=True, eq=False)
class Client:
    """A connection: who made it (`user`: the name, else the number), what has come of its next request, when it was heard [monotonic s]."""

    end: socket.socket
    pid: int
    uid: int
    user: str
    groups: frozenset[int]
    allowance: Allowance
    heard_s: float
    incoming: bytes = b""

    def send(self, content: dict[str, Any]) -> bool:
        """Whether a reply was taken whole; nobody is waited for."""
        line = line_of(**content)
        try:
            return self.end.send(line) == len(line)
        except OSError:
            return False


def client_of(end: socket.socket) -> Client:
    """Who is at the other end, as the kernel knew it when the connection was made.  Raises OSError."""
    end.setblocking(False)
    pid, uid, gid = CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    groups = {gid}
    with suppress(OSError):  # an older kernel, or too many groups
        packed = end.getsockopt(socket.SOL_SOCKET, PEER_GROUPS, MOST_GROUPS_BYTES)
        groups.update(number for (number,) in struct.iter_unpack("I", packed))
    user = str(uid)
    with suppress(KeyError):
        user = pwd.getpwuid(uid).pw_name
    allowance = Allowance(REQUESTS_PER_S, REQUESTS_AT_ONCE)
    return Client(end=end, pid=pid, uid=uid, user=user, groups=frozenset(groups), allowance=allowance, heard_s=time.monotonic())

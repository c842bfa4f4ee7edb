"""Who measures on a real board: one process at a time on a machine, whoever started it and as whatever user.

The claim is an abstract Unix socket: boards are shared by users who share no folder, and a process that dies takes its
sockets with it, so that no claim is ever left behind.
"""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from collector.errors import BoardBusyError

CLAIM_PREFIX: Final = "\0wattprint-campaign-"
CREDENTIALS: Final = struct.Struct("3i")
"""pid, uid and gid of the process at the other end (struct ucred)."""


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

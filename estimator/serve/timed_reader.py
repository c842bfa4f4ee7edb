"""Reading a request that must be in by a deadline, however slowly it drips."""

import socket
import time
from io import RawIOBase
from typing import Any


class TimedReader(RawIOBase):
    """Bytes from a socket until a deadline; then TimeoutError, whatever has come in by then."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        """deadline: as `time.monotonic` tells it [s]."""
        self._connection, self._deadline = connection, deadline
        self._begun = False
        self.late = False
        """Whether some bytes had come in when the time was up."""

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Some bytes, as many as there are.  Raises TimeoutError at the deadline."""
        left = self._deadline - time.monotonic()
        try:
            if left <= 0.0:
                raise TimeoutError("the request did not come in within its time")
            self._connection.settimeout(left)
            size = self._connection.recv_into(buffer)
        except TimeoutError:
            self.late = self._begun
            raise
        self._begun = True
        return size

"""What systemd is told: ready, alive, stopping, and a line of status (sd_notify(3))."""

import socket
from collections.abc import Mapping
from typing import Final

NOTIFY_VARIABLE: Final = "NOTIFY_SOCKET"
WATCHDOG_VARIABLE: Final = "WATCHDOG_USEC"
WATCHDOG_PID_VARIABLE: Final = "WATCHDOG_PID"
S_PER_US: Final = 1e-6
LONGEST_STATUS: Final = 200
"""Characters of a status line."""


class Notifier:
    """Speaks to the service manager; silent where there is none.  `trouble` says why it cannot be reached, "" where it can."""

    def __init__(self, environment: Mapping[str, str], pid: int) -> None:
        name = environment.get(NOTIFY_VARIABLE, "")
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        self.trouble = ""
        self.watchdog_s = _watchdog_s(environment, pid)

    def ready(self, status: str) -> None:
        """The service has started."""
        self._send(f"READY=1\nSTATUS={_line(status)}")

    def alive(self) -> None:
        """The main loop turns."""
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """A line for `systemctl status`."""
        self._send(f"STATUS={_line(text)}")

    def stopping(self, status: str) -> None:
        """The service is on its way down."""
        self._send(f"STOPPING=1\nSTATUS={_line(status)}")

    def extend(self, seconds: float) -> None:
        """Starting or stopping may take so much longer [s]."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds / S_PER_US)}")

    def _send(self, message: str) -> None:
        if not self._address or self.trouble:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
                end.settimeout(1.0)
                end.connect(self._address)
                end.sendall(message.encode())
        except OSError as error:  # also a path that no socket can have
            self.trouble = f"the service manager cannot be told anything: {NOTIFY_VARIABLE}: {error.strerror or error}"


def _watchdog_s(environment: Mapping[str, str], pid: int) -> float | None:
    """Time within which systemd wants a sign of life; None where it wants none [s]."""
    if environment.get(WATCHDOG_PID_VARIABLE, str(pid)) != str(pid):
        return None
    try:
        microseconds = int(environment.get(WATCHDOG_VARIABLE, "0"))
    except ValueError:
        return None
    return microseconds * S_PER_US if microseconds > 0 else None


def _line(text: str) -> str:
    return " ".join(text.split())[:LONGEST_STATUS]

"""Messages to systemd: ready, alive, stopping, and a line of status (sd_notify(3))."""

import socket
from collections.abc import Mapping
from typing import Final

LONGEST_FIELD: Final = 200
US_PER_S: Final = 1e6


class Notifier:
    """Speaks to the service manager; silent where there is none.  `trouble` says why it cannot be reached, "" where it can.

    `watchdog_s`: time within which the service manager wants a sign of life; None where it wants none [s].
    """

    def __init__(self, environment: Mapping[str, str], pid: int) -> None:
        name = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        self.trouble = ""
        wanted = environment.get("WATCHDOG_USEC", "") if environment.get("WATCHDOG_PID", str(pid)) == str(pid) else ""
        self.watchdog_s = int(wanted) / US_PER_S if wanted.isdecimal() and int(wanted) else None

    def send(self, **fields: str | int) -> None:
        """Fields of sd_notify(3), each on a line of its own."""
        if not self._address or self.trouble:
            return
        lines = [f"{name}={' '.join(str(value).split())[:LONGEST_FIELD]}" for name, value in fields.items()]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
                end.settimeout(1.0)
                end.connect(self._address)
                end.sendall("\n".join(lines).encode())
        except OSError as error:  # also a path that no socket can have
            self.trouble = f"the service manager cannot be told anything: NOTIFY_SOCKET: {error.strerror or error}"

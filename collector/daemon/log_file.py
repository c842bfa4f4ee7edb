"""Output of a service: logs of lines with the time of day, in files of limited size, and messages to systemd."""

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from estimator.vocabulary.documents import printable

JOB_FOLDER: Final = "logs"
LARGEST_BYTES: Final = 16 << 20
"""Size at which a log is renamed to NAME.1, replacing the one before."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log; `echo` receives its lines too.  A line that cannot be written is lost, without further effect."""

    path: Path
    echo: Callable[[str], None] = lambda _line: None

    def write(self, text: str) -> None:
        """Write one line: control characters in the text do not start another."""
        text = printable(text.strip().replace("\n", " | "))
        line = f"{datetime.now(UTC).strftime('%Y-%m-%dT%H:%M:%SZ')} {text}"
        self.echo(line)
        with suppress(OSError):  # a full disk is reported where rows are written; measuring continues
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.path.is_file() and self.path.stat().st_size > LARGEST_BYTES:
                self.path.replace(self.path.with_name(f"{self.path.name}.1"))
            with open(self.path, "a", encoding="utf-8", errors="replace", opener=_private) as stream:
                stream.write(f"{line}\n")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class Notifier:
    """Sends messages to the service manager: ready, alive, stopping, and a line of status (sd_notify(3)); does nothing without one.

    `watchdog_s`: longest time between two signs of life for the service manager; None if it requires none [s].
    """

    def __init__(self, environment: Mapping[str, str], pid: int) -> None:
        name = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        wanted = environment.get("WATCHDOG_USEC", "") if environment.get("WATCHDOG_PID", str(pid)) == str(pid) else ""
        self.watchdog_s = int(wanted) * 1e-6 if wanted.isdecimal() and int(wanted) else None

    def send(self, **fields: str | int) -> None:
        """Sends fields of sd_notify(3), each on a line of its own."""
        if not self._address:
            return
        lines = [f"{name}={' '.join(str(value).split())[:200]}" for name, value in fields.items()]
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:  # also a path that is impossible for a socket
            end.settimeout(1.0)
            end.connect(self._address)
            end.sendall("\n".join(lines).encode())

"""A daemon's settings: a TOML file, declared below."""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

from collector.errors import DaemonError
from estimator.vocabulary.reader import LEAST_ONE, FaultError, Span, Text, read_file
from estimator.vocabulary.resources import user_folder
from estimator.vocabulary.values import frozen

SYSTEM_CONFIG: Final = Path("/etc/wattprint/daemon.toml")
SYSTEM_STATE: Final = Path("/var/lib/wattprint")
STATE_NAME: Final = "wattprint"
DAEMON_LOG: Final = "daemon.log"

Address = tuple[str, int]
"""Host and port of the status page; port 0 is any free one."""

Seconds = Annotated[float, Span(1.0, 86_400.0, "s")]


@frozen
class DaemonSettings:
    """A daemon's settings.

    gpus           boards that it measures on, each with jobs of its own, side by side
    state_folder   queue, logs and locks; local, and accessible to its own user alone; not given: the default folder
    listen         address of status page and metrics, "127.0.0.1:9417"; empty: no page
    allow_other_addresses   lets `listen` be reached from other machines
    hang_s         a worker that is silent this much longer than its work can take is ended [s]
    drain_s        longest wait at the end of the daemon for running kernels [s]
    retries        restarts of a job after a failure that may pass, without a new row between
    retry_s        pause before the first of them, doubled each time [s]
    """

    gpus: Annotated[tuple[Text, ...], LEAST_ONE]
    state_folder: Text | None = None
    listen: str = ""
    allow_other_addresses: bool = False
    hang_s: Seconds = 600.0
    drain_s: Seconds = 120.0
    retries: Annotated[int, Span(0, 1000)] = 5
    retry_s: Annotated[float, Span(0.05, 86_400.0, "s")] = 10.0

    def __post_init__(self) -> None:
        _ = self.address

    @property
    def folder(self) -> Path:
        """The state folder: the configured one, else /var/lib/wattprint for root and a folder of their own for others."""
        default = SYSTEM_STATE if os.geteuid() == 0 else user_folder("XDG_STATE_HOME", ".local/state") / STATE_NAME
        return Path(self.state_folder) if self.state_folder else default

    @property
    def log(self) -> Path:
        """Path of the daemon's own log."""
        return self.folder / DAEMON_LOG

    @property
    def address(self) -> Address | None:
        """The address in `listen`; None without one.

        Raises FaultError for anything but a numeric address with a port, and for one that other machines reach if that is not allowed.
        """
        if not self.listen:
            return None
        host, _, port = self.listen.rpartition(":")
        try:
            address, number = ipaddress.ip_address(host.strip("[]")), int(port)
            if not 0 <= number <= 65_535:
                raise ValueError
        except ValueError:
            known = 'give "127.0.0.1:9417" or "[::1]:9417"'
            raise FaultError(f"= {self.listen!r} is no address with a port; {known}", "listen") from None
        if not address.is_loopback and not self.allow_other_addresses:
            raise FaultError(
                f"= {self.listen!r} can be reached from other machines, and power tells what others compute; "
                "give 127.0.0.1 or [::1], or set allow_other_addresses = true",
                "listen",
            )
        return str(address), number


def read_settings(path: Path) -> DaemonSettings:
    """A daemon's settings from its TOML file; the state folder is relative to it.

    Raises DaemonError for settings that the declaration does not allow.
    """
    settings = read_file(DaemonSettings, path, "daemon config", DaemonError)
    if settings.state_folder:
        settings = replace(settings, state_folder=str(path.absolute().parent / settings.state_folder))
    return settings


def client_settings(config: Path | None, environment: Mapping[str, str]) -> DaemonSettings:
    """The settings for a command that communicates with a daemon.

    From `config`, else the file that $WATTPRINT_CONFIG names, else /etc/wattprint/daemon.toml; without any the defaults,
    and no boards.  Raises DaemonError.
    """
    named = environment.get("WATTPRINT_CONFIG", "")
    config = config or (Path(named) if named else None) or (SYSTEM_CONFIG if SYSTEM_CONFIG.is_file() else None)
    return read_settings(config) if config else DaemonSettings(gpus=())

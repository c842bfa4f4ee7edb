"""What a daemon is told: a TOML file into a frozen dataclass, every key and figure checked."""

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from collector.errors import DaemonError
from collector.sensing.catalogue import is_file_name
from collector.tables import TableReader
from estimator.user_folders import user_folder

SYSTEM_CONFIG: Final = Path("/etc/wattprint/daemon.toml")
SYSTEM_STATE: Final = Path("/var/lib/wattprint")
STATE_NAME: Final = "wattprint"
DAEMON_LOG: Final = "daemon.log"

LIMITS: Final[dict[str, tuple[float, float, str]]] = {
    "hang_s": (1.0, 86_400.0, "s"),
    "drain_s": (1.0, 86_400.0, "s"),
    "retries": (0, 1000, "attempts"),
    "retry_s": (0.05, 86_400.0, "s"),
    "seed": (0, 2**31 - 1, ""),
}
"""Low, high and unit of every number in a daemon's file."""

HIGHEST_PORT: Final = 65_535
ADDRESS: Final = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<four>[0-9.]+)):(?P<port>\d{1,5})")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDefaults:
    """Options that `collect submit` takes where its own are not given; an empty text is none."""

    freqs: str = "current"
    families: str = ""
    budget: str = ""
    sensor: str = ""
    pmd: str = ""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSettings:
    """A daemon's settings.

    gpus           boards that it measures on, each with jobs of its own, side by side
    state_folder   queue, logs and locks; local, and its own user's alone
    listen         address of status page and metrics, "127.0.0.1:9417"; empty: none
    allow_other_addresses   lets `listen` be reached from other machines
    log_file       the daemon's own log; empty: daemon.log in the state folder
    hang_s         a worker that is silent this much longer than its work can take is ended [s]
    drain_s        patience at the end of the daemon for kernels that still run [s]
    retries        how often a job is begun again after a failure that may pass, without a new row between
    retry_s        rest before the first of them, doubled each time [s]
    """

    gpus: tuple[str, ...]
    state_folder: Path
    listen: str = ""
    allow_other_addresses: bool = False
    log_file: str = ""
    hang_s: float = 600.0
    drain_s: float = 120.0
    retries: int = 5
    retry_s: float = 10.0
    defaults: JobDefaults = field(default_factory=JobDefaults)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenAddress:
    """Where the status page is; port 0 is any free one."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return ipaddress.ip_address(self.host).is_loopback


def default_state_folder() -> Path:
    """Where the state lies unless told otherwise: /var/lib/wattprint for root, else the user's own folder for state."""
    if os.geteuid() == 0:
        return SYSTEM_STATE
    return user_folder("XDG_STATE_HOME", ".local/state") / STATE_NAME


def read_settings(path: Path) -> DaemonSettings:
    """A daemon's settings from its TOML file; paths in it are relative to the file.

    Raises DaemonError for an unreadable file, an unknown key (naming the near match), a figure that cannot be and an
    address that is not on loopback and not allowed.
    """
    where = f"daemon config {path}"
    reader = TableReader(where=where, error=DaemonError, limits=LIMITS)
    document = reader.read(path, "daemon's config")
    base = path.absolute().parent
    values: dict[str, Any] = dict(document)
    if "gpus" in values:  # a missing one is refused by `build`
        values["gpus"] = _texts(values["gpus"], "gpus", where)
    folder = values.get("state_folder")
    if folder is None:
        values["state_folder"] = default_state_folder()
    else:
        values["state_folder"] = base / _text(folder, "state_folder", where)
    if values.get("log_file"):
        values["log_file"] = str(base / _text(values["log_file"], "log_file", where))
    settings: DaemonSettings = reader.build(DaemonSettings, values)
    listen_address(settings, where)
    sensor = settings.defaults.sensor
    if not is_file_name(sensor) and not (base / sensor).is_file():
        return settings
    return replace(settings, defaults=replace(settings.defaults, sensor=str(base / sensor)))


def client_state_folder(config: Path | None, environment: Mapping[str, str]) -> tuple[Path, JobDefaults]:
    """State folder and defaults for a command that speaks to a daemon.

    From `config`, else the file that $WATTPRINT_CONFIG names, else /etc/wattprint/daemon.toml where there is one, else
    the default folder.  Raises DaemonError.
    """
    settings = _client_settings(config, environment)
    return (default_state_folder(), JobDefaults()) if settings is None else (settings.state_folder, settings.defaults)


def client_boards(config: Path | None, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The boards that the daemon is to serve, as its config words them; none without a config.  Raises DaemonError."""
    settings = _client_settings(config, environment)
    return () if settings is None else settings.gpus


def client_log(config: Path | None, environment: Mapping[str, str]) -> Path:
    """Where the daemon's own log lies, for such a command.  Raises DaemonError."""
    settings = _client_settings(config, environment)
    return default_state_folder() / DAEMON_LOG if settings is None else daemon_log(settings)


def daemon_log(settings: DaemonSettings) -> Path:
    """Where a daemon's own log lies."""
    return Path(settings.log_file) if settings.log_file else settings.state_folder / DAEMON_LOG


def _client_settings(config: Path | None, environment: Mapping[str, str]) -> DaemonSettings | None:
    named = environment.get("WATTPRINT_CONFIG", "")
    if config is None and named:
        config = Path(named)
    if config is None and SYSTEM_CONFIG.is_file():
        config = SYSTEM_CONFIG
    return None if config is None else read_settings(config)


def listen_address(settings: DaemonSettings, where: str = "daemon config") -> ListenAddress | None:
    """The address in `listen`; None for none.

    Raises DaemonError for what is no numeric address with a port, and for one that other machines reach where that is not allowed.
    """
    text = settings.listen.strip()
    if not text:
        return None
    parts = ADDRESS.fullmatch(text)
    try:
        host = str(ipaddress.ip_address(parts["six"] or parts["four"])) if parts else ""
    except ValueError:
        host = ""
    if not parts or not host or int(parts["port"]) > HIGHEST_PORT:
        raise DaemonError(f'{where}: listen = {text!r} is no address with a port; give "127.0.0.1:9417" or "[::1]:9417"')
    address = ListenAddress(host=host, port=int(parts["port"]))
    if not address.loopback and not settings.allow_other_addresses:
        raise DaemonError(
            f"{where}: listen = {text!r} can be reached from other machines, and power tells what others compute; "
            "give 127.0.0.1 or [::1], or set allow_other_addresses = true"
        )
    return address


def _texts(value: object, key: str, where: str) -> tuple[str, ...]:
    if isinstance(value, list) and value and all(isinstance(item, str) and item.strip() for item in value):
        return tuple(item.strip() for item in value)
    raise DaemonError(f'{where}: {key} must be a list of boards in quotes, such as ["0", "1"] or ["all"], got {value!r}')


def _text(value: object, key: str, where: str) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise DaemonError(f"{where}: {key} = {value!r} must name a path")
    return value

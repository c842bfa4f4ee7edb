"""What the clock helper is told: a TOML file that only its owner may change, every key and figure checked.

The standard library alone: this runs with privilege, and is to be read in one sitting.
"""

import grp
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from collector.devices.clock_record import SAFE_NAME
from collector.errors import PrivilegedError
from collector.privileged.protocol import DEFAULT_SOCKET
from estimator.documents import parse_toml
from estimator.regular_files import open_regular

SYSTEM_CONFIG: Final = Path("/etc/wattprint/clocks.toml")
DEFAULT_AUDIT: Final = "/var/log/wattprint-clocks/audit.log"
MOST_BYTES: Final = 1 << 16
"""Size of a settings file; one of eight boards has 1 kB."""

LOWEST_MHZ: Final = 1
HIGHEST_MHZ: Final = 10_000
"""No SM clock is outside [MHz]."""

LONGEST_LEASE_S: Final = 30 * 86_400.0
LONGEST_SILENCE_S: Final = 3600.0
SHORTEST_S: Final = 0.2
KEYS: Final = frozenset({"socket", "group", "audit_log", "lease_s", "silence_s", "shared_boards", "boards"})
BOARD_KEYS: Final = frozenset({"uuid", "lowest_mhz", "highest_mhz"})
OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardRange:
    """SM clocks that may be locked on a board [MHz], both ends included."""

    lowest_mhz: int
    highest_mhz: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperSettings:
    """A helper's settings.

    socket         its path; of no meaning where the service manager hands the socket over
    group          number of the group whose members may reach the socket, and so lock clocks
    audit_log      where every change is written down
    boards         allowed boards by UUID, with their clocks
    lease_s        no lease is longer [s]
    silence_s      a client that is silent for so long loses its lease [s]
    shared_boards  whether a clock may be locked while other users compute on the board
    """

    socket: Path
    group: int
    audit_log: Path
    boards: Mapping[str, BoardRange]
    lease_s: float
    silence_s: float
    shared_boards: bool


def read_settings(path: Path) -> HelperSettings:
    """A helper's settings.

    Raises PrivilegedError for a file that is a link, that others than root and the helper's user own or may change, or
    whose folders they may change; and for an unknown, missing or impossible value.
    """
    where = f"clock helper's config {path}"
    check_folder(path.absolute().parent, where)
    document = _document(path, where)
    _only(document, KEYS, where)
    return HelperSettings(
        socket=_path(document, "socket", str(DEFAULT_SOCKET), where),
        group=_group(document.get("group"), where),
        audit_log=_path(document, "audit_log", DEFAULT_AUDIT, where),
        boards=_boards(document.get("boards"), where),
        lease_s=_seconds(document, "lease_s", 86_400.0, LONGEST_LEASE_S, where),
        silence_s=_seconds(document, "silence_s", 60.0, LONGEST_SILENCE_S, where),
        shared_boards=_flag(document, "shared_boards", where),
    )


def check_folder(folder: Path, where: str) -> None:
    """Raises PrivilegedError unless only root and this user can put something else into a folder and all above it."""
    real = Path(os.path.realpath(folder))
    for each in (real, *real.parents):
        try:
            found = each.stat()
        except OSError as error:
            raise PrivilegedError(f"{where}: {each}: {error.strerror}") from error
        if found.st_uid not in (0, os.geteuid()):
            raise PrivilegedError(f"{where}: folder {each} belongs to user {found.st_uid}; it must belong to root")
        if found.st_mode & OTHERS_WRITE and not found.st_mode & stat.S_ISVTX:
            raise PrivilegedError(f"{where}: others may change folder {each}; chmod go-w {each}")


def _document(path: Path, where: str) -> dict[str, Any]:
    try:
        stream = open_regular(path, MOST_BYTES, follow=False)
    except OSError as error:
        reason = "is a symbolic link" if path.is_symlink() else error.strerror
        raise PrivilegedError(f"{where}: {reason}; name a file that belongs to root") from error
    with stream as file:
        found = os.fstat(file.fileno())
        if found.st_uid not in (0, os.geteuid()):
            raise PrivilegedError(f"{where}: belongs to user {found.st_uid}; chown root {path}")
        if found.st_mode & OTHERS_WRITE:
            raise PrivilegedError(f"{where}: others may change it; chmod go-w {path}")
        content = file.read(MOST_BYTES)
    try:
        return parse_toml(content)
    except ValueError as error:
        raise PrivilegedError(f"{where}: no TOML: {error}") from error


def _only(table: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise PrivilegedError(f"{where}: unknown key {key!r}; known: {', '.join(sorted(known))}")


def _group(value: object, where: str) -> int:
    """The number of a group.  Raises PrivilegedError."""
    try:
        return grp.getgrnam(str(value)).gr_gid
    except (KeyError, ValueError) as error:
        raise PrivilegedError(
            f'{where}: group = {value!r} is no group of this machine; its members may lock clocks: group = "wattprint-clocks"'
        ) from error


def _path(document: Mapping[str, Any], key: str, default: str, where: str) -> Path:
    value = document.get(key, default)
    if isinstance(value, str) and value.startswith("/") and "\0" not in value:
        return Path(value)
    raise PrivilegedError(f"{where}: {key} must be an absolute path, got {value!r}")


def _seconds(document: Mapping[str, Any], key: str, default: float, most: float, where: str) -> float:
    value = document.get(key, default)
    if isinstance(value, int | float) and not isinstance(value, bool) and SHORTEST_S <= value <= most:
        return float(value)
    raise PrivilegedError(f"{where}: {key} must be {SHORTEST_S:g} to {most:g} s, got {value!r}")


def _flag(document: Mapping[str, Any], key: str, where: str) -> bool:
    value = document.get(key, False)
    if isinstance(value, bool):
        return value
    raise PrivilegedError(f"{where}: {key} must be true or false, got {value!r}")


def _boards(value: object, where: str) -> dict[str, BoardRange]:
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        raise PrivilegedError(f"{where}: no board may be changed; name each in a table [[boards]] with uuid, lowest_mhz, highest_mhz")
    found: dict[str, BoardRange] = {}
    for table in value:
        _only(table, BOARD_KEYS, f"{where}: [[boards]]")
        uuid = table.get("uuid")
        if not isinstance(uuid, str) or not SAFE_NAME.fullmatch(uuid):
            raise PrivilegedError(f"{where}: [[boards]]: uuid = {uuid!r} is none; `nvidia-smi -L` tells it")
        if uuid in found:
            raise PrivilegedError(f"{where}: board {uuid} stands twice")
        low, high = table.get("lowest_mhz"), table.get("highest_mhz")
        if type(low) is not int or type(high) is not int or not LOWEST_MHZ <= low <= high <= HIGHEST_MHZ:
            raise PrivilegedError(
                f"{where}: board {uuid}: lowest_mhz = {low!r} and highest_mhz = {high!r} must be whole MHz, in that order"
            )
        found[uuid] = BoardRange(lowest_mhz=low, highest_mhz=high)
    return found


def socket_of(path: Path) -> Path:
    """Where the helper of a config listens, for a client, which need not know its users.  Raises PrivilegedError."""
    where = f"clock helper's config {path}"
    return _path(_document(path, where), "socket", str(DEFAULT_SOCKET), where)

"""The clock helper's settings: a TOML file that only its owner may change, declared below."""

import grp
import os
import stat
from pathlib import Path
from typing import Annotated, Final

from collector.devices.clock_record import BoardUuid
from collector.errors import PrivilegedError
from estimator.vocabulary.documents import parse_toml
from estimator.vocabulary.reader import LEAST_ONE, FaultError, Span, read
from estimator.vocabulary.regular_files import open_regular
from estimator.vocabulary.values import frozen

MOST_BYTES: Final = 1 << 16
"""Largest size of a settings file; one of eight boards has 1 kB."""

SHORTEST_S: Final = 0.2
OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH

Mhz = Annotated[int, Span(1, 10_000, "MHz")]


@frozen
class BoardRange:
    """A board and the SM clocks that may be locked on it [MHz], both ends included."""

    uuid: BoardUuid
    lowest_mhz: Mhz
    highest_mhz: Mhz

    def __post_init__(self) -> None:
        if self.lowest_mhz > self.highest_mhz:
            raise FaultError(f"= {self.lowest_mhz} is above highest_mhz", "lowest_mhz")


@frozen
class HelperSettings:
    """A helper's settings.

    group          the group whose members may reach the socket, and so lock clocks
    boards         allowed boards, with their clocks
    lease_s        longest lease [s]
    look_s         time between two looks whether other users compute on a board with a lease [s]
    shared_boards  whether a clock may be locked while other users compute on the board
    """

    group: str
    boards: Annotated[tuple[BoardRange, ...], LEAST_ONE]
    lease_s: Annotated[float, Span(SHORTEST_S, 30 * 86_400.0, "s")] = 86_400.0
    look_s: Annotated[float, Span(SHORTEST_S, 3600.0, "s")] = 15.0
    shared_boards: bool = False

    def __post_init__(self) -> None:
        try:
            _ = self.group_id
        except KeyError as error:
            raise FaultError(f"= {self.group!r} is no group of this machine; its members may lock clocks", "group") from error
        if len({board.uuid for board in self.boards}) < len(self.boards):
            raise FaultError("names a board twice", "boards")

    @property
    def group_id(self) -> int:
        """The number of the group."""
        return grp.getgrnam(self.group).gr_gid


def read_settings(path: Path) -> HelperSettings:
    """A helper's settings.

    Raises PrivilegedError for a file that is a link, that others than root and the helper's user own or may change, or
    whose folders they may change; and for an unknown, missing or impossible value.
    """
    where = f"clock helper's config {path}"
    check_folder(path.absolute().parent, where)
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
        return read(HelperSettings, parse_toml(content))
    except ValueError as error:
        raise PrivilegedError(f"{where}: {error}") from error


def check_folder(folder: Path, where: str) -> None:
    """Raises PrivilegedError unless only root and this user can change the entries of a folder and of all folders above it."""
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

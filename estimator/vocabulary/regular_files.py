"""Reading of user-named files; all other modules read through this one.

Only regular files are opened: opening a pipe without a writer blocks forever, and a device never ends.
"""

import errno
import os
import stat
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final

GIVEN_OPEN: Final = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""Prefixes of files that the process inherits open, as from a shell for `-` and `<(…)`: they have a writer, or an end."""

MOST_DATA_BYTES: Final = 256 << 20
"""Largest bundle, workload or table of text [byte]: they are far smaller, so a larger file is a mistake or an endless device."""

KINDS: Final = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def special_kind(path: str | Path) -> str | None:
    """The kind of a path that is neither a file nor a folder, in words; None for these.  Raises OSError for a missing path."""
    try:
        return KINDS.get(stat.S_IFMT(os.stat(path).st_mode))
    except ValueError as error:
        raise OSError(errno.EINVAL, "no file has such a name", str(path)) from error


def open_regular(path: str | Path, most_bytes: int | None = None, *, follow: bool = True) -> BinaryIO:
    """A regular file of at most `most_bytes`, open for reading; None: any size, for callers that read piece by piece.

    A pipe that the process inherits open is read to its end, if `most_bytes` is given; `follow`: whether the path may be a link.
    Raises OSError, whose `strerror` is one line, for all other paths: pipes, devices, sockets, folders, larger files.
    """
    kind, name = special_kind(path), str(path)
    if kind is not None and most_bytes is not None and name.startswith(GIVEN_OPEN):
        with open(path, "rb") as given:
            content = given.read(most_bytes + 1)
        _check_size(path, len(content), most_bytes)
        return BytesIO(content)
    if kind is not None:
        raise OSError(errno.EINVAL, f"it is {kind}, not a file; write what it holds to a file and name that", name)
    wanted = ("O_CLOEXEC", "O_BINARY", "O_NONBLOCK", "" if follow else "O_NOFOLLOW")  # does not block on a pipe created meanwhile
    flags = os.O_RDONLY | sum(getattr(os, name, 0) for name in wanted)  # each of POSIX or of Windows alone
    descriptor = os.open(path, flags)
    try:
        status = os.fstat(descriptor)
        if stat.S_IFMT(status.st_mode) in KINDS:
            raise OSError(errno.EINVAL, "it is not a regular file", name)
        _check_size(path, status.st_size, most_bytes)
        return os.fdopen(descriptor, "rb")  # refuses a folder
    except OSError:
        os.close(descriptor)
        raise


def read_regular(path: str | Path, most_bytes: int) -> bytes:
    """The content of a regular file of at most `most_bytes`.  Raises OSError like `open_regular`."""
    with open_regular(path, most_bytes) as stream:
        content = stream.read()
    _check_size(path, len(content), most_bytes)  # a file that grows, or one of /proc, which states no size
    return content


def _check_size(path: str | Path, size: int, most_bytes: int | None) -> None:
    if most_bytes is not None and size > most_bytes:
        shown = f"{most_bytes >> 20} MiB" if most_bytes >= 1 << 20 else f"{most_bytes} bytes"
        raise OSError(errno.EFBIG, f"it is larger than {shown}, more than such a file can be", str(path))

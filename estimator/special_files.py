"""Paths that are no files: opening a pipe to which nobody writes would wait for ever, and a device never ends."""

import errno
import os
import stat
from pathlib import Path
from typing import Final

OPEN_ALREADY: Final = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""Names of what this process was given open, as a shell does for `<(…)`: that has a writer, or an end."""

KINDS: Final = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def special_kind(path: Path) -> str | None:
    """What it is instead of a file or a folder, in words, None for these.  Raises OSError for what is not there."""
    return KINDS.get(stat.S_IFMT(os.stat(path).st_mode))


def refuse_special(path: Path) -> None:
    """Raises OSError for what is neither a file nor a folder, and for what is not there; a folder is left to whoever opens it."""
    kind = special_kind(path)
    if kind is not None and not str(path).startswith(OPEN_ALREADY):
        raise OSError(errno.EINVAL, f"it is {kind}, not a file; write what it holds to a file and name that", str(path))

"""Files that appear whole or not at all."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from estimator.regular_files import special_kind


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that no reader, and no crash, ever sees a part of it.  Raises OSError."""
    with open_whole(path) as stream:
        stream.write(content)


@contextmanager
def open_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write piece by piece that no reader, and no crash, ever sees a part of.

    The content goes into a new file beside the target, is synced, and takes the target's name in one step when the
    block ends; a link is followed.  On failure nothing is left behind and the old file stays.  Raises OSError.
    """
    from secrets import token_hex  # costs milliseconds; most commands write no file

    kind = None
    with suppress(FileNotFoundError):
        kind = special_kind(path)  # asked of the name as given: what /dev/stdout leads to may have no name of its own
    if kind is not None:
        raise OSError(errno.EINVAL, f"not a regular file but {kind}", str(path))
    try:
        target = path.resolve()
    except RuntimeError as error:  # so says Python below 3.13
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from error
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    beside = target.with_name(f".{target.name}.{os.getpid()}.{token_hex(4)}.part")
    try:
        with beside.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """Make the new name durable, where the system lets a folder be opened."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

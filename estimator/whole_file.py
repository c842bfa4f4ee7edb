"""Files that appear whole or not at all."""

import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that no reader, and no crash, ever sees a part of it.

    The content goes into a new file beside the target, is synced, and takes the target's name in one step; a link
    is followed.  On failure nothing is left behind and the old file stays.  Raises OSError.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        raise IsADirectoryError(f"{path} is not a regular file")
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with beside.open("xb") as stream:
            stream.write(content)
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

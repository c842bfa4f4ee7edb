"""Atomic writing of files."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from estimator.vocabulary.errors import UnwrittenError
from estimator.vocabulary.regular_files import special_kind


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically: neither a reader nor a crash leaves a partial file.  Raises UnwrittenError."""
    with open_whole(path) as stream:
        stream.write(content)


@contextmanager
def open_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write piece by piece; it appears atomically when the block ends.

    The content goes into a new file beside the target, is synced, and is renamed to the target in one step when the
    block ends; a link is followed.  On failure the new file is removed and the old file stays.  Leftovers of killed processes for the same
    target are removed.  Raises UnwrittenError, also for an OSError of the block.
    """
    try:
        kind = None
        with suppress(FileNotFoundError):
            kind = special_kind(path)  # of the given name: the target of /dev/stdout may have no name
        target = path.resolve()
        kind = "a folder" if target.is_dir() else kind
    except (OSError, ValueError, RuntimeError) as error:  # a null byte; a loop of links, before Python 3.13
        raise _unwritten(path, error) from error
    if kind is not None:
        raise UnwrittenError(f"{path}: cannot be written, it is {kind}; name a file")
    try:
        with _beside(target) as stream:
            yield stream
    except (UnwrittenError, BrokenPipeError):
        raise
    except OSError as error:
        raise _unwritten(path, error) from error


def try_place(path: Path) -> None:
    """Raise UnwrittenError if `open_whole` could not write; no file is written or left."""
    with suppress(_TriedError), open_whole(path):
        raise _TriedError


class _TriedError(Exception):
    """The place of a file can be written."""


def _unwritten(path: Path, error: Exception) -> UnwrittenError:
    folder = path.absolute().parent
    if not folder.is_dir():
        return UnwrittenError(f"{path}: cannot be written, no folder {folder} is there; make it, or name another place")
    reason = (isinstance(error, OSError) and error.strerror) or error
    return UnwrittenError(f"{path}: cannot be written ({reason}); see that the place can be written and has room")


@contextmanager
def _beside(target: Path) -> Iterator[BinaryIO]:
    """A file beside the target that takes its name when the block ends.  Raises OSError."""
    _remove_leftovers(target)
    beside = target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}.part")
    try:
        with beside.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def unfinished(target: Path) -> list[tuple[Path, int]]:
    """Temporary files for `target` of running or killed processes, each with its process id."""
    name = re.compile(rf"\.{re.escape(target.name)}\.(\d{{1,9}})\.[0-9a-f]{{8}}\.part")
    try:
        there = os.listdir(target.parent)
    except PermissionError:  # a folder with permission to write but not to list
        return []
    return [(target.parent / found[0], int(found[1])) for found in filter(None, map(name.fullmatch, there))]


def _remove_leftovers(target: Path) -> None:
    """Remove temporary files for a target from dead processes."""
    for path, process in unfinished(target):
        try:
            if os.name == "posix":
                os.kill(process, 0)
            else:
                path.unlink()  # Windows keeps a file that is open
        except ProcessLookupError:
            path.unlink(missing_ok=True)
        except OSError:
            continue  # a running process, or another user's


def sync_folder(folder: Path) -> None:
    """Make a new name durable, if the system allows to open a folder.  Raises OSError."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

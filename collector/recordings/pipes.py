"""What a pipe hands over, as bytes: columns are looked at more than once, and a pipe can be read once."""

import os
import select
import stat
import time
from pathlib import Path
from typing import Final

from collector.errors import SensorError

WRITER_S: Final = 10.0
"""Patience for a process that writes into a pipe [s]; one that has the pipe open and is silent is waited for as long as it likes."""
BLOCK_BYTES: Final = 1 << 20
MOST_BYTES: Final = 1 << 30
"""Bytes that are kept of a pipe."""
LOOK_S: Final = 0.02
SIGNAL_S: Final = 0.2
"""A wait ends so often [s]: a signal that came just before the wait is seen only when it ends."""


def is_pipe(path: Path) -> bool:
    """Whether a path is a pipe, named (`mkfifo`) or not (`/dev/stdin`, `<(command)`).  Raises OSError."""
    return stat.S_ISFIFO(path.stat().st_mode)


def pipe_content(path: Path) -> bytes:
    """Everything that comes through a pipe until its writers have closed it.

    Raises SensorError for a pipe into which nobody writes, and for one that does not end, OSError for one that cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return _content(descriptor, path)
    finally:
        os.close(descriptor)


def small_content(path: Path, most_bytes: int) -> bytes:
    """Everything in a small file, or what comes through a pipe.

    Raises SensorError for more than `most_bytes` (a device may never end), OSError for what cannot be read.
    """
    if is_pipe(path):
        content = pipe_content(path)
    else:
        with path.open("rb") as stream:
            content = stream.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise SensorError(f"{path}: larger than {most_bytes} bytes, more than such a file can be; name another file")
    return content


def _content(descriptor: int, path: Path) -> bytes:
    parts: list[bytes] = []
    size = 0
    deadline = time.monotonic() + WRITER_S
    while True:
        try:
            block = os.read(descriptor, BLOCK_BYTES)
        except BlockingIOError:  # a writer is there and has nothing to say yet
            select.select([descriptor], [], [], SIGNAL_S)
            continue
        if block:
            parts.append(block)
            size += len(block)
            if size > MOST_BYTES:
                raise SensorError(f"{path}: more than {MOST_BYTES >> 20} MiB came through this pipe; write a file and name that")
        elif parts:
            return b"".join(parts)
        elif time.monotonic() > deadline:
            raise SensorError(f"{path}: a pipe into which no process writes; name a file, or start the writer first")
        else:
            time.sleep(LOOK_S)

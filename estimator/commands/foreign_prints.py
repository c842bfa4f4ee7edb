"""What foreign code prints, kept out of a command's answer."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

STDOUT, STDERR = 1, 2


@contextmanager
def stdout_on_stderr() -> Iterator[None]:
    """While the block runs, what is written to the file of stdout goes to that of stderr, whoever writes it: C code, `os.write`, threads.

    `contextlib.redirect_stdout` moves what Python prints alone.  For commands, which have the process for
    themselves and run with an open stdout alone.
    """
    sys.stdout.flush()
    kept = os.dup(STDOUT)
    try:
        _point_stdout_elsewhere()
        yield
    finally:
        _flush_c()
        os.dup2(kept, STDOUT)
        os.close(kept)


def _point_stdout_elsewhere() -> None:
    if sys.stderr is not None:
        os.dup2(STDERR, STDOUT)
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, STDOUT)
    os.close(nowhere)


def _flush_c() -> None:
    """Let go what C code has printed and the C library still holds."""
    with suppress(OSError, TypeError, AttributeError):  # systems whose C library is found in another way
        ctypes.CDLL(None).fflush(None)

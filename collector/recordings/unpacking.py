"""Logs that were packed: gzip, bzip2 and xz are read as what they hold."""

import bz2
import gzip
import lzma
import zlib
from io import BytesIO
from pathlib import Path
from typing import Final

from collector.errors import SensorError
from collector.recordings.pipes import BLOCK_BYTES, MOST_BYTES

GZIP, BZIP2, XZ = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00"
OTHERS: Final = ((b"PK\x03\x04", "zip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"7z\xbc\xaf", "7z"))
"""What is refused by name."""
MARK_BYTES: Final = 6


def packing(path: Path) -> str:
    """What a file is packed with, "" for none that is known.  Raises OSError."""
    with path.open("rb") as stream:
        mark = stream.read(MARK_BYTES)
    return next((name for begin, name in ((GZIP, "gzip"), (BZIP2, "bzip2"), (XZ, "xz"), *OTHERS) if mark.startswith(begin)), "")


def unpacked(path: Path, content: bytes | None) -> tuple[bytes | None, bool]:
    """What a packed file holds, or `content` that came through a pipe; `content` as it is for what is not packed.

    Of a file that breaks off everything before the break, and that it does.  Raises SensorError for other packings and for too much,
    OSError.
    """
    with path.open("rb") if content is None else BytesIO(content) as stream:
        mark = stream.read(MARK_BYTES)
        stream.seek(0)
        for begin, name in OTHERS:
            if mark.startswith(begin):
                raise SensorError(f"{path}: is packed ({name}); unpack it first")
        if mark.startswith(GZIP):
            return _content(gzip.GzipFile(fileobj=stream), path)
        if mark.startswith(BZIP2):
            return _content(bz2.BZ2File(stream), path)
        if mark.startswith(XZ):
            return _content(lzma.LZMAFile(stream), path)
    return content, False


def _content(packed: gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile, path: Path) -> tuple[bytes, bool]:
    parts: list[bytes] = []
    size, broken = 0, False
    try:
        while block := packed.read1(BLOCK_BYTES):  # what comes before a break is handed over
            parts.append(block)
            size += len(block)
            if size > MOST_BYTES:
                raise SensorError(f"{path}: holds more than {MOST_BYTES >> 20} MiB; unpack it and name that file")
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        if not parts:
            raise SensorError(f"{path}: is packed and cannot be unpacked ({error})") from error
        broken = True
    return b"".join(parts), broken

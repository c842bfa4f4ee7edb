"""One dataset that many hosts write into: a folder, on NFS too.

The hosts do not coordinate: every run writes one part with a unique name (board, host, UUID and a run id), and a part
appears complete.  Until then its rows are in a log of the host's own.

    ROOT/board=a100-pcie-40gb/host=node17/GPU-…-20260102T030405Z-1a2b3c4d.parquet
"""

import hashlib
import json
import os
import socket
import urllib.parse
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pyarrow as pa

from collector.dataset.parquet import one_line
from collector.dataset.reader import file_digest, read_kernel_dataset
from collector.dataset.schema import Row
from collector.errors import DatasetError
from estimator.vocabulary.whole_file import sync_folder

RUNNING_FOLDER: Final = ".running"
"""Folder of logs and unpublished parts within a root; readers skip names that begin with a point."""
BOARD_KEY: Final = "board="


@dataclass(frozen=True, slots=True)
class PartitionedPlace:
    """The root of a partitioned dataset."""

    root: Path

    def running_output(self, key: Row) -> Path:
        """Path where this host writes a campaign until its part is published; the same for the same campaign on the same board.

        Raises DatasetError if its folder cannot be made.
        """
        digest = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()[:12]
        folder = self.root / RUNNING_FOLDER
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DatasetError(f"{self.root}: parts cannot be written there ({one_line(error)}); name another place with --out") from error
        return folder / f"{_safe(socket.gethostname())}-{_safe(str(key.get('gpu_uuid')))}-{digest}.parquet"

    def publish(self, finished: Path) -> str:
        """Move a finished part to its unique name below the root; returns the name.

        Raises DatasetError, and then leaves the part in place.  A part whose publishing was interrupted gets the same name again.
        """
        board = read_kernel_dataset(finished).metadata.get("gpu") or {}
        stamp = datetime.fromtimestamp(finished.stat().st_mtime, UTC).strftime("%Y%m%dT%H%M%SZ")
        token = hashlib.sha256(f"{finished.name} {file_digest(finished)}".encode()).hexdigest()[:8]
        folder = self.root / f"{BOARD_KEY}{_safe(str(board.get('specification') or board.get('name') or 'unknown'))}"
        part = folder / f"host={_safe(socket.gethostname())}" / f"{_safe(str(board.get('uuid')))}-{stamp}-{token}.parquet"
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            os.replace(finished, part)
            sync_folder(part.parent)
        except OSError as error:
            safe = f"everything measured is safe in {finished}; the same command with --resume publishes it"
            raise DatasetError(f"{self.root}: the part cannot be written there ({one_line(error)}); {safe}") from error
        return str(part)

    def measured(self, key: Row) -> pa.Table | None:
        """Rows of one campaign on one board in the existing parts; None without any.  Raises DatasetError."""
        pattern = f"{BOARD_KEY}*/host=*/{_safe(str(key.get('gpu_uuid')))}-*.parquet"
        parts = (read_kernel_dataset(path) for path in sorted(self.root.glob(pattern)))
        found = [part.table for part in parts if part.metadata.get("key") == key]
        return pa.concat_tables(found) if found else None


def partitioned_place(text: str) -> PartitionedPlace | None:
    """The place that `--out` names if it is an existing folder, or a name with a slash at its end; else None.

    Raises DatasetError for a URL, and for a folder that holds other things than parts.
    """
    if "://" in text:
        raise DatasetError(f"{text}: is a URL; name a file or folder of this machine, and copy it")
    if not text.endswith("/") and not Path(text).is_dir():
        return None
    folder = Path(text).absolute()
    try:
        found = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    except OSError as error:
        raise DatasetError(f"{text}: cannot be read ({one_line(error)}); name another place with --out") from error
    if found and not any(name == RUNNING_FOLDER or name.startswith(BOARD_KEY) for name in found):
        raise DatasetError(f"{text}: is a folder that holds other things ({found[0]}); name a file, or a new or empty folder for parts")
    return PartitionedPlace(folder)


def _safe(text: str) -> str:
    """A text as a part of a file's name, and as a hive key's value."""
    return urllib.parse.quote(text, safe="-_.") or "unknown"

"""One dataset that many hosts write into: a folder, on NFS too, or a place in an object store.

The hosts do not coordinate: every run writes one part with a unique name (board, host, UUID and a run id), and a part
appears complete.  Until then its rows are in a log of the host's own.

    ROOT/board=a100-pcie-40gb/host=node17/GPU-…-20260102T030405Z-1a2b3c4d.parquet
"""

import hashlib
import json
import os
import re
import socket
import tempfile
import urllib.parse
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.fs as pafs

from collector.dataset.parquet import one_line
from collector.dataset.reader import file_digest, read_kernel_dataset
from collector.dataset.schema import Row
from collector.errors import DatasetError
from estimator.vocabulary.resources import user_folder
from estimator.vocabulary.whole_file import write_whole

URL: Final = re.compile(r"[a-z][a-z0-9+.-]*://.+")
RUNNING_FOLDER: Final = ".running"
"""Folder of logs and unpublished parts within a local root; readers skip names that begin with a point."""
BOARD_KEY: Final = "board="
SPOOL_VARIABLE: Final = "WATTPRINT_SPOOL"
KEY_DIGITS: Final = 12
OBJECT_STORES: Final = frozenset({"s3", "gcs", "gs", "abfs", "abfss"})
"""File systems on which an object appears complete when its writing ends; elsewhere a file is renamed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionedPlace:
    """The root of a partitioned dataset as the user named it, and a file system with the root's path in it."""

    name: str
    filesystem: pafs.FileSystem
    root: str
    local: Path | None

    def part_name(self, board: str, gpu_uuid: str, finished: Path) -> str:
        """The unique name of a part, below the root: the same for the same file, also if its publishing is repeated."""
        stamp = datetime.fromtimestamp(finished.stat().st_mtime, UTC).strftime("%Y%m%dT%H%M%SZ")
        keys = f"{BOARD_KEY}{_safe(board)}/host={_safe(socket.gethostname())}"
        token = hashlib.sha256(f"{finished.name} {file_digest(finished)}".encode()).hexdigest()[:8]
        return f"{keys}/{_safe(gpu_uuid)}-{stamp}-{token}.parquet"

    def running_output(self, key: Row) -> Path:
        """Path where this host writes a campaign until its part is published; the same for the same campaign on the same board."""
        digest = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()[:KEY_DIGITS]
        folder = self.local / RUNNING_FOLDER if self.local is not None else _spool_folder(self.name)
        return folder / f"{_safe(socket.gethostname())}-{_safe(str(key.get('gpu_uuid')))}-{digest}.parquet"

    def check(self, running: Path) -> None:
        """Raises DatasetError if parts could not be written, before any measurement."""
        probe = f"{self.root}/{RUNNING_FOLDER}-{_safe(socket.gethostname())}-{os.getpid()}"
        try:
            running.parent.mkdir(parents=True, exist_ok=True)
            self.filesystem.create_dir(self.root, recursive=True)
            with self.filesystem.open_output_stream(probe) as stream:
                stream.write(b"wattprint")
            self.filesystem.delete_file(probe)
        except (OSError, pa.ArrowException) as error:
            raise DatasetError(f"{self.name}: parts cannot be written there ({one_line(error)}); name another place with --out") from error

    def publish(self, finished: Path) -> str:
        """Move a finished part to its unique name below the root; returns the name.

        Raises DatasetError, and then leaves the part in place.  A part whose publishing was interrupted is published again under the same
        name, complete: readers find it once.
        """
        metadata = read_kernel_dataset(finished).metadata
        board = metadata.get("gpu") or {}
        part = self.part_name(str(board.get("specification") or board.get("name") or "unknown"), str(board.get("uuid")), finished)
        try:
            self._put(finished, part)
        except (OSError, pa.ArrowException) as error:
            safe = f"everything measured is safe in {finished}; the same command with --resume publishes it"
            raise DatasetError(f"{self.name}: the part cannot be written there ({one_line(error)}); {safe}") from error
        finished.unlink(missing_ok=True)  # a remaining file is published again, under the same name
        return f"{self.name.rstrip('/')}/{part}"

    def measured(self, key: Row) -> pa.Table | None:
        """Rows of one campaign on one board in the existing parts; None without any.  Raises DatasetError."""
        selector = pafs.FileSelector(self.root, recursive=True, allow_not_found=True)
        board = f"{_safe(str(key.get('gpu_uuid')))}-"
        found = []
        try:
            for info in self.filesystem.get_file_info(selector):
                if info.is_file and info.base_name.startswith(board) and info.base_name.endswith(".parquet"):
                    with tempfile.TemporaryDirectory() as folder, self.filesystem.open_input_stream(info.path) as stream:
                        copy = Path(folder) / "part.parquet"
                        copy.write_bytes(stream.read())
                        dataset = read_kernel_dataset(copy)
                    if dataset.metadata.get("key") == key:
                        found.append(dataset.table)
        except (OSError, pa.ArrowException) as error:
            raise DatasetError(f"{self.name}: cannot be read ({one_line(error)})") from error
        return pa.concat_tables(found) if found else None

    def _put(self, source: Path, name: str) -> None:
        """Write a file below the root, completely or not at all."""
        content, path = source.read_bytes(), f"{self.root}/{name}"
        folder, _, last = path.rpartition("/")
        self.filesystem.create_dir(folder, recursive=True)
        if self.local is not None:
            write_whole(self.local / name, content)
            return
        beside = path if self.filesystem.type_name in OBJECT_STORES else f"{folder}/.{last}.part"
        with self.filesystem.open_output_stream(beside) as stream:
            stream.write(content)
        size = self.filesystem.get_file_info(beside).size
        if size != len(content):
            self.filesystem.delete_file(beside)
            raise OSError(0, f"{size} of {len(content)} byte arrived")
        if beside != path:
            self.filesystem.move(beside, path)


def partitioned_place(text: str) -> PartitionedPlace | None:
    """The place that `--out` names if it is a URL, an existing folder, or a name with a slash at its end; else None.

    Raises DatasetError for an unsupported kind of URL, and for a folder that holds other things than parts.
    """
    if URL.fullmatch(text):
        try:
            filesystem, root = pafs.FileSystem.from_uri(text)
        except (OSError, pa.ArrowException, ImportError) as error:
            raise DatasetError(f"{text}: not a place that can be written from here ({one_line(error)})") from error
        return PartitionedPlace(name=text, filesystem=filesystem, root=root.rstrip("/"), local=None)
    if not text.endswith("/") and not Path(text).is_dir():
        return None
    folder = Path(text).absolute()
    try:
        found = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    except OSError as error:
        raise DatasetError(f"{text}: cannot be read ({one_line(error)}); name another place with --out") from error
    if found and not any(name == RUNNING_FOLDER or name.startswith(BOARD_KEY) for name in found):
        raise DatasetError(f"{text}: is a folder that holds other things ({found[0]}); name a file, or a new or empty folder for parts")
    return PartitionedPlace(name=text, filesystem=pafs.LocalFileSystem(), root=str(folder), local=folder)


def _spool_folder(name: str) -> Path:
    """Folder of this host for data not yet in an object store: $WATTPRINT_SPOOL, else the user's folder for state."""
    named = os.environ.get(SPOOL_VARIABLE)
    folder = Path(named) if named else user_folder("XDG_STATE_HOME", ".local/state") / "wattprint" / "spool"
    return folder / hashlib.sha256(name.encode()).hexdigest()[:KEY_DIGITS]


def _safe(text: str) -> str:
    """A text as a part of a file's name, and as a hive key's value."""
    return urllib.parse.quote(text, safe="-_.") or "unknown"

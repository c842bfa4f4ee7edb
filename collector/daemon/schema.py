"""The state database: a SQLite file, its tables and their version; opening it, refusing what it is not."""

import errno
import os
import re
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from collector.errors import DaemonError

FILE_NAME: Final = "state.sqlite"
APPLICATION_ID: Final = 0x57415454
"""SQLite's application id: "WATT"."""
SCHEMA_VERSION: Final = 1
BUSY_TIMEOUT_S: Final = 5.0
"""Patience for another writer [s]; writes take milliseconds."""
OWNER_ONLY: Final = 0o700
NEW_SUFFIX: Final = ".new"
"""Ending of a database that is being made; one that a process left when it was killed is nobody's."""
UNFINISHED_S: Final = 60.0
"""Making a database takes milliseconds: after so long its maker counts as dead [s]."""

TABLES: Final = """
CREATE TABLE job (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    state TEXT NOT NULL,
    board TEXT NOT NULL,
    gpu_word TEXT NOT NULL,
    campaign TEXT NOT NULL,
    title TEXT NOT NULL,
    arguments TEXT NOT NULL,
    out TEXT NOT NULL,
    budget_s REAL,
    fresh INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    submitted_by TEXT NOT NULL,
    submitted_unix_s REAL NOT NULL,
    phase TEXT NOT NULL DEFAULT '',
    done INTEGER NOT NULL DEFAULT 0,
    total INTEGER NOT NULL DEFAULT 0,
    rows INTEGER NOT NULL DEFAULT 0,
    refused INTEGER NOT NULL DEFAULT 0,
    flagged INTEGER NOT NULL DEFAULT 0,
    used_s REAL NOT NULL DEFAULT 0,
    before TEXT,
    attempts INTEGER NOT NULL DEFAULT 0,
    cause TEXT NOT NULL DEFAULT '',
    message TEXT NOT NULL DEFAULT '',
    exit_status INTEGER,
    stop INTEGER NOT NULL DEFAULT 0,
    started_unix_s REAL,
    ended_unix_s REAL,
    not_before_unix_s REAL NOT NULL DEFAULT 0,
    eta_s REAL,
    pid INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX job_queue ON job (state, board, priority DESC, id);
CREATE TABLE board (
    board TEXT PRIMARY KEY,
    gpu_word TEXT NOT NULL,
    name TEXT NOT NULL DEFAULT '',
    job INTEGER NOT NULL DEFAULT 0,
    sm_clock_mhz REAL,
    power_w REAL,
    temperature_c REAL,
    updated_unix_s REAL
);
CREATE TABLE counter (
    name TEXT NOT NULL,
    board TEXT NOT NULL,
    value REAL NOT NULL,
    PRIMARY KEY (name, board)
);
CREATE TABLE daemon (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    pid INTEGER NOT NULL,
    version TEXT NOT NULL,
    started_unix_s REAL NOT NULL,
    beat_unix_s REAL NOT NULL,
    listen TEXT NOT NULL,
    stop INTEGER NOT NULL DEFAULT 0,
    draining INTEGER NOT NULL DEFAULT 0
);
"""


KINDS: Final[dict[str, tuple[type, ...]]] = {"INTEGER": (int,), "REAL": (int, float), "TEXT": (str,)}
COLUMN_KINDS: Final = {
    f"{table.split()[0]}.{name}": KINDS[kind]
    for table in TABLES.split("CREATE TABLE ")[1:]
    for name, kind in re.findall(r"^    (\w+) (INTEGER|REAL|TEXT)", table, re.MULTILINE)
}
"""Types of values by table and column, which SQLite itself does not keep to."""


def prepare_folder(folder: Path, *, own: bool = False) -> None:
    """Make a state folder that only its owner and root enter; with `own` root, too, takes none but its own.

    Raises DaemonError where it cannot be had or is somebody else's.
    """
    try:
        folder.mkdir(mode=OWNER_ONLY, parents=True, exist_ok=True)
    except OSError as error:
        raise DaemonError(f"{folder}: no state folder can be made there ({error.strerror}); name another as state_folder") from error
    check_own_folder(folder, own=own)


def check_own_folder(folder: Path, *, own: bool = False) -> None:
    """Raises DaemonError for what is no folder, one that others may write, or somebody else's, which root takes without `own`."""
    try:
        status = folder.stat()
    except OSError as error:
        raise DaemonError(f"{folder}: cannot be entered ({error.strerror}); name another as state_folder") from error
    if not stat.S_ISDIR(status.st_mode):
        raise DaemonError(f"{folder}: is no folder; name another as state_folder")
    if status.st_uid != os.geteuid() and (own or os.geteuid() != 0):
        raise DaemonError(f"{folder}: belongs to another user; run the command as that user, or name a state folder of your own")
    if status.st_mode & 0o022:
        raise DaemonError(f"{folder}: others may write there and could queue jobs in your name; chmod go-w it first")


def has_database(folder: Path) -> bool:
    """Whether something is where a folder's state database lies.  Raises DaemonError where this user may not look."""
    try:
        (folder / FILE_NAME).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        remedy = "only its owner and root enter it: run the command as the daemon's user"
        raise DaemonError(f"{folder}: cannot be entered ({error.strerror}); {remedy}") from error
    return True


@contextmanager
def database(folder: Path, *, check: bool = False) -> Iterator[sqlite3.Connection]:
    """The state database of a folder, made where there is none; `check` reads all of it for damage first and tidies the folder.

    Statements outside `transaction` take effect one by one.  Raises DaemonError for a file that is empty, damaged, foreign or
    of a newer version, and for a folder on which SQLite cannot work.
    """
    prepare_folder(folder)
    path = folder / FILE_NAME
    with named_failures(path):
        if not os.path.lexists(path):
            _make(path)
        _check_file(path)
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    try:
        with named_failures(path):
            _open(connection, path, check=check)
            if check:
                _remove_unfinished(path)
        yield connection
    finally:
        connection.close()


def _make(path: Path) -> None:
    """A database without jobs, for its owner alone.

    It is made whole beside its place and then linked there, so that nobody ever sees one without its tables, however long the process that
    makes it is held up; where another process was faster, that one's stays.
    """
    descriptor, name = tempfile.mkstemp(prefix=f"{path.name}.", suffix=NEW_SUFFIX, dir=path.parent)
    beside = Path(name)
    try:
        os.close(descriptor)
        connection = sqlite3.connect(beside, isolation_level=None)
        try:
            _configure(connection, path)
            with transaction(connection):
                for statement in TABLES.split(";\n"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        finally:
            connection.close()  # the last one: its write-ahead log is in the file then, and on disk
        with suppress(FileExistsError, FileNotFoundError):  # not found: another was faster, and took this one for left
            os.link(beside, path)
        _sync_folder(path.parent)
    finally:
        for ending in ("", "-wal", "-shm", "-journal"):
            Path(f"{beside}{ending}").unlink(missing_ok=True)


def _remove_unfinished(path: Path) -> None:
    """Remove what processes that were killed while they made a database have left; there is one now."""
    for left in path.parent.glob(f"{path.name}.*{NEW_SUFFIX}*"):
        with suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > UNFINISHED_S:
                left.unlink()


def _check_file(path: Path) -> None:
    """Raises OSError for a link, and DaemonError for a file without a byte, which SQLite would take for a new database.

    Nobody makes such a file here: it was emptied, by a full disk, a restored backup or a hand.  The file is only looked at: opening and
    closing it beside SQLite would end the locks that this process holds on it, and the next process to leave would take itself for the last
    and remove the write-ahead log under the others (sqlite.org, "how to corrupt", 2.2).
    """
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if status.st_size == 0:
        raise DaemonError(f"{path}: is empty, its jobs are lost; put a copy of it back, or remove it to begin without jobs")


def _open(connection: sqlite3.Connection, path: Path, *, check: bool) -> None:
    connection.row_factory = sqlite3.Row
    connection.text_factory = lambda content: content.decode("utf-8", "replace")  # of a damaged file
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise DaemonError(f"{path}: a SQLite file of another program; name another state folder")
    if version != SCHEMA_VERSION:
        raise DaemonError(f"{path}: version {version} is unknown, this program reads {SCHEMA_VERSION}; name another folder")
    _configure(connection, path)
    if check and (found := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
        raise sqlite3.DatabaseError(" ".join(found.split()))


def _configure(connection: sqlite3.Connection, path: Path) -> None:
    """How a connection works.  Raises DaemonError where the file system cannot do it."""
    if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
        raise DaemonError(f"{path}: the file system allows no write-ahead log (NFS?); name a state folder on a local disk")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA trusted_schema = OFF")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Statements that take effect together or not at all."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:  # an error; some, such as a full disk, have rolled back already
            connection.execute("ROLLBACK")


@contextmanager
def named_failures(path: Path) -> Iterator[None]:
    """SQLite's and the system's errors as one line that names the file and the remedy.  Raises DaemonError."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise DaemonError(f"{path}: {error}; see that the disk has room and no other process keeps the file locked") from error
    except (sqlite3.Error, UnicodeDecodeError) as error:  # of a table's own text
        raise DaemonError(
            f"{path}: damaged ({error}); move it away and start again: datasets and their logs are not in it, `--resume` goes on with them"
        ) from error
    except OSError as error:
        raise DaemonError(f"{path}: cannot be opened ({error.strerror}); name another state folder") from error

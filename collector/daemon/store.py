"""The state folder: a database of the queue and its state, shared by daemon, submit, status and stop, and the locks beside it.

One SQLite file; its tables have the columns of the classes in `jobs`.  Locks end with their process: one daemon a state folder, one worker
a board, which a worker keeps when its daemon dies.
"""

import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar

from collector.daemon.jobs import AT_ONCE, CANCELLED, OPEN_STATES, QUEUED, RUNNING, STATES, Board, Daemon, Job, Overview
from collector.devices.file_lock import locked_file
from collector.errors import DaemonError
from estimator.vocabulary.reader import read

FILE_NAME: Final = "state.sqlite"
FORMAT: Final = 0x57415405
"""SQLite's application id: "WAT", and the version of the tables."""

Cells = dict[str, str | float | None]
"""A row of a table by its columns, or a part of one."""

Table = TypeVar("Table", Job, Board, Daemon)


def prepare_folder(folder: Path, *, own: bool = False) -> None:
    """Makes a state folder that only its owner and root may enter.

    Raises DaemonError if it cannot be made, others may write to it, or it is another user's, which root accepts without `own`.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise DaemonError(f"{folder}: no state folder can be made there ({error.strerror}); name another as state_folder") from error
    if status.st_uid != os.geteuid() and (own or os.geteuid() != 0):
        raise DaemonError(f"{folder}: belongs to another user; run the command as that user, or name a state folder of your own")
    if status.st_mode & 0o022:
        raise DaemonError(f"{folder}: others may write there and could queue jobs in your name; chmod go-w it first")


def has_database(folder: Path) -> bool:
    """Whether a folder's state database exists.  Raises DaemonError if this user may not look."""
    try:
        (folder / FILE_NAME).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        remedy = "only its owner and root enter it: run the command as the daemon's user"
        raise DaemonError(f"{folder}: cannot be entered ({error.strerror}); {remedy}") from error
    return True


@contextmanager
def open_store(folder: Path, *, check: bool = False) -> Iterator["Store"]:
    """The state of a folder, made if missing; `check` reads all of it for damage first.

    Raises DaemonError for a file that is damaged, foreign or of another version, and for a folder on which SQLite cannot work.
    """
    prepare_folder(folder)
    path = folder / FILE_NAME
    with _failures(path):
        connection = sqlite3.connect(path, isolation_level=None)
    try:
        with _failures(path):
            _open(connection, path, check=check)
        yield Store(connection, folder)
    finally:
        connection.close()


def _open(connection: sqlite3.Connection, path: Path, *, check: bool) -> None:
    connection.row_factory = sqlite3.Row
    connection.text_factory = lambda content: content.decode("utf-8", "replace")  # of a damaged file
    if not _format(connection):
        with _alone(path.parent):  # several processes may find no database at the same time
            if not _format(connection):
                _make(connection, path)
    if _format(connection) != FORMAT:
        raise DaemonError(f"{path}: of another program or release; name another state folder")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA trusted_schema = OFF")
    if check and (fault := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
        raise sqlite3.DatabaseError(" ".join(fault.split()))


def _format(connection: sqlite3.Connection) -> int:
    """The number of program and tables; 0 in a new file."""
    return int(connection.execute("PRAGMA application_id").fetchone()[0])


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Admits one process at a time into the block."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _make(connection: sqlite3.Connection, path: Path) -> None:
    """Makes tables in an empty file.  Raises DaemonError for a file with other tables."""
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise DaemonError(f"{path}: of another program; name another state folder")
    path.chmod(0o600)
    if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
        raise DaemonError(f"{path}: the file system allows no write-ahead log (NFS?); name a state folder on a local disk")
    with _transaction(connection):
        for kind in (Job, Board, Daemon):
            names = [one.name for one in fields(kind)]
            columns = [f"{name} INTEGER PRIMARY KEY AUTOINCREMENT" if name == "id" else name for name in names]
            connection.execute(f"CREATE TABLE {kind.__name__.lower()} ({', '.join(columns)})")
        connection.execute(f"PRAGMA application_id = {FORMAT}")


@contextmanager
def _transaction(connection: sqlite3.Connection, how: str = "IMMEDIATE") -> Iterator[None]:
    """Runs statements that take effect together or not at all."""
    connection.execute(f"BEGIN {how}")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:  # after an error; some, such as a full disk, have rolled back already
            connection.execute("ROLLBACK")


@contextmanager
def _failures(path: Path) -> Iterator[None]:
    """Converts SQLite's and the system's errors to one line that names the file and the remedy.  Raises DaemonError."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise DaemonError(f"{path}: {error}; see that the disk has room and no other process keeps the file locked") from error
    except (sqlite3.Error, ValueError, TypeError) as error:  # of the file, and of cells that no command here writes
        raise DaemonError(
            f"{path}: damaged ({error}); move it away and start again: datasets and their logs are not in it, `--resume` goes on with them"
        ) from error
    except OSError as error:
        raise DaemonError(f"{path}: cannot be opened ({error.strerror}); name another state folder") from error


class Store:
    """The state database, open; made by `open_store`.  Every method raises DaemonError if the file cannot be used."""

    def __init__(self, connection: sqlite3.Connection, folder: Path) -> None:
        self._connection = connection
        self._path = folder / FILE_NAME
        self.folder = folder

    def submit(self, job: Job) -> int:
        """Queues a job and returns its number.  Raises DaemonError if another open job writes to the same file."""
        with self._writing():
            other = self._all(Job, "out = ? AND state IN (?, ?)", job.out, *OPEN_STATES)
            if other and not job.shared:
                raise DaemonError(f"{job.out}: job {other[0].id} writes there; wait for it, or name another --out")
            return self._insert("job", {**_columns(job), "id": None, "submitted_unix_s": time.time()})

    def job(self, number: int) -> Job:
        """A job.  Raises DaemonError for an unknown number."""
        found = self._all(Job, "id = ?", number)
        if not found:
            raise DaemonError(f"there is no job {number}; `collect status` lists them")
        return found[0]

    def next_job(self, board: str) -> Job | None:
        """The job that is due on a board; None without one."""
        order = "state = ? AND board = ? AND not_before_unix_s <= ? ORDER BY priority DESC, id LIMIT 1"
        due = self._all(Job, order, QUEUED, board, time.time())
        return due[0] if due else None

    def running_jobs(self, board: str) -> list[Job]:
        """Running jobs of a board, oldest first."""
        return self._all(Job, "state = ? AND board = ? ORDER BY id", RUNNING, board)

    def begin(self, number: int) -> bool:
        """Takes a job out of the queue; False if it was cancelled meanwhile."""
        with self._writing():
            job = self.job(number)
            if job.state != QUEUED:
                return False
            self._set(
                job.id, state=RUNNING, phase="starting", attempts=job.attempts + 1,
                cause="", message="", started_unix_s=job.started_unix_s or time.time(),
            )  # fmt: skip
            return True

    def record(self, number: int, board: str, job: Cells, figures: Cells) -> None:
        """Records figures of a running job and of its board (columns of the tables by name) together."""
        with self._writing():
            self._set(number, **job)
            self._update("board", "board", board, figures)

    def requeue(self, number: int, cause: str, message: str, not_before_unix_s: float, *, forget_attempt: bool) -> None:
        """Queues a job again, to continue later."""
        attempts = max(0, self.job(number).attempts - forget_attempt)
        self._leave(number, QUEUED, cause, message, not_before_unix_s=not_before_unix_s, attempts=attempts)

    def end(self, number: int, state: str, exit_status: int | None, cause: str, message: str) -> None:
        """Records a job's end."""
        self._leave(number, state, cause, message, exit_status=exit_status, ended_unix_s=time.time())

    def _leave(self, number: int, state: str, cause: str, message: str, **more: float | None) -> None:
        with self._writing():
            self._set(number, state=state, cause=cause, message=message, phase="", eta_s=None, pid=0, **more)

    def ask_stop(self, number: int) -> Job:
        """Cancels a queued job, requests a running one to stop (a second time: at once); returns the job before the change.

        Raises DaemonError for an unknown number.
        """
        with self._writing():
            job = self.job(number)
            if job.state == QUEUED:
                self._set(number, state=CANCELLED, cause="stopped", message="stopped before it ran", ended_unix_s=time.time())
            elif job.state == RUNNING:
                self._set(number, stop=min(AT_ONCE, job.stop + 1))
            return job

    def daemon_started(self, pid: int, version: str, listen: str, boards: Sequence[Board]) -> None:
        """Records that a daemon has started, with its boards."""
        now = time.time()
        with self._writing():
            self._replace("board", boards)
            self._replace("daemon", [Daemon(pid=pid, version=version, started_unix_s=now, beat_unix_s=now, listen=listen)])

    def daemon_beats(self, *, draining: bool) -> None:
        """Records that the daemon is alive."""
        with self._writing():
            self._update("daemon", "1", 1, {"beat_unix_s": time.time(), "draining": draining})

    def ask_daemon_stop(self) -> int:
        """Requests the daemon to drain and end; a second time: without waiting for kernels.  Returns the request, AFTER_ROW or AT_ONCE."""
        with self._writing():
            how = min(AT_ONCE, self.daemon_stop() + 1)
            self._update("daemon", "1", 1, {"stop": how})
            return how

    def daemon_stop(self) -> int:
        """The requested end of the daemon: 0, AFTER_ROW or AT_ONCE."""
        return max((daemon.stop for daemon in self._all(Daemon)), default=0)

    def overview(self, limit: int = 200) -> Overview:
        """The whole state at one moment; with the open jobs the newest `limit` (-1: all)."""
        with _failures(self._path), _transaction(self._connection, "DEFERRED"):
            newest = "state IN (?, ?) OR id IN (SELECT id FROM job ORDER BY id DESC LIMIT ?) ORDER BY id DESC"
            counts = dict(self._connection.execute("SELECT state, count(*) FROM job GROUP BY state").fetchall())
            return Overview(
                daemon=next(iter(self._all(Daemon)), Daemon()),
                running=daemon_runs(self.folder),
                boards=tuple(sorted(self._all(Board), key=lambda board: board.board)),
                jobs=tuple(self._all(Job, newest, *OPEN_STATES, limit)),
                counts={state: counts.get(state, 0) for state in STATES},
            )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with _failures(self._path), _transaction(self._connection):
            yield

    def _all(self, kind: type[Table], where: str = "1", *values: Any) -> list[Table]:
        with _failures(self._path):
            rows = self._connection.execute(f"SELECT * FROM {kind.__name__.lower()} WHERE {where}", values).fetchall()
            return [_struct(dict(row), kind) for row in rows]

    def _set(self, number: int, **values: Any) -> None:
        self._update("job", "id", number, values)

    def _update(self, table: str, key: str, which: int | str, values: Cells) -> None:
        if values:
            columns = ", ".join(f"{name} = ?" for name in values)
            self._connection.execute(f"UPDATE {table} SET {columns} WHERE {key} = ?", (*values.values(), which))

    def _replace(self, table: str, rows: Sequence[Board | Daemon]) -> None:
        self._connection.execute(f"DELETE FROM {table}")
        for row in rows:
            self._insert(table, _columns(row))

    def _insert(self, table: str, values: Cells) -> int:
        marks = ", ".join("?" for _ in values)
        return int(self._connection.execute(f"INSERT INTO {table} VALUES ({marks})", tuple(values.values())).lastrowid or 0)


def _columns(row: Job | Board | Daemon) -> Cells:
    """A row as cells: a list as JSON."""
    return {name: json.dumps(value) if isinstance(value, tuple) else value for name, value in asdict(row).items()}


def _struct(cells: Cells, kind: type[Table]) -> Table:
    """A table's object from its cells.  Raises ValueError for cells that are not of the row's types."""
    if kind is Job:
        cells["arguments"] = json.loads(str(cells["arguments"]))
    return read(kind, cells | {one.name: bool(cells[one.name]) for one in fields(kind) if one.type is bool})


LOCK_NAME: Final = "daemon.lock"
"""File of the daemon's lock in a state folder."""


@contextmanager
def daemon_lock(folder: Path) -> Iterator[None]:
    """The right to be the daemon of a state folder.  Raises DaemonError if it already has one."""
    deadline = time.monotonic() + 1.0
    while (descriptor := locked(folder / LOCK_NAME)) is None:
        if time.monotonic() > deadline:
            raise DaemonError(f"{folder}: another daemon runs there; `collect status` shows it, `collect stop --daemon` ends it")
        time.sleep(0.02)
    try:
        yield
    finally:
        os.close(descriptor)


def daemon_runs(folder: Path) -> bool:
    """Whether a daemon lives in a state folder.  Processes that check this share the lock, and do not mistake each other for a daemon."""
    path = folder / LOCK_NAME
    if not path.exists():
        return False
    descriptor = locked(path, fcntl.LOCK_SH)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is None


def locked(path: Path, how: int = fcntl.LOCK_EX) -> int | None:
    """A descriptor that holds a file's lock until its last copy is closed; None if another process holds it.  Raises DaemonError.

    `how`: alone, or with others (LOCK_SH).
    """
    try:
        return locked_file(path, how)
    except OSError as error:
        remedy = "the state folder must belong to the daemon's user and lie on a local disk"
        raise DaemonError(f"{path}: cannot be locked ({error.strerror}); {remedy}") from error


def worker_lock_path(folder: Path, board: str) -> Path:
    """The lock of the worker on a board."""
    return folder / f"worker-{sha256(board.encode()).hexdigest()[:16]}.lock"

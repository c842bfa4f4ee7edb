"""The queue and what is known of it: everything that daemon, submit, status and stop say to each other."""

import math
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from collector.daemon.jobs import (
    AFTER_ROW,
    CANCELLED,
    DONE,
    FAILED,
    OPEN_STATES,
    QUEUED,
    RUNNING,
    STATES,
    BoardState,
    DaemonState,
    Job,
    JobRequest,
    Overview,
)
from collector.daemon.locks import daemon_runs
from collector.daemon.outputs import shared
from collector.daemon.schema import COLUMN_KINDS, FILE_NAME, database, named_failures, transaction
from collector.errors import DaemonError

SEPARATOR: Final = "\x1f"
"""Between arguments: no argument has this character, which the submitting command refuses."""

SHOWN_JOBS: Final = 200
"""Jobs in an overview at the most, the newest."""


class Store:
    """The state database, open; made by `open_store`.  Every method raises DaemonError where the file cannot be used."""

    def __init__(self, connection: sqlite3.Connection, folder: Path) -> None:
        self._connection = connection
        self._path = folder / FILE_NAME
        self.folder = folder

    def submit(self, request: JobRequest) -> int:
        """Queue a job; its number.  Raises DaemonError where another open job writes to the same file."""
        with self._writing():
            other = self._one(f"SELECT id FROM job WHERE out = ? AND state IN ({_marks(OPEN_STATES)})", request.out, *OPEN_STATES)
            if other is not None and not shared(request.out):
                raise DaemonError(f"{request.out}: job {other['id']} writes there; wait for it, or name another --out")
            cursor = self._connection.execute(
                "INSERT INTO job (state, board, gpu_word, campaign, title, arguments, out, budget_s, fresh, priority, submitted_by,"
                " submitted_unix_s) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    QUEUED, request.board, request.gpu_word, request.campaign, request.title, SEPARATOR.join(request.arguments),
                    request.out, _finite(request.budget_s), request.fresh, request.priority, request.submitted_by, time.time(),
                ),
            )  # fmt: skip
            return int(cursor.lastrowid or 0)

    def job(self, number: int) -> Job:
        """A job.  Raises DaemonError for a number that none has."""
        row = self._read("SELECT * FROM job WHERE id = ?", number)
        if not row:
            raise DaemonError(f"there is no job {number}; `collect status` lists them")
        return _job(row[0])

    def next_job(self, board: str) -> Job | None:
        """The job that is due on a board; None where none is."""
        rows = self._read(
            "SELECT * FROM job WHERE state = ? AND board = ? AND not_before_unix_s <= ? ORDER BY priority DESC, id LIMIT 1",
            QUEUED, board, time.time(),
        )  # fmt: skip
        return _job(rows[0]) if rows else None

    def running_on(self, board: str) -> list[Job]:
        """Jobs of a board that are said to run; where no worker does, those that a daemon's death interrupted."""
        return [_job(row) for row in self._read("SELECT * FROM job WHERE state = ? AND board = ?", RUNNING, board)]

    def begin(self, number: int, before: str) -> None:
        """A job's worker is about to be started; `before` tells what lay at its output, and only the first one counts."""
        with self._writing():
            self._connection.execute(
                "UPDATE job SET state = ?, phase = 'starting', before = coalesce(before, ?), attempts = attempts + 1, cause = '',"
                " message = '', eta_s = NULL,"
                " started_unix_s = coalesce(started_unix_s, ?) WHERE id = ?",
                (RUNNING, before, time.time(), number),
            )

    def record(self, number: int, board: str, job: dict[str, Any], figures: dict[str, Any], counts: dict[str, float]) -> None:
        """Figures of a running job and of its board (columns of the tables by name), and additions to counters, together."""
        with self._writing():
            if job:
                self._set("job", "id", number, job)
            if figures:
                self._set("board", "board", board, figures)
            for name, by in counts.items():
                self._connection.execute(
                    "INSERT INTO counter VALUES (?, ?, ?) ON CONFLICT (name, board) DO UPDATE SET value = value + excluded.value",
                    (name, board, by),
                )

    def requeue(self, number: int, cause: str, message: str, not_before_unix_s: float, *, forget_attempt: bool) -> None:
        """A job that will go on later."""
        with self._writing():
            self._connection.execute(
                "UPDATE job SET state = ?, phase = '', cause = ?, message = ?, not_before_unix_s = ?, eta_s = NULL, pid = 0,"
                " attempts = max(0, attempts - ?) WHERE id = ?",
                (QUEUED, cause, message, not_before_unix_s, int(forget_attempt), number),
            )

    def end(self, number: int, state: str, exit_status: int | None, cause: str, message: str) -> None:
        """A job's end."""
        with self._writing():
            self._connection.execute(
                "UPDATE job SET state = ?, phase = '', exit_status = ?, cause = ?, message = ?, ended_unix_s = ?, eta_s = NULL, pid = 0"
                " WHERE id = ?",
                (state, exit_status, cause, message, time.time(), number),
            )

    def ask_stop(self, number: int) -> Job:
        """Cancel a queued job, ask a running one to stop (a second time: at once); the job as it was before.

        Raises DaemonError for a number that none has.
        """
        with self._writing():
            row = self._one("SELECT * FROM job WHERE id = ?", number)
            if row is None:
                raise DaemonError(f"there is no job {number}; `collect status` lists them")
            if row["state"] == QUEUED:
                self._connection.execute(
                    "UPDATE job SET state = ?, cause = 'stopped', message = 'stopped before it ran', ended_unix_s = ? WHERE id = ?",
                    (CANCELLED, time.time(), number),
                )
            elif row["state"] == RUNNING:
                self._connection.execute("UPDATE job SET stop = min(2, stop + ?) WHERE id = ?", (AFTER_ROW, number))
            return _job(row)

    def open_jobs(self) -> list[Job]:
        """Jobs that are queued or running, oldest first."""
        return [_job(row) for row in self._read(f"SELECT * FROM job WHERE state IN ({_marks(OPEN_STATES)}) ORDER BY id", *OPEN_STATES)]

    def set_boards(self, boards: dict[str, tuple[str, str]]) -> None:
        """The daemon's boards: key to word and name."""
        with self._writing():
            self._connection.execute("DELETE FROM board")
            self._connection.executemany(
                "INSERT INTO board (board, gpu_word, name) VALUES (?, ?, ?)", [(key, *value) for key, value in boards.items()]
            )

    def daemon_started(self, pid: int, version: str, listen: str) -> None:
        """A daemon has begun its work."""
        now = time.time()
        with self._writing():
            self._connection.execute(
                "INSERT OR REPLACE INTO daemon (one, pid, version, started_unix_s, beat_unix_s, listen) VALUES (1, ?, ?, ?, ?, ?)",
                (pid, version, now, now, listen),
            )

    def daemon_beats(self, *, draining: bool) -> None:
        """The daemon is alive."""
        with self._writing():
            self._connection.execute("UPDATE daemon SET beat_unix_s = ?, draining = ?", (time.time(), draining))

    def ask_daemon_stop(self) -> int:
        """Ask the daemon to drain and end; a second time: without waiting for kernels.  AFTER_ROW or AT_ONCE, as it is asked now."""
        with self._writing():
            self._connection.execute("UPDATE daemon SET stop = min(2, stop + 1)")
        return self.daemon_stop()

    def daemon_stop(self) -> int:
        """0, AFTER_ROW or AT_ONCE: how the daemon has been asked to end."""
        rows = self._read("SELECT stop FROM daemon")
        return int(rows[0]["stop"]) if rows else 0

    def overview(self, limit: int = SHOWN_JOBS) -> Overview:
        """Everything at once, of one moment; with the open jobs the newest `limit`."""
        with self._reading():
            jobs = self._connection.execute(
                f"SELECT * FROM job WHERE state IN ({_marks(OPEN_STATES)})"
                " OR id IN (SELECT id FROM job ORDER BY id DESC LIMIT ?) ORDER BY id DESC",
                (*OPEN_STATES, limit),
            ).fetchall()
            counts = self._connection.execute("SELECT state, count(*) AS n FROM job GROUP BY state").fetchall()
            boards = self._connection.execute("SELECT * FROM board ORDER BY board").fetchall()
            counters = self._connection.execute("SELECT * FROM counter ORDER BY name, board").fetchall()
            daemon = self._connection.execute("SELECT * FROM daemon").fetchone()
        found = {row["state"]: row["n"] for row in counts}
        return Overview(
            daemon=_daemon(daemon, daemon_runs(self.folder)),
            boards=tuple(_board(row) for row in boards),
            jobs=tuple(_job(row) for row in jobs),
            counts={state: found.get(state, 0) for state in STATES},
            counters={(row["name"], row["board"]): row["value"] for row in counters},
        )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with named_failures(self._path), transaction(self._connection):
            yield

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with named_failures(self._path):
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                if self._connection.in_transaction:  # some errors have rolled back already
                    self._connection.execute("ROLLBACK")

    def _set(self, table: str, key: str, which: int | str, values: dict[str, Any]) -> None:
        columns = ", ".join(f"{name} = ?" for name in values)
        self._connection.execute(f"UPDATE {table} SET {columns} WHERE {key} = ?", (*map(_finite, values.values()), which))

    def _one(self, statement: str, *values: Any) -> sqlite3.Row | None:
        row: sqlite3.Row | None = self._connection.execute(statement, values).fetchone()
        return row

    def _read(self, statement: str, *values: Any) -> list[sqlite3.Row]:
        with named_failures(self._path):
            return self._connection.execute(statement, values).fetchall()


@contextmanager
def open_store(folder: Path, *, check: bool = False) -> Iterator[Store]:
    """The state of a folder, made where there is none; `check` reads all of it for damage first.  Raises DaemonError."""
    with database(folder, check=check) as connection:
        yield Store(connection, folder)


def empty_overview() -> Overview:
    """What is known where nothing has ever been queued."""
    return Overview(daemon=_daemon(None, False), boards=(), jobs=(), counts=dict.fromkeys(STATES, 0), counters={})


def final(job: Job) -> bool:
    """Whether a job has ended."""
    return job.state in (DONE, FAILED, CANCELLED)


def _marks(values: tuple[str, ...]) -> str:
    return ", ".join("?" for _ in values)


def _finite(value: Any) -> Any:
    """A value as SQLite keeps it: null for a number that is not known."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: float | None, unknown: float = math.nan) -> float:
    return unknown if value is None else value


def _check_types(row: sqlite3.Row, table: str) -> None:
    """Raises DaemonError for a cell of another type than its column's, which SQLite keeps but no command here writes."""
    for name, value in zip(row.keys(), row, strict=True):
        if value is not None and not isinstance(value, COLUMN_KINDS[f"{table}.{name}"]):
            raise DaemonError(f"{table}.{name} = {str(value)[:40]!r}: the queue was edited or is damaged; move it away and start again")


def _job(row: sqlite3.Row) -> Job:
    _check_types(row, "job")
    return Job(
        id=row["id"],
        state=row["state"],
        request=JobRequest(
            board=row["board"],
            gpu_word=row["gpu_word"],
            campaign=row["campaign"],
            title=row["title"],
            arguments=tuple(row["arguments"].split(SEPARATOR)) if row["arguments"] else (),
            out=row["out"],
            budget_s=_number(row["budget_s"], math.inf),
            fresh=bool(row["fresh"]),
            priority=row["priority"],
            submitted_by=row["submitted_by"],
        ),
        phase=row["phase"],
        done=row["done"],
        total=row["total"],
        rows=row["rows"],
        refused=row["refused"],
        flagged=row["flagged"],
        used_s=row["used_s"],
        attempts=row["attempts"],
        cause=row["cause"],
        message=row["message"],
        exit_status=row["exit_status"],
        stop=row["stop"],
        submitted_unix_s=row["submitted_unix_s"],
        started_unix_s=_number(row["started_unix_s"]),
        ended_unix_s=_number(row["ended_unix_s"]),
        not_before_unix_s=row["not_before_unix_s"],
        eta_s=_number(row["eta_s"]),
        pid=row["pid"],
        before=row["before"],
    )


def _board(row: sqlite3.Row) -> BoardState:
    _check_types(row, "board")
    return BoardState(
        board=row["board"],
        gpu_word=row["gpu_word"],
        name=row["name"],
        job=row["job"],
        sm_clock_mhz=_number(row["sm_clock_mhz"]),
        power_w=_number(row["power_w"]),
        temperature_c=_number(row["temperature_c"]),
        updated_unix_s=_number(row["updated_unix_s"]),
    )


def _daemon(row: sqlite3.Row | None, running: bool) -> DaemonState:
    if row is None:
        unknown = math.nan
        return DaemonState(running=running, pid=0, version="", started_unix_s=unknown, beat_unix_s=unknown, listen="", draining=False)
    _check_types(row, "daemon")
    return DaemonState(
        running=running,
        pid=row["pid"],
        version=row["version"],
        started_unix_s=row["started_unix_s"],
        beat_unix_s=row["beat_unix_s"],
        listen=row["listen"],
        draining=bool(row["draining"]),
    )

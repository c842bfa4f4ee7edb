"""One board's lane: takes the next job of its board, runs it in a worker, and decides what its end means."""

import math
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from collector.boards import BoardName
from collector.daemon.jobs import (
    AT_ONCE,
    CANCELLED,
    DONE,
    FAILED,
    LONGEST_RETRY_S,
    TRANSIENT_CAUSES,
    WAITING_CAUSES,
    Job,
    time_text,
)
from collector.daemon.locks import lock_owner, locked, signal_holder, worker_lock_path
from collector.daemon.log_file import LogFile, job_log_path
from collector.daemon.messages import MEASURING
from collector.daemon.outputs import traces_at
from collector.daemon.settings import DaemonSettings
from collector.daemon.store import Store
from collector.daemon.worker import Message, Worker, start_worker
from collector.errors import DaemonError
from estimator.command_line import DONE_WITH_WARNINGS
from estimator.entry import INTERRUPTED

STARTUP_S: Final = 300.0
"""A worker that has not planned its campaign yet may be silent this long: modules are loaded, kernels assembled [s]."""
HUNG_KILL_S: Final = 2.0
"""Patience for a hung worker that was told to end [s]."""
LEAST_BUDGET_S: Final = 0.001
"""Budget of a job that has used up its own: its rows are made a dataset, and no kernel is begun [s]."""
SUCCESSES: Final = (0, DONE_WITH_WARNINGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What the worker has said so far of the job on the lane.  Times are of the monotonic clock [s]."""

    used_before_s: float
    rows: int
    flagged: int
    silence_s: float = 0.0
    planned: bool = False
    measuring_from: int | None = None
    measuring_since_s: float = math.nan
    cause: str = ""
    last_text: str = ""


class Lane:
    """The jobs of one board, one at a time.

    `crashed` is called where a worker was killed or died, so that clocks can be looked after.
    """

    def __init__(self, store: Store, settings: DaemonSettings, board: BoardName, log: LogFile, crashed: Callable[[], None]) -> None:
        self._store = store
        self._settings = settings
        self.board = board
        self._log = log
        self._crashed = crashed
        self._job: Job | None = None
        self._job_log = log
        self._worker: Worker | None = None
        self._inbox: deque[Message] = deque()
        self._figures = Figures(used_before_s=0.0, rows=0, flagged=0)
        self._hung = False
        self._leftover_since_s: float | None = None

    @property
    def busy(self) -> bool:
        """Whether a worker of this daemon runs."""
        return self._worker is not None

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What becomes readable when the worker speaks."""
        return self._worker.descriptors if self._worker is not None else ()

    def tick(self, draining: int) -> None:
        """Take note of what has happened, and act.  `draining`: 0, or how the daemon ends.  Raises DaemonError."""
        if self._worker is None or self._job is None:
            if not draining:
                self._start_next()
            return
        ended = self._worker.ended()
        self._inbox.extend(self._worker.messages())
        while self._inbox:
            self._heard(self._inbox[0])
            self._inbox.popleft()
        if ended is not None:
            self._finish(self._job, self._worker, ended, draining)
            return
        stop = self._store.job(self._job.id).stop
        if how := max(stop, draining):
            self._worker.stop(how)
        self._check_silence(self._worker)

    def abandon(self, reason: str) -> None:
        """End the worker and fail its job: the daemon itself does not know how to go on with it."""
        if self._worker is None or self._job is None:
            return
        self._worker.close()
        job = self._job
        self._forget()
        self._store.end(job.id, FAILED, None, "daemon_error", reason)

    def close(self) -> None:
        """Kill a worker that still runs."""
        if self._worker is not None:
            self._worker.close()

    def _start_next(self) -> None:
        for lost in self._store.running_on(self.board.key):
            self._store.requeue(lost.id, "drained", "its daemon ended; goes on", 0.0, forget_attempt=True)
        job = self._store.next_job(self.board.key)
        if job is None:
            return
        path = worker_lock_path(self._store.folder, self.board.key)
        lock = locked(path)
        if lock is None:
            self._await_leftover(path)
            return
        self._leftover_since_s = None
        try:
            self._start(job, lock)
        finally:
            os.close(lock)  # the worker has its own

    def _start(self, job: Job, lock: int) -> None:
        """Start a worker that holds the lock while it lives."""
        before = traces_at(Path(job.request.out)) if job.request.fresh else ""
        self._store.begin(job.id, before)
        try:
            worker = start_worker(self._arguments(job, before), keep=(lock,))
        except DaemonError as error:
            self._store.requeue(job.id, "worker_died", str(error), time.time() + self._settings.retry_s, forget_attempt=False)
            raise
        self._job, self._worker, self._hung = job, worker, False
        self._inbox.clear()
        self._job_log = LogFile(job_log_path(self._store.folder, job.id))
        self._figures = Figures(used_before_s=job.used_s, rows=job.rows, flagged=job.flagged)
        with suppress(OSError):  # a full disk; the number only helps to find a worker that outlives its daemon
            os.ftruncate(lock, 0)
            os.write(lock, str(worker.pid).encode())
        self._tell(f"begun on {self.board.name} ({self.board.key}), worker {worker.pid}: {job.request.title} into {job.request.out}")
        self._store.record(job.id, self.board.key, {"pid": worker.pid}, {"job": job.id}, {"workers_started": 1.0})

    def _await_leftover(self, path: Path) -> None:
        """A worker of a daemon that died ends by itself after its kernel; one that does not is killed."""
        now = time.monotonic()
        if self._leftover_since_s is None:
            self._leftover_since_s = now
            self._log.write(f"{self.board.key}: the worker of the last daemon (process {lock_owner(path)}) finishes its kernel first")
        elif now - self._leftover_since_s > self._settings.hang_s + self._settings.drain_s:
            self._leftover_since_s = now
            pid = lock_owner(path)
            if pid > 1 and signal_holder(path, pid, signal.SIGKILL):
                self._log.write(f"{self.board.key}: process {pid} does not end and is killed")
                self._crashed()
            else:
                self._log.write(f"{self.board.key}: a process that is not known keeps {path}; `fuser {path}` names it")

    def _arguments(self, job: Job, before: str) -> list[str]:
        request = job.request
        replace_all = request.fresh and before == (before if job.before is None else job.before)
        words = ["--worker", "--json", "--gpu", request.gpu_word, "--campaign", request.campaign, "--out", request.out]
        if math.isfinite(request.budget_s):
            words += ["--budget", f"{max(request.budget_s - job.used_s, LEAST_BUDGET_S):.3f}s"]
            words += ["--planned-budget", f"{request.budget_s:.3f}s"]  # what is measured was chosen for the whole of it
        return [*words, *request.arguments, "--fresh" if replace_all else "--resume"]

    def _heard(self, message: Message) -> None:
        """Take a message in; nothing is changed where the store does not take it, so that it can be taken in again."""
        job, figures, document = self._job, self._figures, message.document
        if job is None:
            return
        if message.kind == "planned":
            self._store.record(job.id, self.board.key, {"total": document["total"], "phase": "planned"}, {}, {})
            self._figures = replace(figures, planned=True, silence_s=float(document["silence_s"]))
        elif message.kind == "progress":
            self._progressed(job, document)
        elif message.kind == "error":
            self._figures = replace(figures, cause=str(document["cause"]))
        elif message.text:
            self._figures = replace(figures, last_text=message.text)
            self._job_log.write(message.text)

    def _progressed(self, job: Job, document: Any) -> None:
        figures, now_s = self._figures, time.monotonic()
        phase, done, total = str(document["phase"]), int(document["done"]), int(document["total"])
        row = document.get("row")
        columns: dict[str, Any] = {"phase": phase, "used_s": figures.used_before_s + float(document["elapsed_s"]), "total": total}
        board: dict[str, Any] = {"updated_unix_s": time.time()}
        counts: dict[str, float] = {}
        if phase == MEASURING:
            if figures.measuring_from is None:  # the rows that were there already
                figures = replace(figures, measuring_from=done, measuring_since_s=now_s, rows=done)
            if row is not None:
                flagged = figures.flagged + bool(row["flags"])
                figures = replace(figures, rows=figures.rows + 1, flagged=flagged)
                columns |= {"flagged": flagged, "attempts": 1}
                board |= {name: row.get(key) for name, key in BOARD_FIGURES.items()}
                counts["rows_written"] = 1.0
                if row["flags"]:
                    counts["rows_flagged"] = 1.0
            elif done > figures.rows:
                counts["rows_refused"] = 1.0
            columns |= {
                "done": done,
                "rows": figures.rows,
                "refused": max(0, done - figures.rows),
                "eta_s": _eta_s(figures, done, total, now_s),
            }
        self._store.record(job.id, self.board.key, columns, board, counts)
        self._figures = figures
        self._job_log.write(f"{done}/{total} {row['text']}" if row is not None else f"{done}/{total} {phase}")

    def _check_silence(self, worker: Worker) -> None:
        limit_s = self._settings.hang_s + (self._figures.silence_s if self._figures.planned else STARTUP_S)
        silent_s = time.monotonic() - worker.last_heard_s
        if silent_s > limit_s and not self._hung:
            self._hung = True
            self._tell(f"worker {worker.pid} has said nothing for {silent_s:.0f} s and is ended")
            worker.stop(AT_ONCE, HUNG_KILL_S)

    def _finish(self, job: Job, worker: Worker, status: int, draining: int) -> None:
        """Decide what a worker's end means, write it down, and only then forget the worker."""
        figures = self._figures
        stop = self._store.job(job.id).stop
        counts: dict[str, float] = {}
        if status in SUCCESSES:
            text = _outcome_text(worker.result(), figures)
            self._store.end(job.id, DONE, status, "", text)
            self._tell(f"done: {text}")
        elif stop:
            text = f"stopped on request; {figures.rows} rows are safe, `collect submit … --resume` with the same settings goes on"
            self._store.end(job.id, CANCELLED, INTERRUPTED, "stopped", text)
            self._tell(text)
        elif draining and worker.asked and not self._hung:
            self._store.requeue(job.id, "drained", "stopped with the daemon; goes on when it runs again", 0.0, forget_attempt=True)
            self._tell(f"stopped with the daemon after {figures.rows} rows")
        else:
            self._failed(job, status, counts)
        if status < 0 or self._hung:
            counts["workers_hung" if self._hung else "workers_died"] = 1.0
            if not self.board.simulated:
                self._crashed()
        self._store.record(job.id, self.board.key, {}, {"job": 0}, counts)
        worker.close()
        self._forget()

    def _failed(self, job: Job, status: int, counts: dict[str, float]) -> None:
        """Wait, begin again, or give up: by the name of the cause, and by how often it was tried."""
        cause = self._figures.cause
        if self._hung:
            cause = "worker_hung"
        elif status < 0 or status == INTERRUPTED:
            cause = "worker_died"
        message = WAITING_CAUSES.get(cause) or TRANSIENT_CAUSES.get(cause) or ""
        said = self._figures.last_text.removeprefix("collect: ")
        message = said if said and cause not in ("worker_hung", "worker_died") else message
        attempts = self._store.job(job.id).attempts
        tries_left = self._settings.retries + 1 - attempts
        if cause in WAITING_CAUSES or (cause in TRANSIENT_CAUSES and tries_left > 0):
            rest_s = min(self._settings.retry_s * 2.0 ** max(0, min(attempts, 32) - 1), LONGEST_RETRY_S)
            again_unix_s = time.time() + rest_s
            self._store.requeue(job.id, cause, message, again_unix_s, forget_attempt=False)
            counts["retries"] = 1.0
            self._tell(f"{cause}: {message}; again in {rest_s:g} s, at {time_text(again_unix_s)}")
            return
        tried = f" ({attempts} attempts without a new row)" if cause in TRANSIENT_CAUSES else ""
        text = f"{message or f'the worker ended with status {status}'}{tried}"
        self._store.end(job.id, FAILED, status, cause, text)
        self._tell(f"failed: {text}")

    def _forget(self) -> None:
        self._job, self._worker, self._hung = None, None, False

    def _tell(self, text: str) -> None:
        """Into both logs."""
        self._job_log.write(text)
        if self._job is not None:
            self._log.write(f"job {self._job.id}: {text}")


BOARD_FIGURES: Final = {"sm_clock_mhz": "sm_clock_measured_mhz", "power_w": "power_w", "temperature_c": "temperature_c"}
"""Columns of a board's state and the figures of a row that fill them."""


def _eta_s(figures: Figures, done: int, total: int, now_s: float) -> float:
    """Time to the end at the pace so far; nan before the first kernel [s]."""
    finished = done - (figures.measuring_from or 0)
    return max(0, total - done) * (now_s - figures.measuring_since_s) / finished if finished > 0 else math.nan


def _outcome_text(result: dict[str, Any], figures: Figures) -> str:
    rows, planned = result.get("rows", figures.rows), result.get("rows_planned", figures.rows)
    refused = sum(result.get("rejected", {}).values())
    notes = [f"{rows} rows of {planned} planned"]
    if refused:
        notes.append(f"{refused} kernels could not run")
    if result.get("unusable_rows"):
        notes.append(f"{result['unusable_rows']} rows are unusable")
    if result.get("rows_missing"):
        notes.append(f"the budget ended {result['rows_missing']} rows before the plan did")
    return ", ".join(notes)

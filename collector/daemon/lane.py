"""One board's lane: takes the next job of its board, runs it in a worker, and decides the meaning of its end."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from collector.boards import BoardName
from collector.daemon.jobs import AT_ONCE, CANCELLED, DONE, FAILED, RUNNING, TRANSIENT_CAUSES, WAITING_CAUSES, Job, time_text
from collector.daemon.locks import locked, worker_lock_path
from collector.daemon.log_file import JOB_FOLDER, LogFile
from collector.daemon.settings import DaemonSettings
from collector.daemon.store import Cells, Store
from collector.daemon.worker import MESSAGE_START, Message, Worker
from collector.errors import DaemonError
from estimator.options.command_line import DONE_WITH_WARNINGS, INTERRUPTED


@dataclass(slots=True, kw_only=True)
class Run:
    """A job in its worker, and its rows so far; `silence_s` is the longest time to the next message [s]."""

    job: Job
    worker: Worker
    log: LogFile
    rows: int | None = None
    silence_s: float = 300.0  # until the plan exists: modules are loaded, kernels assembled
    cause: str = ""
    last_text: str = ""
    hung: bool = False


@dataclass(slots=True, kw_only=True)
class Lane:
    """The jobs of one board, one at a time.

    `crashed` is called if a worker of a real board was killed or died, so that clocks can be restored; `wake` is set when it reports.
    """

    store: Store
    settings: DaemonSettings
    board: BoardName
    log: LogFile
    wake: threading.Event
    crashed: Callable[[], None]
    run: Run | None = None

    @property
    def busy(self) -> bool:
        """Whether a worker of this daemon runs."""
        return self.run is not None

    def tick(self, draining: int) -> None:
        """Records the events since the last call, and acts.  `draining`: 0, or the way in which the daemon ends.  Raises DaemonError."""
        run = self.run
        if run is None:
            if not draining:
                self._start_next()
            return
        status = run.worker.ended()
        for message in run.worker.messages():
            self._heard(run, message)
        stop = self.store.job(run.job.id).stop
        if status is not None:
            self._finish(run, status, stop, draining)
            return
        run.worker.stop(max(stop, draining))
        silent_s = run.worker.silent_s
        if silent_s > self.settings.hang_s + run.silence_s and not run.hung:
            run.hung = True
            self._tell(run, f"worker {run.worker.pid} has said nothing for {silent_s:.0f} s and is ended")
            run.worker.stop(AT_ONCE, 2.0)

    def close(self) -> None:
        """Kills a worker that still runs."""
        if self.run is not None:
            self.run.worker.close()

    def _start_next(self) -> None:
        for lost in self.store.jobs(RUNNING, board=self.board.key):
            self.store.requeue(lost.id, "drained", "its daemon ended; goes on", 0.0, forget_attempt=True)
        job = self.store.next_job(self.board.key)
        if job is None:
            return
        lock = locked(worker_lock_path(self.store.folder, self.board.key))
        if lock is None:  # the worker of the last daemon finishes its kernel first
            return
        try:
            self._start(job, lock)
        finally:
            os.close(lock)  # the worker has its own

    def _start(self, job: Job, lock: int) -> None:
        """Starts a worker that holds the lock while it lives."""
        if not self.store.begin(job.id):
            return
        try:
            worker = Worker(_arguments(job), self.wake, keep=(lock,))
        except DaemonError as error:
            self.store.requeue(job.id, "worker_died", str(error), time.time() + self.settings.retry_s, forget_attempt=False)
            raise
        log = LogFile(self.store.folder / JOB_FOLDER / f"job-{job.id}.log")
        run = self.run = Run(job=job, worker=worker, log=log)
        self._tell(run, f"begun on {self.board.name} ({self.board.key}), worker {worker.pid}: {job.title} into {job.out}")
        self.store.record(job.id, self.board.key, {"pid": worker.pid}, {"job": job.id})

    def _heard(self, run: Run, message: Message) -> None:
        """Records a message.  Raises DaemonError, mostly for a full disk: the next message of its kind replaces it."""
        match message.wattprint:
            case "planned":
                run.silence_s = message.silence_s
                self.store.record(run.job.id, self.board.key, {"total": message.total, "phase": "planned"}, {})
            case "progress":
                self._progressed(run, message)
            case "error":
                run.cause = message.cause
            case _:
                run.last_text = message.text
                run.log.write(message.text)

    def _progressed(self, run: Run, told: Message) -> None:
        job: Cells = {"phase": told.phase, "total": told.total, "used_s": run.job.used_s + told.elapsed_s}
        board: Cells = {"updated_unix_s": time.time()}
        if told.rows is not None:
            flagged = run.job.flagged + told.flagged
            job |= {"done": told.done, "rows": told.rows, "refused": told.refused, "flagged": flagged, "eta_s": told.eta_s}
        if run.rows is not None and run.rows != told.rows:
            job |= {"attempts": 1}
            board |= {"sm_clock_mhz": told.sm_clock_mhz, "power_w": told.power_w, "temperature_c": told.temperature_c}
        self.store.record(run.job.id, self.board.key, job, board)
        run.rows = told.rows
        run.log.write(f"{told.done}/{told.total} {told.text}")

    def _finish(self, run: Run, status: int, stop: int, draining: int) -> None:
        """Decides the meaning of a worker's end, records it, and only then forgets the worker."""
        number = run.job.id
        rows = self.store.job(number).rows
        if status in (0, DONE_WITH_WARNINGS):
            text = _outcome_text(run.worker.end(status, "").result, rows)
            self.store.end(number, DONE, status, "", text)
            self._tell(run, f"done: {text}")
        elif stop:
            text = f"stopped on request; {rows} rows are safe, `collect submit … --resume` with the same settings goes on"
            self.store.end(number, CANCELLED, INTERRUPTED, "stopped", text)
            self._tell(run, text)
        elif draining and run.worker.asked and not run.hung:
            self.store.requeue(number, "drained", "stopped with the daemon; goes on when it runs again", 0.0, forget_attempt=True)
            self._tell(run, f"stopped with the daemon after {rows} rows")
        else:
            self._failed(run, status)
        if (status < 0 or run.hung) and not self.board.simulated:
            self.crashed()
        self.store.record(number, self.board.key, {}, {"job": 0})
        run.worker.close()
        self.run = None

    def _failed(self, run: Run, status: int) -> None:
        """Waits, starts again, or gives up, by the name of the cause and the number of attempts."""
        cause = "worker_hung" if run.hung else "worker_died" if status < 0 or status == INTERRUPTED else run.cause
        message = WAITING_CAUSES.get(cause) or TRANSIENT_CAUSES.get(cause) or ""
        said = run.last_text.removeprefix(MESSAGE_START)
        message = said if said and cause not in ("worker_hung", "worker_died") else message
        attempts = self.store.job(run.job.id).attempts
        if cause in WAITING_CAUSES or (cause in TRANSIENT_CAUSES and attempts <= self.settings.retries):
            rest_s = min(self.settings.retry_s * 2.0 ** min(max(0, attempts - 1), 32), 900.0)
            again_unix_s = time.time() + rest_s
            self.store.requeue(run.job.id, cause, message, again_unix_s, forget_attempt=False)
            self._tell(run, f"{cause}: {message}; again in {rest_s:g} s, at {time_text(again_unix_s)}")
            return
        tried = f" ({attempts} attempts without a new row)" if cause in TRANSIENT_CAUSES else ""
        text = f"{message or f'the worker ended with status {status}'}{tried}"
        self.store.end(run.job.id, FAILED, status, cause, text)
        self._tell(run, f"failed: {text}")

    def _tell(self, run: Run, text: str) -> None:
        """Writes a text into both logs."""
        run.log.write(text)
        self.log.write(f"job {run.job.id}: {text}")


def _arguments(job: Job) -> list[str]:
    """The words of `collect`; an existing output is replaced until the job has a row of its own there."""
    words = ["--worker", "--json", "--gpu", job.board, "--campaign", job.campaign, "--out", job.out]
    if job.budget_s is not None:
        words += ["--budget", f"{max(job.budget_s - job.used_s, 0.001):.3f}s"]
        words += ["--planned-budget", f"{job.budget_s:.3f}s"]  # the measured points were chosen for the whole budget
    return [*words, *job.arguments, "--fresh" if job.fresh and not job.rows else "--resume"]


def _outcome_text(result: dict[str, Any], rows: int) -> str:
    text = f"{result.get('rows', rows)} rows of {result.get('rows_planned', rows)} planned"
    missing = result.get("rows_missing")
    return f"{text}, the budget ended {missing} rows before the plan did" if missing else text

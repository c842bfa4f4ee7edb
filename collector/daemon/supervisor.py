"""The daemon: a lane for each board, orders from the state database, an orderly end.

A lane takes the next job of its board, runs it in a worker, and decides the meaning of its end.
"""

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from collector.boards import BoardName, named_boards
from collector.daemon.jobs import AT_ONCE, CANCELLED, DONE, FAILED, TRANSIENT_CAUSES, WAITING_CAUSES, Board, Job, time_text
from collector.daemon.log_file import JOB_FOLDER, LogFile, Notifier
from collector.daemon.server import status_site
from collector.daemon.settings import DaemonSettings
from collector.daemon.store import Cells, Store, daemon_lock, locked, open_store, prepare_folder, worker_lock_path
from collector.daemon.worker import COMMAND, MESSAGE_START, Message, Worker, counted_signals
from collector.errors import DaemonError
from estimator import __version__
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
        for lost in self.store.running_jobs(self.board.key):
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
        self.store.record(number, self.board.key, {}, {"job": 0} | dict.fromkeys(("sm_clock_mhz", "power_w", "temperature_c")))
        run.worker.close()
        self.run = None

    def _failed(self, run: Run, status: int) -> None:
        """Waits, starts again, or gives up, by the name of the cause and the number of attempts."""
        cause = "worker_hung" if run.hung else "worker_died" if status < 0 or status == INTERRUPTED else run.cause
        said = "" if cause in ("worker_hung", "worker_died") else run.last_text.removeprefix(MESSAGE_START)
        message = said or (WAITING_CAUSES | TRANSIENT_CAUSES).get(cause, "")
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


BEAT_S: Final = 5.0
"""Time between two signs of life of the daemon [s]."""
RESTORE_S: Final = 60.0
"""Longest wait for clocks to be given back [s]."""


class Supervisor:
    """Runs the lanes until a request to end; used by `serve` alone."""

    def __init__(self, store: Store, settings: DaemonSettings, log: LogFile, notifier: Notifier) -> None:
        self._store = store
        self._settings = settings
        self._log = log
        self._notifier = notifier
        self.wake = threading.Event()
        self._draining = 0
        self._drain_until_s = float("inf")
        self._next_beat_s = 0.0
        self._trouble, self._quiet_until_s = "", 0.0
        boards = named_boards(settings.gpus)
        self._lanes = [
            Lane(store=store, settings=settings, board=board, log=log, wake=self.wake, crashed=self._want_restore) for board in boards
        ]
        if any(not board.simulated for board in boards):
            self._want_restore()
        self.boards = [Board(board=board.key, name=board.name) for board in boards]

    def run(self, signals: Callable[[], int]) -> None:
        """Runs the loop.  The running jobs are queued again when it ends."""
        self._notifier.send(READY=1)
        try:
            while True:
                self._turn(signals())
                if self._draining and not any(lane.busy for lane in self._lanes):
                    break
                self.wake.wait(0.2)  # time between two reads of new orders from the state database [s]
                self.wake.clear()
        finally:
            for lane in self._lanes:
                lane.close()

    def _turn(self, asked: int) -> None:
        self._take_orders(asked)
        for lane in self._lanes:
            with self._named_trouble():  # mostly a full disk: the worker continues, and so does the lane when there is space
                lane.tick(self._draining)
        self._beat()

    def _take_orders(self, how: int) -> None:
        with self._named_trouble():
            how = max(how, self._store.daemon_stop())
        now_s = time.monotonic()
        if how and not self._draining:
            self._drain_until_s = now_s + self._settings.drain_s
            self._log.write("draining: kernels that run are finished, nothing new is begun")
            patience_us = int((self._settings.drain_s + RESTORE_S) * 1e6)
            self._notifier.send(STOPPING=1, EXTEND_TIMEOUT_USEC=patience_us)
            self._next_beat_s = 0.0
        if now_s > self._drain_until_s:
            how = AT_ONCE
        if how >= AT_ONCE > self._draining:
            self._log.write("ending at once: kernels that run are broken off")
        self._draining = max(self._draining, min(how, AT_ONCE))

    def _beat(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_beat_s:
            return
        watchdog_s = self._notifier.watchdog_s
        self._next_beat_s = now_s + (BEAT_S if watchdog_s is None else min(BEAT_S, watchdog_s / 3.0))
        self._notifier.send(WATCHDOG=1)
        with self._named_trouble():
            self._store.daemon_beats(draining=bool(self._draining))

    def _want_restore(self) -> None:
        """Gives back clocks that a dead process left held: in a child that nothing waits for, since a driver may hang."""
        with suppress(OSError), self._settings.log.open("ab") as log:
            subprocess.Popen([*COMMAND, "clocks", "restore"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    @contextmanager
    def _named_trouble(self) -> Iterator[None]:
        """Logs an error of the store, but the same one once a minute only, and continues the loop."""
        try:
            yield
        except DaemonError as error:
            now_s = time.monotonic()
            if str(error) != self._trouble or now_s > self._quiet_until_s:
                self._trouble, self._quiet_until_s = str(error), now_s + 60.0
                self._log.write(str(error))


def serve(settings: DaemonSettings, say: Callable[[str], None]) -> None:
    """Runs the daemon until a signal or `collect stop --daemon` ends it.

    `say` receives every line of the log.  Raises DaemonError if the state folder is another daemon's or cannot be used,
    or the address is not available, and DeviceError for a missing board.
    """
    folder = settings.folder
    prepare_folder(folder, own=True)
    log = LogFile(settings.log, say)
    notifier = Notifier(os.environ, os.getpid())
    with daemon_lock(folder), open_store(folder, check=True) as store:
        supervisor = Supervisor(store, settings, log, notifier)
        with counted_signals(supervisor.wake) as signals, status_site(folder, settings.address, log.write) as place:
            store.daemon_started(os.getpid(), __version__, place, supervisor.boards)
            where = "; `collect status` tells the address of its page" if place else ""  # a log may have other readers
            log.write(f"daemon {__version__} runs as process {os.getpid()}{where}")
            supervisor.run(signals)
            log.write("daemon has ended")

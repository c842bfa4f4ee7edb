"""The daemon: a lane for each board, orders from the state database, an orderly end."""

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from collector.boards import named_boards
from collector.daemon.jobs import AT_ONCE, Board
from collector.daemon.lane import Lane
from collector.daemon.locks import daemon_lock
from collector.daemon.log_file import LogFile, Notifier
from collector.daemon.server import status_site
from collector.daemon.settings import DaemonSettings
from collector.daemon.store import Store, open_store, prepare_folder
from collector.daemon.worker import COMMAND, counted_signals
from collector.errors import DaemonError
from estimator import __version__

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

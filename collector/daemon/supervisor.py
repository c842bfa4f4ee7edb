"""The daemon: a lane for each board, orders from the state database, an end in order."""

import os
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from collector.boards import named_boards
from collector.daemon.jobs import AT_ONCE, QUEUED, RUNNING
from collector.daemon.lane import Lane
from collector.daemon.locks import daemon_lock
from collector.daemon.log_file import LogFile
from collector.daemon.notify import Notifier
from collector.daemon.schema import prepare_folder
from collector.daemon.server import status_site
from collector.daemon.settings import DaemonSettings, daemon_log, listen_address
from collector.daemon.store import Store, open_store
from collector.daemon.worker import Worker, start_worker
from collector.errors import DaemonError
from estimator import __version__

POLL_S: Final = 0.2
"""How often the state database is looked at for new orders [s]."""
BEAT_S: Final = 5.0
"""How often the daemon writes that it lives [s]."""
BEATS_PER_WATCHDOG: Final = 3.0
RESTORE_S: Final = 60.0
"""Patience for clocks to be given back [s]."""
SETTLE_S: Final = 0.005
"""Rest after a worker has spoken: it says several things at once, and the loop is not to spin [s]."""
REPEAT_S: Final = 60.0
"""The same trouble is logged again after this time [s]."""


class Supervisor:
    """Runs the lanes until it is told to end; used by `serve` alone."""

    def __init__(self, store: Store, settings: DaemonSettings, log: LogFile, notifier: Notifier) -> None:
        self._store = store
        self._settings = settings
        self._log = log
        self._notifier = notifier
        self._signals = 0
        self._draining = 0
        self._drain_until_s = float("inf")
        self._next_beat_s = 0.0
        self._restorer: Worker | None = None
        self._restore_wanted = False
        self._restore_until_s = float("inf")
        self._troubles: dict[str, float] = {}
        boards = named_boards(settings.gpus)
        self._lanes = [Lane(store, settings, board, log, self._want_restore) for board in boards]
        if any(not board.simulated for board in boards):
            self._want_restore()
        store.set_boards({board.key: (board.word, board.name) for board in boards})

    def ask_end(self, _signal: int, _frame: object) -> None:
        """A signal: drain, and the second time without waiting for kernels."""
        self._signals += 1

    def run(self) -> None:
        """The loop.  The jobs that were running are queued again when it ends."""
        self._notifier.ready(self._status())
        try:
            while True:
                self._turn()
                if self._draining and not any(lane.busy for lane in self._lanes):
                    break
                self._wait()
        finally:
            for lane in self._lanes:
                lane.close()
            if self._restorer is not None:
                self._restorer.wait(RESTORE_S)
                self._restorer.close()

    def _turn(self) -> None:
        self._take_orders()
        for lane in self._lanes:
            try:
                lane.tick(self._draining)
            except DaemonError as error:  # a full disk, mostly: the worker goes on, and so does the lane when there is room
                self._trouble(str(error))
            except Exception as error:  # noqa: BLE001 - one lane's defect ends neither the others nor the daemon
                self._log.write(f"{lane.board.key}: {''.join(traceback.format_exception(error))}")
                with suppress(DaemonError):
                    lane.abandon(f"the daemon failed: {type(error).__name__}: {error}")
                self._want_restore()
        self._restore_clocks()
        self._beat()

    def _take_orders(self) -> None:
        how = self._signals
        try:
            how = max(how, self._store.daemon_stop())
        except DaemonError as error:
            self._trouble(str(error))
        now_s = time.monotonic()
        if how and not self._draining:
            self._drain_until_s = now_s + self._settings.drain_s
            self._log.write("draining: kernels that run are finished, nothing new is begun")
            self._notifier.stopping("draining")
            self._notifier.extend(self._settings.drain_s + RESTORE_S)
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
        self._next_beat_s = now_s + (BEAT_S if watchdog_s is None else min(BEAT_S, watchdog_s / BEATS_PER_WATCHDOG))
        self._notifier.alive()
        self._notifier.status(self._status())
        if self._notifier.trouble:
            self._trouble(self._notifier.trouble)
        try:
            self._store.daemon_beats(draining=bool(self._draining))
        except DaemonError as error:
            self._trouble(str(error))

    def _status(self) -> str:
        try:
            counts = self._store.overview(limit=0).counts
        except DaemonError as error:
            return str(error)
        state = "draining, " if self._draining else ""
        return f"{state}{len(self._lanes)} boards, {counts[RUNNING]} running, {counts[QUEUED]} queued"

    def _want_restore(self) -> None:
        self._restore_wanted = True

    def _restore_clocks(self) -> None:
        """Give back clocks that a dead process left held: in a child, since a driver may hang."""
        if self._restorer is not None:
            messages = self._restorer.messages()
            status = self._restorer.ended()
            if status is None and time.monotonic() > self._restore_until_s:
                self._restorer.stop(AT_ONCE)
            if status is None:
                return
            restored = self._restorer.result().get("restored", [])
            for text in [*(f"{uuid}: SM clock given back" for uuid in restored), *(message.text for message in messages if message.text)]:
                self._log.write(text)
            self._restorer.close()
            self._restorer = None
        if self._restore_wanted:
            self._restore_wanted = False
            self._restore_until_s = time.monotonic() + RESTORE_S
            self._restorer = start_worker(["clocks", "restore", "--json"])

    def _trouble(self, text: str) -> None:
        """Into the log, but not with every turn of the loop."""
        now_s = time.monotonic()
        if now_s > self._troubles.get(text, 0.0):
            self._troubles = {known: until for known, until in self._troubles.items() if until > now_s}
            self._troubles[text] = now_s + REPEAT_S
            self._log.write(text)

    def _wait(self) -> None:
        """Until a worker speaks, or orders are due to be looked for."""
        descriptors = [descriptor for lane in self._lanes for descriptor in lane.descriptors]
        ready, _, _ = select.select(descriptors, [], [], POLL_S)
        if ready:  # an ended worker's pipes are always ready until its status is there
            time.sleep(SETTLE_S)


def serve(settings: DaemonSettings, say: Callable[[str], None]) -> None:
    """Be the daemon until a signal or `collect stop --daemon` ends it.

    `say` gets every line of the log.  Raises DaemonError where the state folder is another daemon's or cannot be used,
    where the address cannot be had, and DeviceError for a board that is not there.
    """
    folder = settings.state_folder
    prepare_folder(folder, own=True)
    log = LogFile(daemon_log(settings), say)
    notifier = Notifier(os.environ, os.getpid())
    with daemon_lock(folder), open_store(folder, check=True) as store:
        supervisor = Supervisor(store, settings, log, notifier)
        with _signals(supervisor), status_site(folder, listen_address(settings), log.write) as place:
            store.daemon_started(os.getpid(), __version__, place)
            where = "; `collect status` tells the address of its page" if place else ""  # a log may have other readers
            log.write(f"daemon {__version__} runs as process {os.getpid()}{where}")
            supervisor.run()
            log.write("daemon has ended")
            notifier.status("has ended")


@contextmanager
def _signals(supervisor: Supervisor) -> Iterator[None]:
    """SIGTERM and Ctrl-C drain within the block."""
    before = {number: signal.signal(number, supervisor.ask_end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

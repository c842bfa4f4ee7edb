"""A worker's side: `collect` as the child of a daemon, or of a `collect` on several boards.

A worker reports its progress in lines of JSON on stderr.  SIGTERM, or its parent's death, which closes its stdin, ends it
after the running kernel; SIGINT, or a second SIGTERM, at once.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EDQUOT, ENOSPC
from typing import TYPE_CHECKING

from collector.campaigns.display import row_line
from collector.daemon.worker import MEASURING, Message, signals_to
from collector.errors import BoardBusyError, BoardLostError, CollectorError, DriverError
from estimator.vocabulary.errors import EstimatorError
from estimator.vocabulary.reader import plain

if TYPE_CHECKING:
    from collector.campaigns.files import CampaignSpec
    from collector.campaigns.plan import CampaignPlan
    from collector.campaigns.running import Progress
    from collector.devices.protocols import Bench, Clock


class StopRequest:
    """Whether a stop of the worker was requested; made by `reporting`."""

    def __init__(self) -> None:
        self.asked = False
        self.within_row = False

    def ask(self, number: int, _frame: object) -> None:
        """Record a request; raise KeyboardInterrupt if no kernel is being measured, and always for SIGINT or the second request."""
        if self.asked or not self.within_row or number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True


class Tally:
    """Counts a campaign's reports, as totals since the worker began: a lost message loses no count."""

    def __init__(self, clock: "Clock") -> None:
        self._clock, self._start_ns = clock, clock.now_ns()
        self._rows: int | None = None
        self._kept = self._flagged = 0

    def message(self, progress: "Progress") -> Message:
        """A campaign's progress, and its results so far."""
        row, eta_s, refused = progress.row or {}, None, 0
        if progress.phase == MEASURING:
            if self._rows is None:
                self._rows = self._kept = progress.done
                self._since_s = time.monotonic()
            self._rows += bool(row)
            self._flagged += bool(row.get("flags"))
            new = progress.done - self._kept
            refused = max(0, progress.done - self._rows)
            eta_s = max(0, progress.total - progress.done) * (time.monotonic() - self._since_s) / new if new > 0 else None
        return Message(
            wattprint="progress",
            text=row_line(row) if row else progress.phase,
            phase=progress.phase,
            done=progress.done,
            total=progress.total,
            elapsed_s=(self._clock.now_ns() - self._start_ns) * 1e-9,
            eta_s=eta_s,
            rows=self._rows,
            flagged=self._flagged,
            refused=refused,
            sm_clock_mhz=row.get("sm_clock_measured_mhz"),
            power_w=row.get("power_w"),
            temperature_c=row.get("temperature_c"),
        )


@contextmanager
def reporting(bench: "Bench", spec: "CampaignSpec", plan: "CampaignPlan") -> Iterator[Callable[["Progress"], None]]:
    """A function that reports a campaign's progress to the parent, and ends the campaign between two rows on request.

    It raises KeyboardInterrupt then, after the finished row is on disk.
    """
    stop, tally = StopRequest(), Tally(bench.clock)
    # the longest time without a report [s]: warm-up and idle power at every clock
    idle_s = spec.warmup_s + len(plan.clocks_mhz) * (spec.idle_settle_s + spec.idle_window_s) + spec.measurement.idle_s

    def tell(progress: "Progress") -> None:
        stop.within_row = progress.phase == MEASURING
        send(tally.message(progress))
        if stop.asked:
            raise KeyboardInterrupt

    with signals_to(stop.ask):
        threading.Thread(target=_watch_parent, daemon=True).start()
        send(Message(wattprint="planned", total=len(plan.points), silence_s=0.0 if bench.simulated else idle_s))
        yield tell


def send(message: Message) -> None:
    """Sends one message to the parent.  Raises KeyboardInterrupt if it is gone."""
    try:
        sys.stderr.write(json.dumps(plain(message), allow_nan=False) + "\n")
        sys.stderr.flush()
    except BrokenPipeError:
        raise KeyboardInterrupt from None


@contextmanager
def told_errors() -> Iterator[None]:
    """Reports to the parent the kind of error that ends a worker; the error is raised further."""
    try:
        yield
    except (CollectorError, EstimatorError) as error:
        send(Message(wattprint="error", cause=cause_of(error)))
        raise


def cause_of(error: BaseException) -> str:
    """The name of a cause that may pass (`collector.daemon.jobs`); empty for all others."""
    for kind, name in ((BoardBusyError, "board_busy"), (BoardLostError, "board_lost"), (DriverError, "driver_unusable")):
        if isinstance(error, kind):
            return name
    behind: BaseException | None = error
    while behind is not None:
        if isinstance(behind, OSError) and behind.errno in (ENOSPC, EDQUOT):
            return "disk_full"
        behind = behind.__cause__ or behind.__context__
    return ""


def _watch_parent() -> None:
    """Waits for the end of stdin, which the parent keeps open while it lives."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)

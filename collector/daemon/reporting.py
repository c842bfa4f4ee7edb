"""A worker's side: `collect` as the child of a daemon, or of a `collect` on several boards.

A worker says what it does in lines of JSON on stderr.  SIGTERM, or its parent's death, which closes its stdin, ends it
after the kernel that runs; SIGINT, or a second SIGTERM, at once.
"""

import json
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EDQUOT, ENOSPC
from typing import TYPE_CHECKING, Any, Final

from collector.campaigns.display import row_line
from collector.daemon.worker import MARK, MEASURING
from collector.devices.errors import BoardBusyError, BoardLostError, CollectorError, DriverError
from estimator.vocabulary.errors import EstimatorError

if TYPE_CHECKING:
    from collector.bench import Bench
    from collector.campaigns.files import CampaignSpec
    from collector.campaigns.plan import CampaignPlan
    from collector.campaigns.running import Progress

MOST_CAUSES: Final = 20
"""Errors behind an error that are looked at."""


class StopRequest:
    """Whether the worker has been asked to stop; made by `reporting`."""

    def __init__(self) -> None:
        self.asked = False
        self.within_row = False

    def ask(self, number: int, _frame: object) -> None:
        """Take note; raise KeyboardInterrupt where no kernel is being measured, and wherever it is for SIGINT or the second time."""
        if self.asked or not self.within_row or number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def reporting(bench: "Bench", spec: "CampaignSpec", plan: "CampaignPlan") -> Iterator[Callable[["Progress"], None]]:
    """A function for a campaign's progress that tells the parent, and ends the campaign between two rows where that is asked for.

    It raises KeyboardInterrupt then, after the finished row is on disk.
    """
    stop = StopRequest()
    start_ns = bench.clock.now_ns()
    identity = bench.gpu.identity()

    def tell(progress: "Progress") -> None:
        stop.within_row = progress.phase == MEASURING
        send(
            {
                MARK: "progress",
                "phase": progress.phase,
                "done": progress.done,
                "total": progress.total,
                "elapsed_s": (bench.clock.now_ns() - start_ns) * 1e-9,
                **({} if progress.row is None else {"row": _figures(progress.row)}),
            }
        )
        if stop.asked:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop.ask)
    interrupt = signal.signal(signal.SIGINT, stop.ask)
    threading.Thread(target=_watch_parent, daemon=True).start()
    try:
        send(
            {
                MARK: "planned",
                "gpu_uuid": identity.uuid,
                "gpu_name": identity.name,
                "total": len(plan.points),
                "silence_s": longest_silence_s(bench.simulated, spec, plan),
            }
        )
        yield tell
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, interrupt)


def longest_silence_s(simulated: bool, spec: "CampaignSpec", plan: "CampaignPlan") -> float:
    """How long a campaign may have nothing to say: warm-up and idle power at every clock, in host time [s]."""
    if simulated:
        return 0.0
    idle_s = len(plan.clocks_mhz) * (spec.idle_settle_s + spec.idle_window_s)
    return spec.warmup_s + idle_s + spec.measurement.idle_s


def send(message: dict[str, Any]) -> None:
    """One message to the parent.  Raises KeyboardInterrupt where it is gone."""
    try:
        sys.stderr.write(json.dumps(message, allow_nan=False) + "\n")
        sys.stderr.flush()
    except BrokenPipeError:
        raise KeyboardInterrupt from None


@contextmanager
def told_errors() -> Iterator[None]:
    """Tells the parent which kind of error ends a worker; the error goes on."""
    try:
        yield
    except (CollectorError, EstimatorError) as error:
        send({MARK: "error", "cause": cause_of(error)})
        raise


def cause_of(error: BaseException) -> str:
    """The name of a cause that may pass (`collector.daemon.jobs`); empty for all others."""
    if isinstance(error, BoardBusyError):
        return "board_busy"
    if isinstance(error, BoardLostError):
        return "board_lost"
    if isinstance(error, DriverError):
        return "driver_unusable"
    behind: BaseException | None = error
    for _ in range(MOST_CAUSES):
        if behind is None:
            break
        if isinstance(behind, OSError) and behind.errno in (ENOSPC, EDQUOT):
            return "disk_full"
        behind = behind.__cause__ or behind.__context__
    return ""


def _figures(row: Any) -> dict[str, Any]:
    """What the parent is told of a row."""
    names = ("sm_clock_measured_mhz", "power_w", "temperature_c")
    values = {name: value for name in names if isinstance(value := row.get(name), float) and math.isfinite(value)}
    return {**values, "flags": len(row["flags"]), "text": row_line(row)}


def _watch_parent() -> None:
    """Waits for the end of stdin, which the parent holds open while it lives."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)

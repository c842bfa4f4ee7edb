"""Campaigns on several boards at once: a worker for each, with parts of its own in one dataset."""

import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from collector.boards import BoardName
from collector.daemon.worker import COMMAND, Worker, start_worker
from collector.errors import CollectorError

WAIT_S: Final = 0.2
"""How often an ended worker is looked for [s]."""
PLAN_S: Final = 600.0
"""Patience for a plan: generated kernels are assembled for it [s]."""
SETTLE_S: Final = 0.005
"""Rest after a worker has spoken: it says several things at once, and the loop is not to spin [s]."""
MESSAGE_START: Final = "collect: "


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardEnd:
    """How one board's campaign ended: exit status, what it printed, and the last line that it complained with."""

    board: BoardName
    status: int
    result: dict[str, Any]
    text: str
    complaint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEnd:
    """A plan, as `collect --dry-run` prints it, or why there is none: exit status 0, 1 or 2, and its line."""

    status: int
    text: str
    complaint: str


class _Stops:
    """How often the user has asked to stop."""

    def __init__(self) -> None:
        self.asked = 0

    def ask(self, _signal: int, _frame: object) -> None:
        """A signal."""
        self.asked += 1


def board_plan(words: Sequence[str]) -> PlanEnd:
    """The plan of a campaign with these words of `collect`; nothing is measured.  Raises CollectorError where it takes too long."""
    try:
        done = subprocess.run(
            [*COMMAND, "--dry-run", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PLAN_S, check=False
        )
    except ValueError as error:
        raise CollectorError(f"no word of a command: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise CollectorError(f"the plan was not made within {PLAN_S:.0f} s; is the driver stuck? see `collect doctor`") from error
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    complaint = lines[-1].removeprefix(MESSAGE_START).partition("; see 'collect")[0] if lines else f"status {done.returncode}"
    return PlanEnd(status=done.returncode, text=done.stdout, complaint=complaint)


def measure_side_by_side(jobs: Mapping[BoardName, Sequence[str]], tell: Callable[[BoardName, str, int, int], None]) -> list[BoardEnd]:
    """Run a `collect` with its own words for each board and wait for all.

    `tell` gets a board, a line, and how many points are finished and planned.  A signal ends them all after the
    kernels that run, a second one at once; their rows are then safe and their statuses those of an interruption.
    """
    stops = _Stops()
    workers: dict[BoardName, Worker] = {}
    ends: dict[BoardName, BoardEnd] = {}
    complaints: dict[BoardName, str] = {}
    with _signals(stops):
        try:
            for board, words in jobs.items():
                workers[board] = start_worker(["--worker", *words])
            while len(ends) < len(workers):
                open_ends = {board: worker for board, worker in workers.items() if board not in ends}
                ready, _, _ = select.select([end for worker in open_ends.values() for end in worker.descriptors], [], [], WAIT_S)
                if ready:
                    time.sleep(SETTLE_S)
                for board, worker in open_ends.items():
                    worker.stop(stops.asked)
                    status = worker.ended()
                    _pass_on(board, worker, complaints, tell)
                    if status is not None:
                        ends[board] = _end(board, worker, status, complaints.get(board, ""))
        finally:
            for worker in workers.values():
                worker.close()
    return [ends[board] for board in jobs]


def _pass_on(board: BoardName, worker: Worker, complaints: dict[BoardName, str], tell: Callable[[BoardName, str, int, int], None]) -> None:
    for message in worker.messages():
        if message.kind == "progress":
            row = message.document.get("row")
            text = str(row["text"] if row else message.document["phase"])
            tell(board, text, int(message.document["done"]), int(message.document["total"]))
        elif message.text:
            complaints[board] = message.text


def _end(board: BoardName, worker: Worker, status: int, complaint: str) -> BoardEnd:
    return BoardEnd(
        board=board,
        status=status,
        result=worker.result(),
        text=worker.text(),
        complaint=complaint.removeprefix(MESSAGE_START) or f"the worker ended with status {status}",
    )


@contextmanager
def _signals(stops: _Stops) -> Iterator[None]:
    """SIGTERM and Ctrl-C are counted within the block."""
    before = {number: signal.signal(number, stops.ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

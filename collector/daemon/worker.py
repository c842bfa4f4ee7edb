"""A parent's side: a `collect` that runs as a child, what it reports, how it is stopped; and several at once, a board each."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, Queue
from tempfile import TemporaryFile
from typing import IO, Any, Final

from collector.boards import BoardName
from collector.devices.errors import CollectorError, DaemonError

MARK: Final = "wattprint"
"""Every message of a worker has this key; its value is the kind of the message: planned, progress or error."""
MEASURING: Final = "measuring"
"""The phase in which rows come (`collector.campaigns.running.Progress`)."""

COMMAND: Final = (sys.executable, "-m", "collector.cli")
MESSAGE_START: Final = "collect: "
LONGEST_LINE: Final = 1 << 20
MOST_WAITING: Final = 256
"""Messages that wait; a worker that has more to say waits, too."""
MOST_AT_ONCE: Final = 64
KILL_AFTER_S: Final = 10.0
"""Patience for a worker that was told to end at once [s]."""
LISTEN_S: Final = 1.0
"""Patience for the last lines of a worker that has ended [s]."""
WAIT_S: Final = 0.2
"""How often an ended worker is looked for [s]."""
PLAN_S: Final = 600.0
"""Patience for a plan: generated kernels are assembled for it [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A line from a worker: a document of its own, or text (`kind` "")."""

    kind: str
    document: Mapping[str, Any]
    text: str


class Worker:
    """A `collect` with these words as a child in a session of its own, with `keep` as open files; ended by `close`.

    `wake` is set when it writes a line or ends.  Raises DaemonError where it cannot be started.
    """

    def __init__(self, words: Sequence[str], wake: threading.Event, keep: Sequence[int] = ()) -> None:
        pipe = subprocess.PIPE
        try:
            self._result = TemporaryFile()  # noqa: SIM115 - closed by `close`
            self._process = subprocess.Popen(
                [*COMMAND, *words], stdin=pipe, stdout=self._result, stderr=pipe, start_new_session=True, pass_fds=tuple(keep)
            )
        except (OSError, ValueError) as error:
            raise DaemonError(f"no worker can be started ({getattr(error, 'strerror', None) or error})") from error
        self._inbox: Queue[Message] = Queue(MOST_WAITING)
        self.pid = self._process.pid
        self.asked = 0
        self.last_heard_s = time.monotonic()
        self._kill_at_s = float("inf")
        self._ended_s = float("inf")
        self._wake = wake
        self._listener = threading.Thread(target=self._listen, args=(self._process.stderr,), daemon=True)
        self._listener.start()

    def _listen(self, stderr: IO[bytes]) -> None:
        with stderr:
            while line := stderr.readline(LONGEST_LINE):
                self.last_heard_s = time.monotonic()
                if line.strip():
                    self._wake.set()
                    self._inbox.put(_message(line))
                self._wake.set()
        self._wake.set()

    def text(self) -> str:
        """What it printed."""
        self._result.seek(0)
        return self._result.read().decode("utf-8", "replace")

    def result(self) -> dict[str, Any]:
        """What it printed, as a document; empty where it printed none."""
        with suppress(ValueError):
            document = json.loads(self.text())
            if isinstance(document, dict):
                return document
        return {}

    def stop(self, how: int, patience_s: float = KILL_AFTER_S) -> None:
        """End it after its kernel (1) or at once (2), and then kill it after so much time; nothing is asked twice."""
        if how <= self.asked:
            return
        self.asked = how
        self._process.send_signal(signal.SIGTERM if how == 1 else signal.SIGINT)
        if how > 1:
            self._kill_at_s = time.monotonic() + patience_s

    def messages(self) -> Iterator[Message]:
        """Messages that wait, so many that other boards have a turn, too."""
        with suppress(Empty):
            for _ in range(MOST_AT_ONCE):
                yield self._inbox.get_nowait()
            self._wake.set()  # there may be more

    @property
    def silent_s(self) -> float:
        """Time since its last line [s]; 0 while lines wait to be read."""
        return 0.0 if self._inbox.qsize() else time.monotonic() - self.last_heard_s

    def ended(self) -> int | None:
        """Its exit status (negative: the signal); None while it runs or messages wait.  One that does not end when told to is killed."""
        status, now_s = self._process.poll(), time.monotonic()
        if status is None:
            if now_s > self._kill_at_s:
                self._kill()
            return None
        self._ended_s = min(self._ended_s, now_s)
        speaking = self._listener.is_alive() and now_s < self._ended_s + LISTEN_S
        return None if speaking or self._inbox.qsize() else status

    def close(self) -> None:
        """Kill what still runs, close the files."""
        if self._process.poll() is None:
            self._kill()
            self._process.wait()
        deadline = time.monotonic() + LISTEN_S
        while self._listener.is_alive() and time.monotonic() < deadline:  # it may wait for room
            for _ in self.messages():
                pass
            self._listener.join(0.01)
        self._result.close()
        with suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.close()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def _message(line: bytes) -> Message:
    text = line.decode("utf-8", "replace").strip()
    if text.startswith("{"):
        with suppress(ValueError):
            document = json.loads(text)
            if isinstance(document.get(MARK), str):
                return Message(kind=document[MARK], document=document, text="")
    return Message(kind="", document={}, text="".join(character if character.isprintable() else "?" for character in text))


@contextmanager
def counted_signals(wake: threading.Event) -> Iterator[Callable[[], int]]:
    """SIGTERM and Ctrl-C are counted within the block and set `wake`; gives a function that tells how many came."""
    came: list[int] = []

    def count(number: int, _frame: object) -> None:
        came.append(number)
        wake.set()

    before = {number: signal.signal(number, count) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: len(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
    wake = threading.Event()
    workers: dict[BoardName, Worker] = {}
    ends: dict[BoardName, BoardEnd] = {}
    complaints: dict[BoardName, str] = {}
    with counted_signals(wake) as stops:
        try:
            for board, words in jobs.items():
                workers[board] = Worker(["--worker", *words], wake)
            while len(ends) < len(workers):
                wake.wait(WAIT_S)
                wake.clear()
                for board, worker in workers.items():
                    if board in ends:
                        continue
                    worker.stop(stops())
                    status = worker.ended()
                    for message in worker.messages():
                        _pass_on(board, message, complaints, tell)
                    if status is not None:
                        said = complaints.get(board, "").removeprefix(MESSAGE_START) or f"the worker ended with status {status}"
                        ends[board] = BoardEnd(board=board, status=status, result=worker.result(), text=worker.text(), complaint=said)
        finally:
            for worker in workers.values():
                worker.close()
    return [ends[board] for board in jobs]


def _pass_on(
    board: BoardName, message: Message, complaints: dict[BoardName, str], tell: Callable[[BoardName, str, int, int], None]
) -> None:
    if message.kind == "progress":
        row = message.document.get("row")
        text = str(row["text"] if row else message.document["phase"])
        tell(board, text, int(message.document["done"]), int(message.document["total"]))
    elif message.text:
        complaints[board] = message.text

"""A parent's side: a `collect` that runs as a child, its reports and its stop; and several at once, a board each."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from tempfile import TemporaryFile
from typing import IO, Any, Final, Literal

from collector.boards import BoardName
from collector.errors import CollectorError, DaemonError
from estimator.vocabulary.documents import parse_json, printable
from estimator.vocabulary.reader import read
from estimator.vocabulary.values import frozen

MEASURING: Final = "measuring"
"""The phase that produces rows (`collector.campaigns.running.Progress`)."""

COMMAND: Final = (sys.executable, "-m", "collector.cli")
MESSAGE_START: Final = "collect: "
"""Prefix of an error message of `collect`."""
PLAN_S: Final = 600.0
"""Longest wait for a plan: generated kernels are assembled for it [s]."""


@frozen
class Message:
    """A worker's report in a line of JSON, or another line of its stderr ("text").

    total       points planned; `done` of them are finished
    silence_s   longest time without a message [s]
    elapsed_s   the board's time since the worker began [s]; `eta_s` is left
    rows        all rows, earlier runs included; None until kernels are measured
    flagged     new rows in doubt; `refused` points could not run
    cause       of the worker's end, as a name (`collector.daemon.jobs`)
    The last three are figures of the row just finished; None without one.
    """

    wattprint: Literal["planned", "progress", "error", "text"]
    text: str = ""
    total: int = 0
    silence_s: float = 0.0
    phase: str = ""
    done: int = 0
    elapsed_s: float = 0.0
    eta_s: float | None = None
    rows: int | None = None
    flagged: int = 0
    refused: int = 0
    cause: str = ""
    sm_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None


@frozen
class End:
    """End of a `collect`: exit status, output, and the last line of its complaint."""

    status: int
    text: str
    complaint: str

    @property
    def result(self) -> dict[str, Any]:
        """The output as a document; empty without one."""
        with suppress(ValueError):
            document = json.loads(self.text)
            if isinstance(document, dict):
                return document
        return {}


class Worker:
    """A `collect` with these words as a child in a session of its own, with `keep` as open files; ended by `close`.

    `wake` is set when it writes a line or ends.  Raises DaemonError if it cannot be started.
    """

    def __init__(self, words: Sequence[str], wake: threading.Event, keep: Sequence[int] = ()) -> None:
        pipe = subprocess.PIPE
        try:
            self._result = TemporaryFile()  # noqa: SIM115 - closed by `close`
            self._process = subprocess.Popen(
                [*COMMAND, *words], stdin=pipe, stdout=self._result, stderr=pipe, start_new_session=True, pass_fds=tuple(keep)
            )
        except OSError as error:
            raise DaemonError(f"no worker can be started ({error.strerror})") from error
        self._inbox: SimpleQueue[Message] = SimpleQueue()
        self.pid = self._process.pid
        self.asked = 0
        self._heard_s = time.monotonic()
        self._kill_at_s = float("inf")
        self._wake = wake
        self._listener = threading.Thread(target=self._listen, args=(self._process.stderr,), daemon=True)
        self._listener.start()

    def _listen(self, stderr: IO[bytes]) -> None:
        with stderr:
            while line := stderr.readline(1 << 20):
                self._heard_s = time.monotonic()
                if line.strip():
                    self._inbox.put(_message(line))
                self._wake.set()
        self._wake.set()

    def end(self, status: int, complaint: str) -> "End":
        """Its end with this exit status."""
        self._result.seek(0)
        return End(status=status, text=self._result.read().decode("utf-8", "replace"), complaint=complaint)

    def stop(self, how: int, patience_s: float = 10.0) -> None:
        """Ends it after its kernel (1) or at once (2), and kills it after `patience_s`; a request is not repeated."""
        if how <= self.asked:
            return
        self.asked = how
        self._process.send_signal(signal.SIGTERM if how == 1 else signal.SIGINT)
        if how > 1:
            self._kill_at_s = time.monotonic() + patience_s

    def messages(self) -> Iterator[Message]:
        """The messages that wait now; a worker that writes faster than they are read does not keep the reader."""
        for _ in range(self._inbox.qsize()):
            yield self._inbox.get()

    @property
    def silent_s(self) -> float:
        """Time since its last line [s]; 0 while lines wait to be read."""
        return 0.0 if self._inbox.qsize() else time.monotonic() - self._heard_s

    def ended(self) -> int | None:
        """Its exit status (negative: the signal) once its last line has come; None while it runs.

        A worker that does not end on request is killed.
        """
        status = self._process.poll()
        if status is not None:
            self._listener.join(1.0)  # a child of the worker may keep the pipe open
        elif time.monotonic() > self._kill_at_s:
            self._kill()
        return status

    def close(self) -> None:
        """Kills a running worker, closes the files."""
        if self._process.poll() is None:
            self._kill()
            self._process.wait()
        self._listener.join(1.0)
        self._result.close()
        with suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.close()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def _message(line: bytes) -> Message:
    text = line.decode("utf-8", "replace").strip()
    if text.startswith('{"wattprint"'):
        with suppress(ValueError):
            return read(Message, parse_json(text.encode()))
    return Message(wattprint="text", text=printable(text))


@contextmanager
def signals_to(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """SIGTERM and Ctrl-C call this handler within the block."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


@contextmanager
def counted_signals(wake: threading.Event) -> Iterator[Callable[[], int]]:
    """Counts SIGTERM and Ctrl-C within the block and sets `wake`; yields a function that returns the count."""
    came: list[int] = []

    def count(number: int, _frame: object) -> None:
        came.append(number)
        wake.set()

    with signals_to(count):
        yield lambda: len(came)


def board_plan(words: Sequence[str]) -> End:
    """The plan of a campaign with these words of `collect`, as `collect --dry-run` prints it; nothing is measured.

    Raises CollectorError if it takes too long.
    """
    command = [*COMMAND, "--dry-run", *words]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PLAN_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise CollectorError(f"the plan was not made within {PLAN_S:.0f} s; is the driver stuck? see `collect doctor`") from error
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    complaint = lines[-1].removeprefix(MESSAGE_START).partition("; see 'collect")[0] if lines else f"status {done.returncode}"
    return End(status=done.returncode, text=done.stdout, complaint=complaint)


def measure_side_by_side(jobs: Mapping[BoardName, Sequence[str]], tell: Callable[[BoardName, str, int, int], None]) -> dict[BoardName, End]:
    """Runs a `collect` with its own words for each board and waits for all.

    `tell` receives a board, a line, and the numbers of finished and planned points.  A signal ends them all after the
    running kernels, a second one at once; their rows are then safe and their statuses those of an interruption.
    """
    wake = threading.Event()
    workers: dict[BoardName, Worker] = {}
    ends: dict[BoardName, End] = {}
    complaints: dict[BoardName, str] = {}
    with counted_signals(wake) as stops:
        try:
            for board, words in jobs.items():
                workers[board] = Worker(["--worker", *words], wake)
            while len(ends) < len(workers):
                wake.wait(0.2)
                wake.clear()
                for board, worker in workers.items():
                    if board in ends:
                        continue
                    worker.stop(stops())
                    status = worker.ended()
                    for message in worker.messages():
                        if message.wattprint == "progress":
                            tell(board, message.text, message.done, message.total)
                        elif message.text:
                            complaints[board] = message.text.removeprefix(MESSAGE_START)
                    if status is not None:
                        ends[board] = worker.end(status, complaints.get(board, f"the worker ended with status {status}"))
        finally:
            for worker in workers.values():
                worker.close()
    return {board: ends[board] for board in jobs}

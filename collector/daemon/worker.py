"""A parent's side: a `collect` that runs as a child, what it says, and how it is stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Final

from collector.daemon.messages import MARK
from collector.errors import DaemonError

COMMAND: Final = (sys.executable, "-m", "collector.cli")
READ_BYTES: Final = 1 << 16
MOST_READS: Final = 64
"""Reads at once at the most: other boards have a turn, too."""
LONGEST_LINE: Final = 1 << 20
"""Bytes of a line without an end; what is longer is no line of a worker."""
MOST_RESULT: Final = 4 << 20
"""Bytes of a result; a campaign's is some kilobytes."""
KILL_AFTER_S: Final = 10.0
"""Patience for a worker that was told to end at once [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A line from a worker: a document of its own, or text (`kind` "")."""

    kind: str
    document: Mapping[str, Any]
    text: str


class Worker:
    """A running `collect`; made by `start_worker`, ended by `close`."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self._partial = b""
        self._result = b""
        self._asked = 0
        self._kill_at_s = float("inf")
        self.last_heard_s = time.monotonic()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def asked(self) -> int:
        """How it has been told to stop: 0, 1 after its kernel, 2 at once."""
        return self._asked

    @property
    def descriptors(self) -> tuple[int, int]:
        """What becomes readable when it speaks."""
        return _stream(self._process.stdout).fileno(), _stream(self._process.stderr).fileno()

    def messages(self) -> list[Message]:
        """Everything it has said since the last call."""
        self._result += _available(self._process.stdout)[: MOST_RESULT - len(self._result)]
        data = _available(self._process.stderr)
        if not data:
            return []
        self.last_heard_s = time.monotonic()
        *lines, rest = (self._partial + data).split(b"\n")
        self._partial = rest[-LONGEST_LINE:]
        return [_message(line) for line in lines if line.strip()]

    def result(self) -> dict[str, Any]:
        """What it printed, as a document; empty where it printed none."""
        with suppress(ValueError):
            document = json.loads(self._result)
            if isinstance(document, dict):
                return document
        return {}

    def text(self) -> str:
        """What it printed."""
        return self._result.decode("utf-8", "replace")

    def stop(self, how: int, patience_s: float = KILL_AFTER_S) -> None:
        """End it after its kernel (1) or at once (2), and then kill it after so much time; nothing is asked twice."""
        if how <= self._asked:
            return
        self._asked = how
        self._signal(signal.SIGTERM if how == 1 else signal.SIGINT)
        if how > 1:
            self._kill_at_s = time.monotonic() + patience_s

    def kill(self) -> None:
        """End it and its children, whatever they do."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def ended(self) -> int | None:
        """Its exit status (negative: the signal), None while it runs; one that does not end when told to is killed."""
        status = self._process.poll()
        if status is None and time.monotonic() > self._kill_at_s:
            self._kill_at_s = float("inf")
            self.kill()
        return status

    def wait(self, seconds: float) -> int | None:
        """`ended`, after at most so much time."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.ended()

    def close(self) -> None:
        """Kill what still runs, close the pipes."""
        if self._process.poll() is None:
            self.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            with suppress(BrokenPipeError):
                _stream(stream).close()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)


def start_worker(arguments: Sequence[str], keep: Sequence[int] = ()) -> Worker:
    """A `collect` with these arguments as a child in a session of its own, with `keep` as open files.  Raises DaemonError."""
    try:
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=tuple(keep),
            bufsize=0,
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise DaemonError(f"no worker can be started ({reason})") from error
    worker = Worker(process)
    for descriptor in worker.descriptors:
        os.set_blocking(descriptor, False)
    return worker


def _available(stream: IO[bytes] | None) -> bytes:
    """What a pipe holds now."""
    parts = []
    for _ in range(MOST_READS):
        part = _stream(stream).read(READ_BYTES)
        if not part:  # None: nothing now; empty: the end
            break
        parts.append(part)
    return b"".join(parts)


def _message(line: bytes) -> Message:
    text = line.decode("utf-8", "replace").strip()
    if text.startswith("{"):
        with suppress(ValueError):
            document = json.loads(text)
            if isinstance(document, dict) and isinstance(document.get(MARK), str):
                return Message(kind=document[MARK], document=document, text="")
    return Message(kind="", document={}, text="".join(character if character.isprintable() else "?" for character in text))


def _stream(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise DaemonError("a worker has no pipe")
    return stream

"""A clock that is restored even if its process is killed: a record, and a guard process that outlives its owner.

The guard is a small process that reads a pipe; its owner holds the other end.  The pipe closes when the owner ends,
in any way; without a farewell before that, the guard gives the clock back.
"""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from collector.devices.clock_record import give_back, read_record, record_path, remove_record, state_folder, take_board
from collector.devices.nvml_library import open_nvml
from collector.errors import ClockError, CollectorError

READY: Final = b"ready\n"
FAREWELL: Final = b"done\n"
"""Message of an owner that has given its clock back; the guard then ends."""


class ClockGuard:
    """Guards the clock of one board from `arm` to `disarm`; no other process may change that clock meanwhile."""

    def __init__(self, gpu_uuid: str) -> None:
        self._uuid = gpu_uuid
        self._folder = state_folder()
        self._lock = -1
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def armed(self) -> bool:
        """Whether the clock is guarded now."""
        return self._guard is not None

    def arm(self) -> None:
        """Take the board, write the record, start the guard; harmless when armed.

        Raises ClockError if another process holds this board's clock, or record and guard cannot be made.
        """
        if self.armed:
            return
        guard = _start_guard(self._folder, self._uuid)  # first: no record is ever without a guard
        try:
            self._lock = take_board(self._folder, self._uuid)
        except CollectorError:
            _dismiss(guard)
            raise
        self._guard = guard

    def disarm(self) -> None:
        """Remove the record and dismiss the guard after the clock was given back; harmless when not armed."""
        guard, self._guard = self._guard, None
        if guard is not None:
            remove_record(self._folder, self._uuid)
            os.close(self._lock)
            _dismiss(guard)


def _start_guard(folder: Path, gpu_uuid: str) -> "subprocess.Popen[bytes]":
    """A guard that is ready.  Raises ClockError if it cannot be started."""
    command = [sys.executable, "-m", "collector.devices.clock_guard", str(folder), gpu_uuid, str(os.getpid())]
    try:
        guard = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, bufsize=0)
    except OSError as error:
        raise ClockError(f"no guard for the clock can be started ({error.strerror}); the clock is left alone") from error
    if guard.stdout is None or guard.stdout.readline() != READY:
        guard.kill()
        guard.wait()
        raise ClockError("the guard for the clock did not start; the clock is left alone")
    return guard


def _dismiss(guard: "subprocess.Popen[bytes]") -> None:
    guard.communicate(FAREWELL, timeout=10.0)  # longest wait for its end [s]


def watch(folder: Path, gpu_uuid: str, owner: int, incoming: IO[bytes], outgoing: IO[bytes]) -> int:
    """Main function of the guard: wait for the end of process `owner`, and give the clock back unless it reported that it did.

    The exit status: 0, or 1 if the clock could not be given back and its record stays.
    """
    with suppress(CollectorError), open_nvml():  # loads the modules for a reset early, so that the reset takes no time
        pass
    with suppress(BrokenPipeError):  # the owner may have died meanwhile
        outgoing.write(READY)
        outgoing.flush()
    if incoming.read().endswith(FAREWELL):
        return 0
    deadline = time.monotonic() + 60.0
    # A later owner gives the clock back before it writes its own record.
    while (record := read_record(record_path(folder, gpu_uuid))) is not None and record.pid == owner:
        try:
            give_back(folder, gpu_uuid)
        except CollectorError:
            if time.monotonic() > deadline:
                return 1
        time.sleep(0.05)  # the dying owner's lock may outlive its pipe for a moment; a driver may be restarting
    return 0


if __name__ == "__main__":
    sys.exit(watch(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.stdin.buffer, sys.stdout.buffer))

"""The clock helper from a client's side: its messages, and a clock that it holds for a process without the right to lock clocks.

A message is one JSON object a line, versioned; anything else is rejected with a named code.
"""

import json
import os
import select
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal

from collector.devices.file_lock import group_of
from collector.errors import ClockHelperError
from estimator.vocabulary.documents import parse_json
from estimator.vocabulary.reader import FaultError, read
from estimator.vocabulary.values import frozen

VERSION: Final = 1
LONGEST_REQUEST: Final = 1024
"""Longest request [bytes], its line end included; the longest valid one has 170."""

LONGEST_REPLY: Final = 65_536
"""Longest reply [bytes]; a status of eight boards has 2000."""

DEFAULT_SOCKET: Final = "/run/wattprint-clocks/socket"
SOCKET_VARIABLE: Final = "WATTPRINT_CLOCKS_SOCKET"
PAGE: Final = "docs/how-to/lock-clocks-without-root.md"
INSTALL: Final = f"have root install the clock helper ({PAGE}), run as root, or use --freqs current"


STATUS: Final = Path("/proc/self/status")
SYS_ADMIN: Final = 21
"""CAP_SYS_ADMIN of capabilities(7), which the driver requires."""


@frozen
class HeldBoard:
    """A board that the helper may change: its clocks [MHz], and process and user that hold it, "" without one."""

    uuid: str
    lowest_mhz: int
    highest_mhz: int
    holder: str


class RefusedError(Exception):
    """A refused request; `code` names the reason.  The connection stays."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class OddMessageError(RefusedError):
    """A line that is no message of this protocol: the connection ends."""


@frozen
class Request:
    """A client's request: report allowed and held boards, lock a clock [MHz] of a board, give the clock back."""

    do: Literal["status", "lock", "unlock"]
    version: int
    uuid: str = ""
    sm_clock_mhz: int = 0

    def __post_init__(self) -> None:
        if (self.do == "lock") != bool(self.uuid and self.sm_clock_mhz):
            raise FaultError("needs uuid and sm_clock_mhz to lock a clock, and nothing else takes them", "do")


def message(line: bytes) -> dict[str, Any]:
    """The object of a line.  Raises OddMessageError for anything but a JSON object of this version."""
    try:
        document = parse_json(line)
    except ValueError as error:
        raise OddMessageError("bad_json", "not one JSON object in UTF-8 on a line") from error
    if not isinstance(document, dict):
        raise OddMessageError("bad_json", "not a JSON object")
    if type(document.get("version")) is not int or document["version"] != VERSION:
        raise OddMessageError("bad_version", f'this side speaks "version": {VERSION}; both sides must be of one release')
    return document


def request(line: bytes) -> Request:
    """The request in a client's line.  Raises OddMessageError."""
    try:
        return read(Request, message(line))
    except ValueError as error:
        raise OddMessageError("bad_request", str(error)) from error


def line_of(**content: Any) -> bytes:
    """A message as a line of bytes."""
    return json.dumps({"version": VERSION, **content}, allow_nan=False).encode() + b"\n"


def may_lock_clocks() -> bool:
    """Whether this process has the capability that the driver requires; True if the system does not report it."""
    try:
        fields = dict(line.split(":", 1) for line in STATUS.read_text(encoding="ascii").splitlines() if ":" in line)
        return bool(int(fields["CapEff"], 16) >> SYS_ADMIN & 1)
    except (OSError, KeyError, ValueError):
        return True


def socket_path() -> Path:
    """Path of the helper's socket: $WATTPRINT_CLOCKS_SOCKET, else the default."""
    return Path(os.environ.get(SOCKET_VARIABLE) or DEFAULT_SOCKET)


def helper_there() -> bool:
    """Whether the helper's socket exists; True if this user may not look for it."""
    try:
        return stat.S_ISSOCK(socket_path().stat().st_mode)
    except PermissionError:
        return True
    except OSError:
        return False


def helper_boards() -> tuple[HeldBoard, ...]:
    """Boards that the helper may change, and their holders.  Raises ClockHelperError if it is missing or refuses."""
    with _connected() as end:
        content = _asked(end, do="status")
    try:
        boards: tuple[HeldBoard, ...] = read(tuple[HeldBoard, ...], content.get("boards"))
    except ValueError as error:
        raise _odd() from error
    return boards


def allowed_clocks(gpu_uuid: str, clocks: tuple[float, ...]) -> tuple[float, ...]:
    """The clocks of a board [MHz] that the helper may lock; all of them without a helper, since then the driver decides."""
    if not helper_there():
        return clocks
    try:
        found = next((board for board in helper_boards() if board.uuid == gpu_uuid), None)
    except ClockHelperError:  # reported when a clock is locked, with the reason
        return clocks
    return clocks if found is None else tuple(clock for clock in clocks if found.lowest_mhz <= round(clock) <= found.highest_mhz)


class LeasedClock:
    """A board's clock held by the helper while this connection is open.  Raises ClockHelperError."""

    def __init__(self, gpu_uuid: str, sm_clock_mhz: float) -> None:
        self._uuid = gpu_uuid
        self._end = _connected()
        self._held = False
        self._lost: ClockHelperError | None = None
        try:
            self.lock(sm_clock_mhz)
        except ClockHelperError:
            self._end.close()
            raise

    def lock(self, sm_clock_mhz: float) -> None:
        """Hold a clock.  Raises ClockHelperError."""
        self.check()
        self._ask(do="lock", uuid=self._uuid, sm_clock_mhz=round(sm_clock_mhz))
        self._held = True

    def check(self) -> None:
        """Raises ClockHelperError if the helper has ended the lease, which it says without being asked: the clock is not held any more."""
        if self._lost is not None:
            raise self._lost
        if select.select([self._end], [], [], 0.0)[0]:
            self._ask()

    def unlock(self) -> None:
        """Have the clock given back, and close.  Raises ClockHelperError if the driver refuses that now."""
        try:
            if self._lost is None:  # the helper gave the clock of a lost lease back
                self._ask(do="unlock")
        except ClockHelperError as error:
            if error.code == "not_given_back":
                raise
        finally:
            self._end.close()

    def _ask(self, **content: Any) -> None:
        """Waits for a reply.  Raises ClockHelperError, and remembers it if it ends the lease."""
        try:
            _asked(self._end, **content)
        except ClockHelperError as error:
            if error.code in ("ended", "no_lease", "lease_over", "board_shared") and self._held:
                seen = f"the clock helper has given the clock of {self._uuid} back: {error.seen}"
                self._lost = ClockHelperError(seen, code=error.code, remedy="finished rows are kept, --resume goes on")
                raise self._lost from error
            raise


def _connected() -> socket.socket:
    """A connection to the helper.  Raises ClockHelperError, naming the obstacle."""
    path = socket_path()
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # A blocking connect waits in turn while the queue is full; one with a timeout of Python's fails at once.
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 60, 0))
    try:
        end.connect(str(path))
        end.settimeout(60.0)  # longest wait for a reply: a driver without users takes seconds to start [s]
    except OSError as error:
        end.close()
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            said, code, remedy = f"no clock helper listens at {path}", "missing", INSTALL
        elif isinstance(error, PermissionError):
            said, code = f"this user may not reach the clock helper at {path}", "no_access"
            remedy = f"have root add you to group {group_of(path)} (usermod -aG), and log in again"
        else:
            said, code = f"the clock helper at {path} does not answer ({error.strerror or error})", "dead"
            remedy = "have root start it: systemctl restart wattprint-clocks.socket wattprint-clocks"
        raise ClockHelperError(said, code=code, remedy=remedy) from error
    return end


def _asked(end: socket.socket, **content: Any) -> dict[str, Any]:
    """The reply to a request, without content the next message.  Raises ClockHelperError."""
    if content:
        with suppress(OSError):  # a helper that has gone may have sent the reason before
            end.sendall(line_of(**content))
    came = b""
    try:
        while not came.endswith(b"\n"):
            more = end.recv(LONGEST_REPLY)
            came += more
            if len(came) > LONGEST_REPLY:
                raise _odd()
            if not more:
                raise ConnectionResetError("it has ended the connection")
    except OSError as error:
        raise ClockHelperError(f"the clock helper has gone: {error}", code="ended", remedy="see journalctl -u wattprint-clocks") from error
    try:
        answer = message(came)
    except OddMessageError as error:
        raise _odd(error.code) from error
    if answer.get("ok") is True:
        return answer
    code, text = str(answer.get("error", ""))[:40], " ".join(str(answer.get("text", "")).split())[:400]
    raise ClockHelperError(f"the clock helper refuses ({code}): {text}", code=code, remedy="")


def _odd(code: str = "odd") -> ClockHelperError:
    return ClockHelperError("what answers is no clock helper of this release", code=code, remedy="update the side that is older")

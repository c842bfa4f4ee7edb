"""The other side of the clock helper: a process that may not lock clocks has them locked, and learns when that ends."""

import os
import socket
import stat
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from collector.devices.peers import group_of
from collector.errors import ClockError, ClockHelperError, PrivilegedError
from collector.privileged.protocol import DEFAULT_SOCKET, LONGEST_PATH, LONGEST_REPLY, OddMessageError, line_of, message
from collector.privileged.settings import SYSTEM_CONFIG, socket_of

SOCKET_VARIABLE: Final = "WATTPRINT_CLOCKS_SOCKET"
PAGE: Final = "docs/how-to/lock-clocks-without-root.md"
INSTALL: Final = f"have root install the clock helper ({PAGE}), run as root, or use --freqs current"

CONNECT_S: Final = 60
"""Patience for a place in the queue of a helper that is busy or held up [s]."""

ANSWER_S: Final = 60.0
"""Patience for an answer: a driver that nobody uses takes seconds to start [s]."""

RENEWALS_IN_SILENCE: Final = 4
"""Signs of life within the time after which the helper would take the clock away."""

STATUS: Final = Path("/proc/self/status")
SYS_ADMIN: Final = 21
"""CAP_SYS_ADMIN of capabilities(7), which the driver asks for."""

REMEDIES: Final = {
    "board_not_allowed": "have root add the board to the helper's config",
    "clock_not_allowed": "take another clock, or have root widen the helper's config",
    "board_held": "wait until it has ended",
    "board_shared": "wait until it has ended",
    "bad_version": "update the side that is older",
}
"""What to do about a refusal, by its code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBoard:
    """A board that the helper may change: its clocks [MHz], and who holds it ("" for nobody), at which clock, how much longer [s]."""

    uuid: str
    lowest_mhz: int
    highest_mhz: int
    user: str
    pid: int
    sm_clock_mhz: int
    ends_in_s: float


def may_lock_clocks() -> bool:
    """Whether this process has the capability for which the driver asks; True where the system does not tell."""
    try:
        fields = dict(line.split(":", 1) for line in STATUS.read_text(encoding="ascii").splitlines() if ":" in line)
        return bool(int(fields["CapEff"], 16) >> SYS_ADMIN & 1)
    except (OSError, KeyError, ValueError):
        return True


def socket_path() -> Path:
    """Where the helper listens: $WATTPRINT_CLOCKS_SOCKET, else as /etc/wattprint/clocks.toml says, else where it does by default."""
    named = os.environ.get(SOCKET_VARIABLE)
    if named:
        return Path(named)
    try:
        return socket_of(SYSTEM_CONFIG)
    except PrivilegedError:
        return DEFAULT_SOCKET


def helper_there() -> bool:
    """Whether something is where the helper listens; one that this user may not look for is there."""
    try:
        return stat.S_ISSOCK(socket_path().stat().st_mode)
    except PermissionError:
        return True
    except OSError:
        return False


def helper_boards() -> tuple[HeldBoard, ...]:
    """What the helper may change, and who holds what.  Raises ClockHelperError where it is missing or refuses."""
    with _connected() as end:
        content = _asked(end, do="status")
    try:
        return tuple(_board(item) for item in content["boards"])
    except (KeyError, TypeError, ValueError) as error:
        raise _odd() from error


def allowed_clocks(gpu_uuid: str, clocks: tuple[float, ...]) -> tuple[float, ...]:
    """Those of a board's clocks [MHz] that the helper may lock; all of them without a helper, since then the driver decides."""
    if not helper_there():
        return clocks
    try:
        found = next((board for board in helper_boards() if board.uuid == gpu_uuid), None)
    except ClockHelperError:  # said when a clock is locked, with the reason
        return clocks
    return clocks if found is None else tuple(clock for clock in clocks if found.lowest_mhz <= round(clock) <= found.highest_mhz)


def leased_clock(gpu_uuid: str, sm_clock_mhz: float, refusal: ClockError) -> "LeasedClock":
    """A clock that the helper holds.  Raises ClockHelperError; its message says what `refusal` said where there is no helper."""
    try:
        leased = LeasedClock(gpu_uuid)
    except ClockHelperError as error:
        if error.code != "missing":
            raise
        raise ClockHelperError(str(refusal), code=error.code, remedy=f"or have root install the clock helper ({PAGE})") from error
    try:
        leased.lock(sm_clock_mhz)
    except ClockHelperError:
        leased.close()
        raise
    return leased


class LeasedClock:
    """A board's clock in the helper's hand, for as long as this object is open; a thread gives signs of life."""

    def __init__(self, gpu_uuid: str) -> None:
        self._uuid = gpu_uuid
        self._end = _connected()
        self._turn = threading.Lock()
        self._closed = threading.Event()
        self._renewing: threading.Thread | None = None
        self._lost: ClockHelperError | None = None

    def lock(self, sm_clock_mhz: float) -> None:
        """Hold a clock.  Raises ClockHelperError."""
        with self._turn:
            self.check()
            content = self._ask(do="lock", uuid=self._uuid, sm_clock_mhz=round(sm_clock_mhz))
        if self._renewing is None:
            silence_s = content.get("silence_s")
            if not isinstance(silence_s, int | float) or not silence_s > 0.0:
                raise _odd()
            self._renewing = threading.Thread(target=self._renew, args=(silence_s / RENEWALS_IN_SILENCE,), daemon=True, name="clock lease")
            self._renewing.start()

    def check(self) -> None:
        """Raises ClockHelperError where the helper has ended the lease: the clock is not held any more."""
        if self._lost is not None:
            raise self._lost

    def unlock(self) -> None:
        """Have the clock given back, and close.  Raises ClockHelperError where the driver refuses that now."""
        try:
            with self._turn:
                if self._lost is None:  # a lease that was lost has been given back
                    self._ask(do="unlock")
        except ClockHelperError as error:
            if error.code == "not_given_back":
                raise
        finally:
            self.close()

    def close(self) -> None:
        """End the connection, and with it the lease."""
        self._closed.set()
        self._end.close()

    def _renew(self, every_s: float) -> None:
        while not self._closed.wait(every_s):
            with self._turn:
                if self._closed.is_set():
                    return
                try:
                    self._ask(do="renew")
                except ClockHelperError as error:  # the next check raises it
                    self._lost = self._lost or error
                    return

    def _ask(self, **content: Any) -> dict[str, Any]:
        """An answer.  Raises ClockHelperError, and remembers it where the lease has ended with it."""
        try:
            return _asked(self._end, **content)
        except ClockHelperError as error:
            if error.code in ("ended", "no_lease", "silent", "lease_over", "board_shared") and self._renewing is not None:
                seen = f"the clock helper has given the clock of {self._uuid} back: {error.seen}"
                self._lost = ClockHelperError(seen, code=error.code, remedy="finished rows are kept, --resume goes on")
                raise self._lost from error
            raise


def _connected() -> socket.socket:
    """A connection to the helper.  Raises ClockHelperError, naming what stands in the way."""
    path = socket_path()
    if len(os.fsencode(path)) > LONGEST_PATH or "\0" in str(path):
        remedy = f"set {SOCKET_VARIABLE} to where the helper listens"
        raise ClockHelperError(f"{path}: no socket can have a path of more than {LONGEST_PATH} bytes", code="bad_path", remedy=remedy)
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # A connect that may wait does so while the queue is full, in turn; one with a timeout of Python's is refused at once.
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", CONNECT_S, 0))
    try:
        end.connect(str(path))
        end.settimeout(ANSWER_S)
    except (FileNotFoundError, NotADirectoryError) as error:
        end.close()
        raise ClockHelperError(f"no clock helper listens at {path}", code="missing", remedy=INSTALL) from error
    except PermissionError as error:
        end.close()
        remedy = f"have root add you to group {group_of(path)} (usermod -aG), and log in again"
        raise ClockHelperError(f"this user may not reach the clock helper at {path}", code="no_access", remedy=remedy) from error
    except OSError as error:
        end.close()
        remedy = "have root start it: systemctl restart wattprint-clocks.socket wattprint-clocks"
        raise ClockHelperError(
            f"the clock helper at {path} does not answer ({error.strerror or error})", code="dead", remedy=remedy
        ) from error
    return end


def _asked(end: socket.socket, **content: Any) -> dict[str, Any]:
    """The answer to a request.  Raises ClockHelperError."""
    with suppress(OSError):  # a helper that has gone may have said why before
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
        raise ClockHelperError(f"the clock helper has gone: {error}", code="ended", remedy="see its audit log") from error
    try:
        answer = message(came)
    except OddMessageError as error:
        raise _odd(error.code) from error
    if answer.get("ok") is True:
        return answer
    code, text = str(answer.get("error", ""))[:40], " ".join(str(answer.get("text", "")).split())[:400]
    raise ClockHelperError(f"the clock helper refuses ({code}): {text}", code=code, remedy=REMEDIES.get(code, ""))


def _odd(code: str = "odd") -> ClockHelperError:
    return ClockHelperError("what answers is no clock helper of this release", code=code, remedy="update the side that is older")


def _board(item: dict[str, Any]) -> HeldBoard:
    """Raises KeyError, TypeError, ValueError for what is none."""
    lease = item["lease"] or {"user": "", "pid": 0, "sm_clock_mhz": 0, "ends_in_s": 0.0}
    return HeldBoard(
        uuid=str(item["uuid"]),
        lowest_mhz=int(item["lowest_mhz"]),
        highest_mhz=int(item["highest_mhz"]),
        user=str(lease["user"]),
        pid=int(lease["pid"]),
        sm_clock_mhz=int(lease["sm_clock_mhz"]),
        ends_in_s=float(lease["ends_in_s"]),
    )

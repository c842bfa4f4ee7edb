"""The clock helper: locks SM clocks for local users without that right, and returns each of them.

It listens on a Unix socket only; users who may open that socket may lock clocks.  The kernel identifies the clients (SO_PEERCRED).
The helper changes nothing but the SM clocks in its settings.  It returns a clock when the client's connection ends, when the lease is
over, when other users compute on the board, when the helper is requested to end, and at its next start after it was killed.  It has
one thread and no child, and takes no path and no command from a client.  `collect privileged serve` starts it;
docs/how-to/lock-clocks-without-root.md.
"""

import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from collector.daemon.log_file import Notifier
from collector.devices.clock_helper import LONGEST_REQUEST, OddMessageError, RefusedError, Request, request
from collector.devices.clock_record import remove_record, reset_clock, restore_left_clocks, state_folder, take_board
from collector.devices.file_lock import peer_of, user_name
from collector.devices.nvml_library import open_nvml
from collector.errors import ClockError, CollectorError
from collector.privileged.clients import LOCK_COST, REQUESTS_PER_S, Client, Reply, User, audit, passed_socket
from collector.privileged.settings import HelperSettings, read_settings

MOST_CLIENTS_OF_USER: Final = 32
TICK_S: Final = 0.1
RETRY_S: Final = 1.0
"""Time between two attempts to give a clock back that the driver refuses [s]."""


@dataclass(slots=True, kw_only=True)
class Lease:
    """A board's clock held for a client, since `begun_s`; no other user computed there at `looked_s` [monotonic s].

    `lock` excludes every other writer.
    """

    client: Client
    uuid: str
    lock: int
    begun_s: float
    looked_s: float


class Helper:
    """Clients, their leases, and the clocks still to be given back."""

    def __init__(self, settings: HelperSettings, listener: socket.socket, stopping: socket.socket, notifier: Notifier) -> None:
        self._settings = settings
        self._boards = {board.uuid: board for board in settings.boards}
        self._folder = state_folder()
        self._leases: dict[str, Lease] = {}
        self._clients: set[Client] = set()
        self._users: dict[int, User] = {}
        self._retry_at_s: float | None = None
        self._listener, self._stopping, self._notifier = listener, stopping, notifier
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(stopping, selectors.EVENT_READ)

    def run(self) -> int:
        """Serve until a signal; 0, or 1 if a clock could not be given back and its record stays."""
        self._replay()
        audit("started", boards=sorted(self._boards))
        self._notifier.send(READY=1)
        resting_s = (self._notifier.watchdog_s or 60.0) / 3
        while True:
            for key, _ in self._selector.select(TICK_S if self._clients or self._retry_at_s is not None else resting_s):
                if key.fileobj is self._stopping:
                    return self._stop()
                if key.fileobj is self._listener:
                    self._accept()
                elif key.data in self._clients:
                    self._hear(key.data)
            self._look_at_time()
            self._notifier.send(WATCHDOG=1)

    def _stop(self) -> int:
        self._notifier.send(STOPPING=1)
        for client in tuple(self._clients):
            self._part(client, "the helper ends")
        deadline_s = time.monotonic() + 10.0  # longest wait at the end for a driver that refuses [s]
        while self._retry_at_s is not None and time.monotonic() < deadline_s:
            time.sleep(TICK_S)
            self._replay()
        audit("ended", given_back=self._retry_at_s is None)
        return 0 if self._retry_at_s is None else 1

    def _look_at_time(self) -> None:
        """Ends leases that have exceeded their time."""
        now_s = time.monotonic()
        if self._retry_at_s is not None and now_s >= self._retry_at_s:
            self._replay()
        for lease in tuple(self._leases.values()):
            if now_s - lease.begun_s > self._settings.lease_s:
                self._dismiss(lease.client, RefusedError("lease_over", f"no lease is longer than {self._settings.lease_s:g} s"))
            elif now_s - lease.looked_s > self._settings.look_s:
                self._look_again(lease)

    def _accept(self) -> None:
        """Accepts a new connection; closes it at once if there are too many."""
        try:
            end = self._listener.accept()[0]
            pid, uid = peer_of(end)
        except OSError:  # the client has gone again
            return
        end.setblocking(False)
        if uid not in self._users:  # a name is looked up once: the service behind it may be slow
            self._users[uid] = User(uid=uid, name=user_name(uid))
        user = self._users[uid]
        client = Client(end=end, pid=pid, user=user)
        if len(self._clients) >= 512 or sum(other.user is user for other in self._clients) >= MOST_CLIENTS_OF_USER:
            self._dismiss(client, RefusedError("too_many", "too many connections are open"))
        else:
            self._clients.add(client)
            self._selector.register(client.end, selectors.EVENT_READ, client)

    def _hear(self, client: Client) -> None:
        """Takes the received bytes, and answers each complete request."""
        try:
            came = client.end.recv(LONGEST_REQUEST)
        except OSError:
            came = b""
        if not came:
            self._part(client, "the client's connection ended")
            return
        *whole, client.incoming = (client.incoming + came).split(b"\n")
        try:
            for line in whole:
                if len(line) >= LONGEST_REQUEST:
                    raise OddMessageError("too_long", f"a request has at most {LONGEST_REQUEST} bytes")
                asked = request(line)
                if not client.user.may_ask(LOCK_COST if asked.do == "lock" else 1.0):
                    raise OddMessageError("too_fast", f"more than {REQUESTS_PER_S:g} requests a second of user {client.user.name}")
                self._answer(client, asked)
            if len(client.incoming) >= LONGEST_REQUEST:
                raise OddMessageError("too_long", f"a request has at most {LONGEST_REQUEST} bytes")
        except OddMessageError as error:
            self._dismiss(client, error)

    def _answer(self, client: Client, asked: Request) -> None:
        if client not in self._clients:  # the client did not accept an earlier answer
            return
        try:
            content = self._do(client, asked)
        except RefusedError as error:
            content = _refusal(error)
        if not client.send(content):
            self._part(client, "the client does not listen")

    def _do(self, client: Client, asked: Request) -> Reply:
        """The answer to a request.  Raises RefusedError."""
        lease = self._lease_of(client)
        if asked.do == "status":
            return {"ok": True, "boards": [{**asdict(self._boards[uuid]), "holder": self._holder(uuid)} for uuid in sorted(self._boards)]}
        if asked.do == "lock":
            self._lock(client, lease, asked.uuid, asked.sm_clock_mhz)
        elif lease is None:
            raise RefusedError("no_lease", "this connection holds no clock")
        elif not self._end(lease, "asked for"):
            raise RefusedError("not_given_back", "the driver refuses to give the clock back; the helper tries again every second")
        return {"ok": True}

    def _holder(self, uuid: str) -> str:
        """Who holds a board, for people; "" for nobody."""
        lease = self._leases.get(uuid)
        return f"process {lease.client.pid} of user {lease.client.user.name}" if lease else ""

    def _lock(self, client: Client, held: Lease | None, uuid: str, sm_clock_mhz: int) -> None:
        """Holds a clock: the rules, the audit log, the record, the driver, in this order.  Raises RefusedError."""
        allowed = self._boards.get(uuid)
        if allowed is None:
            raise RefusedError("board_not_allowed", f"board {uuid[:80]} is not in the helper's config; have root add it")
        if not allowed.lowest_mhz <= sm_clock_mhz <= allowed.highest_mhz:
            limits = f"{allowed.lowest_mhz} to {allowed.highest_mhz} MHz"
            raise RefusedError(
                "clock_not_allowed", f"SM clock {sm_clock_mhz} MHz is outside of {limits} that the helper's config allows; take another"
            )
        if held is not None and held.uuid != uuid:
            raise RefusedError("second_board", f"this connection holds the clock of {held.uuid}; open another for {uuid}")
        other = self._leases.get(uuid)
        if other is not None and other is not held:
            raise RefusedError("board_held", f"{self._holder(uuid)} holds the clock of {uuid}; wait until it has ended")
        try:
            with open_nvml() as library:
                device = library.device_of(uuid)
                if device is None:
                    raise RefusedError("board_not_here", f"the driver knows no board {uuid}")
                self._refuse_others(client, device.compute_processes())
                audit("lock", client, uuid=uuid, sm_clock_mhz=sm_clock_mhz)
                lease = held or self._begin(client, uuid)
                try:
                    device.lock_sm_clock(sm_clock_mhz)
                except CollectorError as error:
                    if held is None:
                        self._end(lease, "not locked", changed=not isinstance(error, ClockError))
                    raise
        except (CollectorError, OSError) as error:
            raise RefusedError("not_locked", str(error)) from error

    def _begin(self, client: Client, uuid: str) -> Lease:
        """A lease whose record is on disk.  Raises ClockError."""
        lock, now_s = take_board(self._folder, uuid), time.monotonic()
        lease = self._leases[uuid] = Lease(client=client, uuid=uuid, lock=lock, begun_s=now_s, looked_s=now_s)
        return lease

    def _look_again(self, lease: Lease) -> None:
        """Ends a lease if others compute on the board by now, because the lock would slow them down."""
        lease.looked_s = time.monotonic()
        try:
            with suppress(CollectorError), open_nvml() as library:  # a driver that does not answer now is tried again
                device = library.device_of(lease.uuid)
                if device is not None:
                    self._refuse_others(lease.client, device.compute_processes())
        except RefusedError as error:
            self._dismiss(lease.client, error)

    def _refuse_others(self, client: Client, processes: tuple[int, ...] | None) -> None:
        """Raises RefusedError if others compute on the board, or may: their work would be slowed down."""
        if self._settings.shared_boards:
            return
        if processes is None:
            raise RefusedError("board_shared", "the driver does not tell who computes on the board; see shared_boards in the config")
        for pid in processes:
            owner = None
            with suppress(OSError):
                owner = os.stat(f"/proc/{pid}").st_uid
            if owner != client.user.uid:
                raise RefusedError("board_shared", f"process {pid} of another user computes on the board; wait until it has ended")

    def _end(self, lease: Lease, why: str, *, changed: bool = True) -> bool:
        """Gives a clock back, if it was changed; False if the driver refuses: the record then stays for another attempt."""
        trouble = {}
        del self._leases[lease.uuid]
        try:
            if changed:
                reset_clock(lease.uuid)
            remove_record(self._folder, lease.uuid)
        except (CollectorError, OSError) as error:
            trouble = {"error": str(error)}
            self._retry_at_s = time.monotonic() + RETRY_S
        os.close(lease.lock)
        audit("not_given_back" if trouble else "given_back", lease.client, uuid=lease.uuid, why=why, **trouble)
        return not trouble

    def _replay(self) -> None:
        """Gives back clocks that a killed helper, or a driver that refused, left held."""
        self._retry_at_s = None
        for uuid, trouble in restore_left_clocks():
            if trouble:
                self._retry_at_s = time.monotonic() + RETRY_S
                self._notifier.send(STATUS=f"{uuid}: not given back: {trouble}")
            else:
                audit("given_back", uuid=uuid, why="left held")

    def _lease_of(self, client: Client) -> Lease | None:
        return next((lease for lease in self._leases.values() if lease.client is client), None)

    def _dismiss(self, client: Client, error: RefusedError) -> None:
        """Reports the error to a client, and closes its connection."""
        self._part(client, error.code, _refusal(error))

    def _part(self, client: Client, why: str, last: Reply | None = None) -> None:
        """Gives back a client's clocks, then closes: after the end of the connection the clock is back."""
        lease = self._lease_of(client)
        if lease is not None:
            self._end(lease, why)
        if last is not None:
            client.send(last)
        if client in self._clients:
            self._clients.remove(client)
            self._selector.unregister(client.end)
        client.end.close()


def _refusal(error: RefusedError) -> Reply:
    return {"ok": False, "error": error.code, "text": str(error)}


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """A socket that becomes readable on a signal to end."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    with reader, writer:
        signal.set_wakeup_fd(writer.fileno())
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda _number, _frame: None)
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(-1)


def main(arguments: list[str]) -> int:
    """The helper's process: `python -I -m collector.privileged.helper CONFIG`."""
    try:
        settings = read_settings(Path(arguments[0]))
        with _signals() as stopping, passed_socket(os.environ, settings.group_id) as listener:
            return Helper(settings, listener, stopping, Notifier(os.environ, os.getpid())).run()
    except CollectorError as error:
        sys.stderr.write(f"collect privileged serve: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

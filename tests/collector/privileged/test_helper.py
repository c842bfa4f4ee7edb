"""The helper locks what it may, for whom it may, and gives every clock back; the collector says what is wrong where that does not work."""

import ctypes
import itertools
import json
import os
import pwd
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from collector.devices.clock_helper import LeasedClock, helper_boards
from collector.devices.clock_record import left_records, record_path
from collector.errors import ClockHelperError
from collector.privileged.clients import LOCK_COST, REQUESTS_AT_ONCE, REQUESTS_PER_S
from collector.privileged.helper import MOST_CLIENTS_OF_USER
from collector.privileged.settings import HelperSettings, read_settings
from tests.collector.privileged.conftest import NAMES, SECOND, UNLISTED, UUID, Line, stopped
from tests.collector.steady import until
from tests.processes import COLLECT, PYTHON, ended, piped

PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_MDWE = 24, 38, 65
SYS_ADMIN, LAST_CAPABILITY = 21, 40

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


LOCK = {"do": "lock", "uuid": UUID, "sm_clock_mhz": 900}
LOCK_AND_UNLOCK = (LOCK, {"do": "unlock"})


def back(place, index=0):
    return place.boards.get("lock_high", index) == 0


def test_a_clock_is_locked_and_given_back_and_both_are_written_down(place, opened):
    helper = place.start()
    client = opened()
    assert client.lock(900)["ok"]
    assert (place.boards.get("lock_low"), place.boards.get("lock_high")) == (900, 900)
    assert [record.pid for record in left_records(place.state)] == [helper.pid], "a record is there before the clock is"
    assert client.lock(1410)["ok"]
    status = opened().ask(do="status")["boards"]
    assert [board["holder"] for board in status] == [f"process {os.getpid()} of user {pwd.getpwuid(os.getuid()).pw_name}", ""]
    assert client.ask(do="unlock")["ok"]
    assert back(place)
    assert left_records(place.state) == []
    assert client.ask(do="unlock")["error"] == "no_lease"
    assert stopped(helper) == 0
    events = [(event["event"], event.get("pid"), event.get("sm_clock_mhz")) for event in place.events()]
    mine = os.getpid()
    assert events[:4] == [("started", None, None), ("lock", mine, 900), ("lock", mine, 1410), ("given_back", mine, None)]
    assert events[-1][0] == "ended"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
def test_the_clock_comes_back_when_the_helper_is_told_to_end(how, place, opened):
    helper = place.start()
    first, second = opened(), opened()
    assert first.lock()["ok"]
    assert second.lock(uuid=SECOND)["ok"]
    assert stopped(helper, how) == 0
    assert back(place)
    assert back(place, 1)
    assert left_records(place.state) == []
    assert first.receive() is None


def test_a_clock_that_the_driver_does_not_take_back_is_tried_again(place, opened):
    helper = place.start()
    client = opened()
    assert client.lock()["ok"]
    place.boards.set(may_lock=0)
    assert client.ask(do="unlock")["error"] == "not_given_back"
    assert left_records(place.state), "the next helper would give it back"
    assert client.lock()["error"] == "not_locked", "until then nobody gets the board"
    place.boards.set(may_lock=1)
    until(lambda: back(place))
    until(lambda: left_records(place.state) == [])
    assert stopped(helper) == 0


def test_a_board_has_one_client_at_a_time(place, opened):
    place.start()
    first, second = opened(), opened()
    assert first.lock()["ok"]
    reply = second.lock(1200)
    assert reply["error"] == "board_held"
    assert str(os.getpid()) in reply["text"]
    assert second.ask(do="unlock")["error"] == "no_lease"
    assert place.boards.get("lock_high") == 900
    assert second.lock(uuid=SECOND)["ok"]
    assert second.lock()["error"] == "second_board", "a client has one lease"
    first.close()
    second.close()
    until(lambda: opened().lock()["ok"])


@pytest.mark.parametrize(
    "uuid, clock, code",
    [
        (UNLISTED, 900, "board_not_allowed"),
        (UUID, 509, "clock_not_allowed"),
        (UUID, 1411, "clock_not_allowed"),
    ],
    ids=NAMES.get,
)
def test_what_is_not_allowed_is_refused_and_changes_nothing(uuid, clock, code, place, opened):
    place.start()
    client = opened()
    assert client.lock(clock, uuid)["error"] == code
    assert place.boards.get("lock_calls") == 0
    assert client.lock()["ok"], "a refusal does not end the connection"


def test_who_computes_on_a_board_is_not_slowed_down_by_others(place, opened):
    place.boards.set(processes=1)
    helper = place.start()
    assert opened().lock()["error"] == "board_shared"
    stopped(helper)
    place.write_config(head="shared_boards = true")
    place.start()
    assert opened().lock()["ok"]


def test_without_a_record_no_clock_is_locked(place, opened):
    place.start()
    place.state.mkdir(mode=0o700)
    record_path(place.state, UUID).mkdir()
    assert opened().lock()["error"] == "not_locked"
    assert place.boards.get("lock_calls") == 0


ODD = [
    (b"garbage\n", "bad_json"),
    (b"[" * 1000 + b"\n", "bad_json"),
    (b'{"version": 1, "do": "lock", "uuid": "' + UUID.encode() + b'", "sm_clock_mhz": NaN}\n', "bad_json"),
    (b'{"version": 2, "do": "status"}\n', "bad_version"),
    (b'{"version": 1, "do": "power_limit"}\n', "bad_request"),
    (b'{"version": 1, "do": "status", "more": 1}\n', "bad_request"),
    (b'{"version": 1, "do": "lock", "uuid": "' + UUID.encode() + b'"}\n', "bad_request"),
    (b"x" * 1024 + b"\n", "too_long"),
    (b"x" * 100_000, "too_long"),
]


def test_anything_odd_ends_the_connection_with_a_named_error_and_the_lease_with_it(place, opened):
    place.start()
    for sent, code in ODD:
        client = opened()
        assert client.lock()["ok"], code
        client.send(sent)
        reply = client.receive()
        while reply is not None and reply["ok"]:
            reply = client.receive()
        assert reply is not None, sent[:80]
        assert reply["error"] == code, sent[:80]
        assert reply["text"]
        assert client.receive() is None
        until(lambda: back(place), str(sent[:80]))


def test_who_begins_to_compute_on_a_board_ends_the_lock_of_another(place, opened):
    place.write_config(head="look_s = 0.3")
    place.start()
    client = opened()
    assert client.lock()["ok"]
    place.boards.set(processes=1)
    reply = client.receive()
    assert reply["error"] == "board_shared"
    assert back(place)
    assert client.receive() is None


def test_a_flood_of_one_user_is_bounded_and_stops_no_other(place, opened):
    """Connections and requests count by user, whatever the number of connections."""
    place.start()
    began_s = time.monotonic()
    held = [opened() for _ in range(MOST_CLIENTS_OF_USER)]
    for line in held:
        assert line.ask(do="status")["ok"]
    reply = opened().receive()
    assert reply["error"] == "too_many"
    greedy = held.pop()
    requests = itertools.cycle(LOCK_AND_UNLOCK)
    while (reply := greedy.ask(**next(requests)))["ok"]:
        pass
    assert reply["error"] == "too_fast"
    assert held.pop().lock()["error"] == "too_fast", "another connection of that user has no more"
    if os.geteuid() == 0:
        assert as_foreigner(place.socket, [place.socket.stat().st_gid])["ok"], "another user has all of it"
    until(lambda: back(place))
    lasted_s = time.monotonic() - began_s
    written = [event["event"] for event in place.events()]
    assert written.count("lock") <= 1 + (REQUESTS_AT_ONCE + lasted_s * REQUESTS_PER_S) / LOCK_COST


CLIENTS = 24


def connect_without_end(path, told):
    """What a process does that wants to keep others out; as another member of the socket's group where this is root."""
    if os.geteuid() == 0:
        os.setgroups([path.stat().st_gid])
        os.setuid(65534)
    while True:
        with socket.socket(socket.AF_UNIX) as end:
            end.setblocking(False)
            if end.connect_ex(str(path)):
                with suppress(BlockingIOError):
                    os.write(told, b"full")


def test_a_helper_that_was_held_up_answers_all_whoever_fills_its_queue(place, monkeypatch):
    helper = place.start()
    monkeypatch.setenv("WATTPRINT_CLOCKS_SOCKET", str(place.socket))
    helper.send_signal(signal.SIGSTOP)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    child = os.fork()
    if child == 0:
        try:
            connect_without_end(place.socket, writing)
        finally:
            os._exit(1)
    try:
        assert os.read(reading, 4) == b"full"
        with ThreadPoolExecutor(CLIENTS) as pool:
            asked = [pool.submit(helper_boards) for _ in range(CLIENTS)]
            assert not any(one.done() for one in asked)
            helper.send_signal(signal.SIGCONT)
            assert {len(one.result()) for one in asked} == {2}
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)


def as_foreigner(path, groups):
    """What a process of the user nobody, with these further groups, is told when it asks for a clock."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(groups)
            os.setgid(65534)
            os.setuid(65534)
            try:
                line = Line(path)
                line.request(**LOCK)
                told = line.receive()
            except PermissionError:
                told = {"error": "no way in"}
            os.write(writing, json.dumps(told).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as end:
        said = json.loads(end.read())
    os.waitpid(child, 0)
    return said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_members_of_the_sockets_group_may_lock_and_nobody_else(place):
    place.write_config(group="daemon")
    place.start()
    inside = place.socket.stat().st_gid
    assert as_foreigner(place.socket, [])["error"] == "no way in"
    assert place.boards.get("lock_calls") == 0
    assert as_foreigner(place.socket, [inside])["ok"]
    until(lambda: back(place))
    locked = next(event for event in place.events() if event["event"] == "lock")
    assert (locked["uid"], locked["user"]) == (65534, pwd.getpwuid(65534).pw_name), "by the kernel's word"


def confined():
    """Between fork and exec: one capability, no new privilege, no memory that is both written and executed (Linux 6.3)."""
    system = ctypes.CDLL(None)
    for capability in range(LAST_CAPABILITY + 1):
        if capability != SYS_ADMIN:
            system.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    system.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    system.prctl(PR_SET_MDWE, 1, 0, 0, 0)


def test_the_helper_works_as_confined_as_the_unit_makes_it(place, opened):
    helper = place.start(preexec_fn=confined)
    client = opened()
    assert client.lock(900)["ok"]
    assert place.boards.get("lock_high") == 900
    assert stopped(helper) == 0
    assert back(place)


def test_the_packaged_settings_are_the_defaults(repository, place):
    text = (repository / "packaging" / "clocks.toml").read_text()
    place.config.write_text(text.replace('"wattprint-clocks"', '"root"'))
    settings = read_settings(place.config)
    assert settings == HelperSettings(group="root", boards=settings.boards)


HOLDER = """
import sys
from collector.devices.nvml import open_board
from collector.errors import ClockError
with open_board("0") as board:
    for line in sys.stdin:
        try:
            if line.startswith("lock"): board.gpu.lock_clock_mhz(float(line.split()[1]))
            elif line.startswith("unlock"): board.gpu.unlock_clock()
            elif line.startswith("clocks"): print(board.gpu.supported_clocks_mhz()[0], end=" ")
            else: board.gpu.state()
            print("done", flush=True)
        except ClockError as error:
            print(error, flush=True)
"""


def without_right(place):
    """The environment of a process to which the driver refuses clocks."""
    own = {"WATTPRINT_STATE": str(place.folder / "own"), "WATTPRINT_CLOCKS_SOCKET": str(place.socket)}
    return {**place.environment, **own, "WATTPRINT_NVML_STUB_NO_RIGHT": "1"}


def give_up_the_right():
    """Between fork and exec: root's children have no CAP_SYS_ADMIN either."""
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, SYS_ADMIN, 0, 0, 0)


class Holder:
    """A process of the collector that does to a board what it is told."""

    def __init__(self, place, script=HOLDER):
        self.process = piped(*PYTHON, script, env=without_right(place), preexec_fn=give_up_the_right)
        place.processes.append(self.process)

    def tell(self, order):
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


def command_output(place, *words):
    done = ended(*COLLECT, *words, "--json", env=without_right(place), preexec_fn=give_up_the_right)
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout)


def test_a_process_without_the_right_holds_a_clock_through_the_helper(place):
    helper = place.start()
    holder = Holder(place)
    assert holder.tell("clocks") == "510.0 done", "only clocks that the helper may lock are offered"
    assert holder.tell("lock 900") == "done"
    assert place.boards.get("lock_high") == 900
    assert left_records(place.folder / "own") == [], "the clock is not this process's to give back"
    assert holder.tell("lock 1200") == "done"
    assert place.boards.get("lock_high") == 1200
    assert "is outside of 510 to 1410 MHz" in holder.tell("lock 1800")
    assert holder.tell("unlock") == "done"
    assert back(place)
    assert holder.tell("lock 900") == "done"
    holder.process.kill()
    until(lambda: back(place))
    assert stopped(helper) == 0


def helper_is_killed(place, helper):
    """The clock stays where it is until the next helper starts."""
    stopped(helper, signal.SIGKILL)
    place.start()


def lease_runs_out(place, _helper):
    """It has begun with the first clock, and no later one makes it longer."""
    until(lambda: place.events()[-1].get("why") == "lease_over")


@pytest.mark.parametrize("loss, limits", [(helper_is_killed, ""), (lease_runs_out, "lease_s = 2.0")])
def test_every_request_names_a_lost_lease_and_another_lease_works(loss, limits, place):
    """What a campaign makes of a clock that it loses, tests/collector/interruption looks at."""
    place.write_config(head=limits)
    helper, holder = place.start(), Holder(place)
    assert holder.tell("lock 1200") == holder.tell("lock 900") == "done"
    loss(place, helper)
    for order in ("look", "lock 1200"):
        said = holder.tell(order)
        assert "the clock helper has given the clock" in said
        assert "--resume goes on" in said
    assert back(place)
    assert left_records(place.state) == []
    assert holder.tell("unlock") == holder.tell("lock 900") == "done"


def test_without_a_helper_the_drivers_refusal_and_the_way_out_are_told(place):
    said = Holder(place).tell("lock 900")
    assert "needs root" in said
    assert "docs/how-to/lock-clocks-without-root.md" in said


def answering(place, *replies):
    """Something else that listens where the helper should."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(place.socket))
    listener.listen()

    def answer():
        while True:
            try:
                end, _ = listener.accept()
            except OSError:
                return
            with end:
                for reply in replies:
                    end.recv(4096)
                    end.sendall(reply)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    return listener, thread


@pytest.mark.parametrize(
    "reply, words",
    [
        (b"", "has gone"),
        (b'{"version": 7, "ok": true}\n', "no clock helper of this release"),
        (b"x" * 70_000, "no clock helper of this release"),
        (b'{"version": 1, "ok": false, "error": "board_not_allowed", "text": "no"}\n', "board_not_allowed"),
    ],
)
def test_whatever_answers_instead_is_named(reply, words, place, monkeypatch):
    listener, thread = answering(place, reply)
    monkeypatch.setenv("WATTPRINT_CLOCKS_SOCKET", str(place.socket))
    try:
        with pytest.raises(ClockHelperError, match=words):
            LeasedClock(UUID, 900.0)
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def test_the_command_starts_the_helper_in_its_own_process(place, opened):
    words = f"-m collector.cli privileged serve --config {place.config}".split()
    helper = place.start(sys.executable, *words)
    assert opened().lock()["ok"]
    assert left_records(place.state)[0].pid == helper.pid
    loaded = Path(f"/proc/{helper.pid}/maps").read_text()
    assert "numpy" not in loaded
    assert "collector.privileged.helper" in Path(f"/proc/{helper.pid}/cmdline").read_text()
    assert stopped(helper) == 0
    shown = command_output(place, "privileged", "serve", "--config", str(place.config), "--check")
    assert shown["boards"][0] == {"uuid": UUID, "lowest_mhz": 510, "highest_mhz": 1410}

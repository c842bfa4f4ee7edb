"""The collector has the helper lock clocks where it may not, and says what is wrong where that does not work."""

import ctypes
import json
import signal
import socket
import sys
import threading
from pathlib import Path

import pytest

from collector.devices.clock_helper import LeasedClock
from collector.devices.clock_record import left_records
from collector.errors import ClockHelperError
from tests.collector.privileged.conftest import UUID, stopped
from tests.collector.steady import until
from tests.processes import COLLECT, PYTHON, ended, piped

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

PR_CAPBSET_DROP = 24
SYS_ADMIN = 21


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
    assert place.boards.get("lock_high") == 0
    assert holder.tell("lock 900") == "done"
    holder.process.kill()
    until(lambda: place.boards.get("lock_high") == 0)
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
    assert place.boards.get("lock_high") == 0
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

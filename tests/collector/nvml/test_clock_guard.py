"""Clocks come back: from an end in order, from a kill at any moment, from a process that died long ago."""

import json
import os

import pytest

from collector.devices.clock_record import ClockRecord, acquire_board, boot_id, left_records, record_path, write_record
from collector.errors import ClockError
from tests.collector.nvml.stub import GPU_LOST, Boards, board_uuid, collect
from tests.collector.steady import DEADLINE_S, until
from tests.processes import PYTHON, piped

UUID = board_uuid()

HOLDER = """
import sys, time
from collector.devices.nvml import open_board
with open_board("0") as board:
    print("open", flush=True)
    for clock in range(400, 1900, 15):
        board.gpu.lock_clock_mhz(clock)
        if len(sys.argv) > 1: time.sleep(float(sys.argv[1]))
    board.gpu.unlock_clock()
    print("back", flush=True)
    sys.stdin.read()
"""


def test_one_process_at_a_time_holds_a_board(environment, boards):
    holder = piped(*PYTHON, HOLDER, 600, env=environment)
    until(lambda: boards.get("lock_high") > 0)
    second = piped(*PYTHON, HOLDER, env=environment)
    _, errors = second.communicate(timeout=DEADLINE_S)
    assert f"process {holder.pid} holds the clock" in errors
    assert (boards.get("lock_calls"), boards.get("reset_calls")) == (1, 0), "the second one leaves the first one's clock alone"
    holder.kill()
    holder.communicate(timeout=DEADLINE_S)


@pytest.mark.parametrize(
    "boot, may_lock, alive, resets, left",
    [
        pytest.param("", 1, False, 1, 0, id="a dead process left it"),
        pytest.param("", 0, False, 0, 1, id="the driver refuses"),
        pytest.param("another", 1, False, 0, 0, id="the machine was started anew"),
        pytest.param("", 1, True, 0, 1, id="its process lives"),
    ],
)
def test_restore_gives_back_what_a_dead_process_left_and_nothing_else(boot, may_lock, alive, resets, left, environment, boards, tmp_path):
    folder = tmp_path / "state"
    held = acquire_board(folder, UUID)
    if not alive:
        os.close(held)
    write_record(folder, ClockRecord(gpu_uuid=UUID, pid=1, boot_id=boot or boot_id()))
    boards.set(may_lock=may_lock, lock_high=900)
    ended = collect(environment, "clocks restore --json")
    document = json.loads(ended.stdout)
    assert (ended.returncode, list(document["failed"])) == ((0, []) if may_lock else (1, [UUID]))
    assert (document["restored"] == [UUID]) == (boot == "another" or bool(resets))
    assert (boards.get("reset_calls"), len(left_records(folder))) == (resets, left)
    if alive:
        os.close(held)


def test_a_lost_board_keeps_no_other_from_getting_its_clock_back(environment, tmp_path):
    boards = Boards(tmp_path / "boards", count=2)
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    second = UUID.replace("abc00000", "abc00001")
    for uuid in (UUID, second):
        write_record(folder, ClockRecord(gpu_uuid=uuid, pid=1, boot_id=boot_id()))
    boards.set(0, fail_all=GPU_LOST, lock_high=900)
    boards.set(1, lock_high=900)
    ended = collect(environment, "clocks restore --json")
    assert ended.returncode == 1
    document = json.loads(ended.stdout)
    assert (document["restored"], list(document["failed"])) == ([second], [UUID])
    assert boards.get("lock_high", 1) == 0
    assert [record.gpu_uuid for record in left_records(folder)] == [UUID]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"gpu_uuid": "../../etc", "pid": 1, "boot_id": ""}', b"\xff\xfe"])
def test_a_record_that_nobody_wrote_whole_is_none(content, tmp_path):
    record_path(tmp_path, UUID).write_bytes(content)
    assert left_records(tmp_path) == []


@pytest.mark.parametrize("uuid", ["", "GPU-a/b"])
def test_a_record_has_the_name_of_a_board(uuid, tmp_path):
    with pytest.raises(ClockError, match="no UUID"):
        record_path(tmp_path, uuid)

"""The NVML backend on a stand-in for the driver, and clocks that come back: from an end, from a kill, from a process that died long ago."""

import json
import os

import numpy as np
import pynvml
import pytest

from collector.bench import open_bench
from collector.boards import named_boards
from collector.commands.listings import devices
from collector.devices.clock_record import ClockRecord, acquire_board, boot_id, left_records, record_path, write_record
from collector.devices.nvml import board_addresses, open_board
from collector.devices.nvml_library import open_nvml
from collector.devices.voltage import voltage_in
from collector.errors import BoardLostError, ClockError, DeviceError, DriverError
from collector.sampling import Sampler
from tests.collector.nvml.stub import (
    GPU_LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    PRODUCTS,
    RESET_REQUIRED,
    VERSION_MISMATCH,
    Boards,
    board_uuid,
    built,
    collect,
)
from tests.collector.steady import DEADLINE_S, until
from tests.processes import PYTHON, ended, piped

pytestmark = pytest.mark.usefixtures("driver")


@pytest.fixture
def board(boards):
    with open_board("0") as opened:
        yield opened


def test_a_board_says_who_it_is(board):
    identity = board.gpu.identity()
    assert (identity.name, identity.canonical_name) == ("NVIDIA H200", "h200-sxm")
    assert identity.uuid == board_uuid()
    assert identity.pci_address == "00000000:3b:00.0"
    assert (identity.driver, identity.compute_capability, identity.simulated) == ("570.86.15", "9.0", False)


@pytest.mark.parametrize("milliwatt, limit_w", [(700_000, 700.0), (0, np.nan)])
def test_a_power_limit_of_zero_is_an_unknown_one(boards, board, milliwatt, limit_w):
    boards.set(limit_mw=milliwatt)
    np.testing.assert_equal([board.gpu.power_limit_w(), board.gpu.state().power_limit_w], [limit_w] * 2)


def test_states_and_readings_are_what_the_driver_says(boards, board):
    boards.set(power_mw=345_678, sm_mhz=1755, temp_c=63, reasons=0x04)
    assert [readings.field for readings in board.sensor.read()] == ["instant"]
    powers, states = set(), set()

    def heard():
        powers.update(board.sensor.read()[0].power_w.tolist())
        found = board.gpu.read_states()
        states.update(zip(found.sm_clock_mhz, found.temperature_c, found.throttle_mask, strict=True))
        assert np.isnan(found.voltage_v).all() == (not board.gpu.voltage_readable()) or not found.voltage_v.size
        return 345.678 in powers and (1755.0, 63.0, 0x04) in states

    until(heard)


@pytest.mark.parametrize("kind", [0, 1, 2, 3, 4, 5, 99])
def test_a_power_is_read_in_the_type_that_the_driver_names_and_of_an_unknown_type_not_at_all(boards, kind):
    boards.set(power_mw=345_678, value_type=kind)
    with open_board("0") as opened:
        assert opened.sensor.fields() == (("usage",) if kind == 99 else ("instant",))
        until(lambda: kind == 99 or 345.678 in opened.sensor.read()[0].power_w)


@pytest.mark.parametrize(
    "settings, fields",
    [
        ({"module_mw": 500_000}, ("average",)),
        ({}, ("average",)),  # a driver that knows no scopes: the board's name tells
        ({"module_mw": 500_000, "average_mw": 0, "fail_usage": NOT_SUPPORTED}, ()),
        ({"fail_fields": NOT_SUPPORTED}, ("usage",)),
    ],
)
def test_the_module_of_a_gh200_is_never_taken_for_its_gpu(boards, settings, fields):
    boards.set(product=PRODUCTS.index("NVIDIA GH200 480GB"), power_mw=450_000, **settings)
    if not fields:
        with pytest.raises(DeviceError, match="average reads 0 W"), open_board("0"):
            pass
        return
    with open_board("0") as opened:
        assert opened.sensor.fields() == fields
        assert Sampler(opened.gpu, (opened.sensor,)).field == fields[0]
        assert any("whole module" in note for note in opened.sensor.notes)
        assert opened.sensor.read_energy() is None


@pytest.mark.parametrize(
    "product_names, said",
    [
        (None, "NVIDIA Unheard Of has no specification.*--gpu-spec FILE"),
        ('["Tesla M2075"]', "is of m2075, Tesla M2075; this board is NVIDIA Unheard Of"),
        ('["NVIDIA Unheard Of"]', "(?i)cupy"),  # the specification is taken; there is no card to run on
    ],
)
def test_a_board_takes_its_owners_specification(product_names, said, boards, repository, tmp_path):
    boards.set(product=PRODUCTS.index("NVIDIA Unheard Of"))
    spec = tmp_path / "own.toml"
    spec.write_text((repository / "examples" / "m2075.toml").read_text().replace('["Tesla M2075"]', product_names or "[]"))
    with pytest.raises(DeviceError, match=said), open_bench("0", gpu_spec=str(spec) if product_names else ""):
        pass


@pytest.mark.parametrize("code", [GPU_LOST, RESET_REQUIRED])
def test_a_lost_board_hides_no_other_and_says_what_to_do(code, tmp_path):
    Boards(tmp_path / "boards", count=3).set(1, fail_all=code)
    with open_nvml() as library:
        lost = board_addresses(library)[1]
    assert (lost.index, lost.uuid) == (1, "")
    for word in ("0", "2", board_uuid(2), "3d:00.0"):
        with open_board(word) as opened:
            assert opened.gpu.identity().name == "NVIDIA H200"
    with pytest.raises(BoardLostError, match="GPU 1.*restart the machine"), open_board("1"):
        pass
    with pytest.raises(BoardLostError, match="GPU 1.*name the other boards"):
        named_boards(("all",))
    assert len(named_boards(("0", "2"))) == 2
    refused = [document.refused for document in devices()[0] if not document.simulated]
    assert [bool(reason) for reason in refused] == [False, True, False]


def test_a_clock_that_was_held_is_given_back_at_once(boards):
    with open_board("0") as opened:
        opened.gpu.lock_clock_mhz(1500.0)
        assert (boards.get("lock_low"), boards.get("lock_high")) == (1500, 1500)
    assert (boards.get("lock_high"), boards.get("reset_calls")) == (0, 1)


@pytest.mark.parametrize(
    "code, reason",
    [(GPU_LOST, "fallen off the bus"), (RESET_REQUIRED, "must be reset"), (1, "driver was restarted"), (999, "failed: .*--resume")],
)
def test_a_lost_board_is_named_once_the_readings_before_are_taken(boards, code, reason):
    def lose():
        with open_board("0") as opened:
            until(lambda: boards.get("reads") > 5)
            boards.set(fail_all=code)
            until(lambda: opened.sensor.read()[0].power_w.size < 0)

    with pytest.raises(DeviceError, match=reason):
        lose()


@pytest.mark.parametrize(
    "code, reason", [(9, "not loaded"), (VERSION_MISMATCH, "restart the machine"), (NO_PERMISSION, "rights of /dev/nvidia")]
)
def test_a_driver_that_cannot_be_used_says_why(boards, code, reason):
    boards.set(fail_init=code)
    with pytest.raises(DriverError, match=reason), open_nvml():
        pass


@pytest.mark.parametrize("change, reason", [({"mig": 1}, "MIG"), ({"virtual": 2}, "vGPU"), ({"virtual": 3}, "vGPU")])
def test_a_board_whose_power_is_shared_is_refused(boards, change, reason):
    boards.set(**change)
    with pytest.raises(DeviceError, match=reason), open_board("0"):
        pass


def test_every_name_of_a_board_names_it(tmp_path):
    Boards(tmp_path / "boards", count=3)
    for word in (
        "2",
        board_uuid(2),
        board_uuid(2).replace("GPU", "gpu").replace("abc", "ABC"),
        "00000000:3D:00.0",
        "0000:3d:00.0",
        "3d:00.0",
        " 2 ",
    ):
        with open_board(word) as opened:
            assert opened.index == 2
    for word in ("3", "-1", "GPU-", "GPU-abc00002", "3d:00.1x", "MIG-abc", "", "nonsense"):
        with pytest.raises(DeviceError, match="boards:"), open_board(word):
            pass


OLD_DRIVER_SCRIPT = """
import json, time
from collector.devices.nvml import open_board
from collector.errors import ClockError
with open_board("0") as board:
    while not (readings := board.sensor.read()[0]).power_w.size: time.sleep(0.01)
    try: board.gpu.lock_clock_mhz(900.0); locked = "locked"
    except ClockError as error: locked = str(error)
    print(json.dumps([board.sensor.fields(), board.gpu.supported_clocks_mhz(), board.gpu.state().throttle_mask, locked]))
"""


def test_a_binding_that_is_older_than_a_call_is_used_as_far_as_it_goes(boards, monkeypatch):
    """A lent machine has the nvidia-ml-py that it has."""
    for name in ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetVirtualizationMode"):
        monkeypatch.delattr(pynvml, name)
    boards.set(temp_c=63, reasons=0x04)
    with open_board("0") as board:
        state = board.gpu.state()
    assert (state.temperature_c, state.throttle_mask) == (63.0, 0x04)


def test_an_old_driver_is_used_as_far_as_it_goes(boards, environment, tmp_path):
    environment["LD_LIBRARY_PATH"] = str(built(tmp_path, old_driver=True))
    boards.set(reasons=0x08)
    done = ended(*PYTHON, OLD_DRIVER_SCRIPT, env=environment)
    assert done.returncode == 0, done.stderr
    fields, clocks, mask, locked = json.loads(done.stdout)
    assert (fields, clocks, mask) == (["usage"], [], 0x08)
    assert "--freqs current" in locked


@pytest.mark.parametrize(
    "text, volt",
    [
        ("    Voltage\n        Graphics                          : 737.500 mV\n", 0.7375),
        ("    Graphics : N/A", None),
        ("", None),
        ("Graphics : x mV", None),
    ],
)
def test_the_voltage_is_read_where_it_is_shown(text, volt):
    assert voltage_in(text) == (None if volt is None else pytest.approx(volt))


WATCH = """
import json, sys
from collector.devices.nvml import open_board
with open_board("0") as board:
    for line in sys.stdin:
        print(json.dumps(board.gpu.state().other_processes), flush=True)
"""


def test_processes_that_come_later_are_seen_and_this_one_is_not(boards, environment):
    boards.set(processes=1)
    with piped(*PYTHON, WATCH, env=environment) as watcher:
        seen = []
        for count in (1, 2, 3, 0):
            boards.set(processes=count)
            watcher.stdin.write("now\n")
            watcher.stdin.flush()
            seen.append(json.loads(watcher.stdout.readline()))
        watcher.stdin.close()
        assert watcher.wait(300) == 0
    assert (seen[0], seen[3]) == ([5000000], [])
    assert 5000000 in seen[1], "in a container the second one may be this process; nobody can tell"
    assert {5000000, 5000002} <= set(seen[2])


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

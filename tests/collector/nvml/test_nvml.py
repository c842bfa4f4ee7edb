"""The NVML backend through the real binding, on a stand-in for the driver's library that the tests compile."""

import json

import numpy as np
import pynvml
import pytest

from collector.bench import open_bench
from collector.boards import named_boards
from collector.commands.listings import devices
from collector.devices.nvml import board_addresses, open_board
from collector.devices.nvml_library import open_nvml
from collector.devices.voltage import voltage_in
from collector.errors import BoardLostError, DeviceError, DriverError
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
)
from tests.collector.steady import until
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


@pytest.mark.parametrize("code, reason", [(GPU_LOST, "fallen off the bus"), (RESET_REQUIRED, "must be reset"), (1, "driver was restarted")])
def test_a_lost_board_is_named_once_the_readings_before_are_taken(boards, code, reason):
    def lose():
        with open_board("0") as opened:
            until(lambda: boards.get("reads") > 5)
            boards.set(fail_all=code)
            until(lambda: opened.sensor.read()[0].power_w.size < 0)

    with pytest.raises(BoardLostError, match=reason):
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

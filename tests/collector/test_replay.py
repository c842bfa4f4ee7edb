"""A recorded run is played back to the byte; anything else than the recorded calls is refused in one line."""

import gzip
import math
from dataclasses import replace

import numpy as np
import pytest

from collector.bench import open_bench
from collector.devices.protocols import PowerReadings
from collector.errors import BoardLostError, ClockError, DeviceError, RunnerError
from collector.replay.recording import FORMAT_VERSION, open_recording, plain, recorded_bench
from tests.words import called, refused, told

BOARD = "sim:a100-pcie-40gb"


@pytest.fixture(scope="module")
def recorded(tiny_file, sensor_file, tmp_path_factory):
    """A dataset, the recording of its run, and the options that both were made with."""
    folder = tmp_path_factory.mktemp("recorded")
    options = f"--freqs 900 --campaign {tiny_file} --sensor {sensor_file} --seed 1 --quiet"
    dataset, recording = folder / "first.parquet", folder / "run.recording"
    assert called(f"{options} --gpu {BOARD} --out {dataset} --record {recording}") == 0
    return dataset, recording, options


def test_recording_leaves_the_run_as_it_is_and_a_replay_gives_the_same_dataset_to_the_byte(recorded, tmp_path):
    dataset, recording, options = recorded
    for board in (f"replay:{recording}", BOARD):
        assert called(f"{options} --gpu {board} --out {tmp_path}/{board[:3]}.parquet") == 0
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {dataset.read_bytes()}
    assert sorted(path.name for path in dataset.parent.iterdir()) == ["first.parquet", "run.recording"]


def test_another_command_is_refused_with_the_first_difference(recorded, tmp_path):
    _, recording, options = recorded
    words = f"{options} --gpu replay:{recording} --families softmax --out {tmp_path}/other.parquet"
    assert "the command, the seed" in refused(1, "recorded was", words)


@pytest.mark.parametrize("share", [0.001, 0.3, 0.99])
def test_a_cut_recording_is_refused_and_loses_nothing(share, recorded, tmp_path):
    _, recording, options = recorded
    whole = recording.read_bytes()
    cut = tmp_path / "cut.recording"
    cut.write_bytes(whole[: int(share * len(whole))])
    _, err = told(f"{options} --gpu replay:{cut} --out {tmp_path}/cut.parquet", status=1)
    assert "cut.recording" in err.splitlines()[-1]
    assert not (tmp_path / "cut.parquet").exists()


@pytest.mark.parametrize(
    "content",  # a test has the same name in every process: the header carries no time
    [
        b"",
        b"not compressed",
        gzip.compress(b"", mtime=0),
        gzip.compress(b"[]\n", mtime=0),
        gzip.compress(b'{"format": "wattprint-recording", "version": 1}\n', mtime=0),
        gzip.compress(f'{{"format": "wattprint-recording", "version": {FORMAT_VERSION}}}\n'.encode(), mtime=0),
        gzip.compress(b"[" * 100_000, mtime=0),
    ],
)
def test_a_file_that_is_no_recording_is_refused(content, tmp_path):
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(DeviceError, match=r"x.*(record|update)"), open_recording(path):
        pass


@pytest.mark.parametrize("answer", ["{}", '{"value":"Unheard"}', '{"value":"EnergyReading"}', '{"number":"x"}', '{"whole":["a"]}'])
def test_a_damaged_answer_is_named_by_its_call(answer, recorded, tmp_path):
    header = gzip.decompress(recorded[1].read_bytes()).splitlines()[0].decode()
    path = tmp_path / "x"
    line = f'{{"device": "clock", "method": "now_ns", "answer": {answer}}}\n'
    path.write_bytes(gzip.compress(f"{header}\n{line}".encode()))
    with open_recording(path) as recorded, pytest.raises(DeviceError, match="call 2: clock now_ns has no usable answer"):
        recorded["clock"].now_ns()


def test_a_difference_is_named_by_every_later_call(recorded):
    """So that giving a clock back at the end hides nothing."""
    with open_recording(recorded[1]) as bench:
        board = bench["gpu"]
        with pytest.raises(DeviceError, match="asked is gpu power_limit_w") as first:
            board.power_limit_w()
        with pytest.raises(DeviceError) as later:
            board.unlock_clock()
        assert later.value is first.value


ERRORS = (RunnerError("a"), ClockError("b"), BoardLostError("c"), DeviceError("d"))


POWER_W = np.array([0.1, -math.inf, math.nan])
STAMPS_NS = np.array([-(2**62), 3, 2**62])


class Device:
    """A device of no protocol: what is recorded needs to know none."""

    def doubled(self, number):
        if number < 0:
            raise ERRORS[int(-number) - 1]
        return (number, 2.0 * number)

    def readings(self):
        return PowerReadings(field="instant", host_ns=STAMPS_NS, power_w=POWER_W)


def test_any_method_of_any_device_and_its_errors_are_recorded_and_played_back_to_the_bit(tmp_path):
    path = tmp_path / "x"
    with open_bench(BOARD) as bench, recorded_bench(replace(bench, clock=Device()), path) as recording:
        known = [recording.gpu.identity(), recording.sensors[0].fields(), *map(recording.clock.doubled, (np.int64(3), 0.1, math.inf))]
        recording.clock.readings()
        for number, error in enumerate(ERRORS, 1):
            with pytest.raises(type(error)):
                recording.clock.doubled(-number)
    with open_bench(f"replay:{path}") as played:
        assert [played.gpu.identity(), played.sensors[0].fields(), *map(played.clock.doubled, (3, 0.1, math.inf))] == known
        found = played.clock.readings()
        for column, wanted in ((found.host_ns, STAMPS_NS), (found.power_w, POWER_W)):
            assert column.dtype == wanted.dtype
            np.testing.assert_array_equal(column, wanted)
        for number, error in enumerate(ERRORS, 1):
            with pytest.raises(DeviceError) as caught:
                played.clock.doubled(-number)
            assert (type(caught.value), str(caught.value)) == (type(error), str(error))


def test_what_does_not_cross_the_edge_is_not_recorded():
    with pytest.raises(TypeError, match="does not cross"):
        plain(object())

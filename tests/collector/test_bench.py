"""Opening a bench: the only choice of backend."""

from contextlib import suppress

import pytest

from collector.bench import bench_words, open_bench, open_simulated
from collector.errors import BoardProfileError, ClockError, DeviceError
from collector.simulated.profile import board_names

REQUIRED = {"a100-pcie-40gb", "h200-sxm", "v100-pcie-32gb", "rtx-3090"}


def test_the_promised_simulated_boards_are_there():
    assert set(board_names()) >= REQUIRED
    assert set(bench_words()) >= {f"sim:{name}" for name in REQUIRED}


@pytest.mark.parametrize("word", ["4711", "GPU-1234abcd", "all", "", "00000000:FF:1F.0"])
def test_a_word_without_a_backend_is_refused_with_what_is_there(word):
    with pytest.raises(DeviceError, match=r"simulated boards: sim:a100-pcie-40gb|boards: "), open_bench(word):
        pass


@pytest.mark.parametrize("word", ["sim:", "sim:a200", "sim:no/such/file.toml"])
def test_a_profile_that_is_missing_is_refused(word):
    with pytest.raises(BoardProfileError), open_bench(word):
        pass


def test_the_meter_is_a_second_sensor():
    with open_bench("sim:rtx-3090", meter=True) as bench:
        assert [sensor.name() for sensor in bench.sensors] == ["nvml", "meter"]
    with open_bench("sim:rtx-3090") as bench:
        assert len(bench.sensors) == 1


def test_closing_gives_the_clock_back_whatever_happened():
    with suppress(ClockError), open_simulated("a100-pcie-40gb") as board:
        board.gpu.lock_clock_mhz(900.0)
        board.gpu.lock_clock_mhz(905.0)
    assert board.world.locked_mhz is None

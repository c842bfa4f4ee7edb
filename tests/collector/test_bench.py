"""Opening a bench: the only choice of backend, and profiles of simulated boards."""

from contextlib import suppress

import pytest

from collector.bench import open_bench, open_simulated
from collector.errors import BoardProfileError, ClockError, DeviceError
from estimator.vocabulary.resources import resource_folder
from tests.collector.dataset_rows import LINEAR


@pytest.mark.parametrize("word", ["4711", "GPU-1234abcd", "all", "", "00000000:FF:1F.0"])
def test_a_word_without_a_backend_is_refused_with_what_is_there(word):
    with pytest.raises(DeviceError, match=r"simulated boards: sim:a100-pcie-40gb|boards: "), open_bench(word):
        pass


@pytest.mark.parametrize("word", ["sim:", "sim:a200", "sim:no/such/file.toml"])
def test_a_profile_that_is_missing_is_refused(word):
    with pytest.raises(BoardProfileError), open_bench(word):
        pass


def test_closing_gives_the_clock_back_whatever_happened():
    with suppress(ClockError), open_simulated("a100-pcie-40gb") as board:
        board.gpu.lock_clock_mhz(900.0)
        board.gpu.lock_clock_mhz(905.0)
    assert board.world.locked_mhz is None


PROFILE = (resource_folder("simulated-boards") / "a100-pcie-40gb.toml").read_text()


def board_with(old, new, folder):
    """A profile in which a text is another one."""
    assert old in PROFILE
    path = folder / "board.toml"
    path.write_text(PROFILE.replace(old, new, 1))
    return f"sim:{path}"


@pytest.mark.parametrize(
    "old, new, place",
    [
        ("dram_pj_per_byte = 46.0", "", "energy lacks the field 'dram_pj_per_byte'"),
        ('kind = "low-pass"', 'kind = "high-pass"', "sensor.kind"),
        ("update_period_s = 0.1012", "update_period_s = 60.0", "sensor.update_period_s"),
        ("bf16 = 1.0", "bf17 = 1.0", "energy.tensor_precision_factor .*'bf17'"),
        ("sm_clock_mhz = [210, 1020", "sm_clock_mhz = [1020, 210", "clock.sm_clock_mhz"),
        ("load_line_ohm = 4e-5", "load_line_ohm = 1000", "board profile board: its (voltage|die) comes to"),
        ("sink_k_per_w = ", "sink_k_per_w = 1", "board profile board: its (voltage|die) comes to"),
    ],
)
def test_a_profile_that_cannot_be_is_refused_with_its_place_and_a_board_that_runs_away_too(old, new, place, tmp_path):
    with pytest.raises(BoardProfileError, match=place), open_bench(board_with(old, new, tmp_path), seed=1) as bench:
        bench.runner.run(bench.runner.prepare(LINEAR), 1000)

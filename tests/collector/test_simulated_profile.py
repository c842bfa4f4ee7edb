"""Profiles of simulated boards: what is wrong is refused with its place."""

import pytest

from collector.bench import open_bench
from collector.errors import BoardProfileError
from collector.simulated.profile import load_board
from estimator.vocabulary.resources import resource_folder
from tests.collector.dataset_rows import LINEAR


@pytest.fixture
def profile_text():
    return (resource_folder("simulated-boards") / "a100-pcie-40gb.toml").read_text(encoding="utf-8")


def written(folder, text):
    path = folder / "board.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("dram_pj_per_byte = 46.0", "", "energy lacks the field 'dram_pj_per_byte'"),
        ("dram_pj_per_byte = 46.0", "dram_pj_per_bite = 46.0", "energy has an unknown field 'dram_pj_per_bite'"),
        ("dram_pj_per_byte = 46.0", "dram_pj_per_byte = -46.0", "energy.dram_pj_per_byte"),
        ('kind = "low-pass"', 'kind = "high-pass"', "sensor.kind"),
        ("bf16 = 1.0", "bf17 = 1.0", "energy.tensor_precision_factor: 'bf17'"),
        ("sm_clock_mhz = [210, 1020", "sm_clock_mhz = [1020, 210", "clock.sm_clock_mhz"),
        ("[power]", "[power", "not valid TOML"),
    ],
)
def test_a_wrong_key_or_figure_is_refused_with_its_path(tmp_path, profile_text, old, new, place):
    assert old in profile_text
    with pytest.raises(BoardProfileError, match=place):
        load_board(written(tmp_path, profile_text.replace(old, new, 1)))


@pytest.mark.parametrize(("old", "new"), [("load_line_ohm = 4e-5", "load_line_ohm = 1000"), ("sink_k_per_w = ", "sink_k_per_w = 1")])
def test_a_board_that_runs_away_is_refused(tmp_path, profile_text, old, new):
    assert old in profile_text
    with (
        pytest.raises(BoardProfileError, match="board profile board: its (voltage|die) comes to"),
        open_bench(f"sim:{written(tmp_path, profile_text.replace(old, new, 1))}", seed=1) as bench,
    ):
        bench.runner.run(bench.runner.prepare(LINEAR), 1000)

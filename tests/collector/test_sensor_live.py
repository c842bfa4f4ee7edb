"""Characterising a board with loads of its own: what is run next, when it stops, what is published beside."""

from dataclasses import replace

import numpy as np
import pytest

from collector.bench import open_bench
from collector.sampling import Sampler
from collector.sensing.calibration import Kernel, SensorCalibration
from collector.sensing.catalogue import compared
from collector.sensing.decision import informative_ratio
from collector.sensing.live import CharacterisationGoal, characterise_sensor
from collector.sensing.live_load import partial_load
from collector.sensing.regression import Fit

PERIOD_S = 0.1
PLANNED_RUNS = 5


def fit(kernel: Kernel, width_s: float) -> Fit:
    step = np.array([60.0, 190.0])
    return Fit(
        kernel=kernel, width_s=width_s, delay_s=0.0, score=0.0, each=step, level=step, residual=step, predicted=step,
        noise_w=0.4, jitter_s=4e-4, explained=1.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "width_s", "good", "blind"),
    [
        ("boxcar", 0.010, (0.57, 2.3), 7.37),
        ("boxcar", 0.100, (1.2, 12.3), 0.91),
        ("low-pass", 0.025, (0.57, 4.7), 12.3),
        ("low-pass", 0.680, (4.7, 12.3), 0.91),
    ],
)
def test_the_next_load_is_one_that_tells_the_kernels_apart(kernel: Kernel, width_s: float, good: tuple[float, float], blind: float) -> None:
    """The informative periods of sensor-method.md 3: short ones for short windows, long ones for long windows."""
    chosen = informative_ratio(fit(kernel, width_s), PERIOD_S)
    assert good[0] <= chosen <= good[1]
    assert chosen != blind


@pytest.mark.parametrize("board", ["sim:a100-pcie-40gb", "sim:v100-pcie-32gb", "sim:h200-sxm"])
def test_a_partial_load_covers_the_share_that_its_grid_says(board: str) -> None:
    with open_bench(board) as bench:
        shares = []
        for wanted in (0.01, 0.2, 0.6, 0.8):
            found = partial_load(bench, wanted)
            assert found is not None
            assert found.share == pytest.approx(wanted, abs=0.03)
            assert found.share == pytest.approx(np.prod(found.prepared.grid) / bench.gpu_spec.num_sms)
            shares.append(found.share)
        assert shares == sorted(shares)


def test_levels_make_the_gain_sure(calibration: SensorCalibration) -> None:
    assert (calibration.gain_std or 1.0) < 0.004


def test_published_figures_stand_beside_with_their_doubts(calibration: SensorCalibration) -> None:
    assert "101.2 ms" in calibration.notes["catalogue"]
    assert "eight polls of 13 ms" in calibration.notes["catalogue"]
    assert compared(replace(calibration, update_period_s=0.02), "NVIDIA A100-PCIE-40GB").count("differs by -80%") == 1
    assert compared(calibration, "Unheard Of 9000") == ""


def test_loads_go_on_until_the_asked_error_is_reached() -> None:
    def characterised(goal: CharacterisationGoal) -> tuple[SensorCalibration, int]:
        with open_bench("sim:a100-pcie-40gb", seed=3) as bench:
            bench.gpu.lock_clock_mhz(900)
            found = characterise_sensor(bench, Sampler(bench.gpu, bench.sensors), goal=goal)
            return found.calibration, len(found.runs)

    stopped, runs = characterised(CharacterisationGoal(window_std_s=1e-6, longest_s=42.0))
    assert runs > PLANNED_RUNS
    assert "not reached" in stopped.notes["goal"]
    assert stopped.averaging == "low-pass"
    reachable = 1.01 * (stopped.window_std_s or 0.0)
    reached, fewer = characterised(CharacterisationGoal(window_std_s=reachable, longest_s=42.0))
    assert fewer <= runs
    assert (reached.window_std_s or 1.0) <= reachable
    assert "goal" not in reached.notes

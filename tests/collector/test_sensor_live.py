"""Characterising a board with loads of its own: what is run next, when it stops, what is published beside."""

from dataclasses import replace

import numpy as np
import pytest

from collector.bench import open_bench
from collector.sampling import Sampler
from collector.sensor.calibration import SensorCalibration
from collector.sensor.catalogue import compared
from collector.sensor.characterisation import CharacterisationGoal, characterise_sensor
from collector.sensor.kernel_fit import KernelFit
from collector.sensor.load_design import _lead, _width_std, best_ratio, square_wave
from collector.sensor.partial_load import partial_load

PERIOD_S = 0.1
PLANNED_RUNS = 5


def fit(kernel: str, width_s: float) -> KernelFit:
    nothing = np.zeros(3)
    return KernelFit(
        kernel=kernel,
        width_s=width_s,
        delay_s=0.0,
        noise_w=0.4,
        jitter_s=4e-4,
        drift=0.0,
        amplitude_w=nothing,
        score=0.0,
        terms=nothing,
        predicted_w=nothing,
        residual_w=nothing,
        r2=1.0,
    )


@pytest.mark.parametrize(
    ("kernel", "width_s", "good", "poor"),
    [
        ("boxcar", 0.010, 1.27, 7.0),
        ("boxcar", 0.025, 0.9, 12.0),
        ("boxcar", 0.100, 4.7, 0.9),
        ("low-pass", 0.025, 1.27, 12.0),
        ("low-pass", 0.680, 12.0, 0.9),
    ],
)
def test_informative_loads_lead_and_blind_ones_do_not(kernel: str, width_s: float, good: float, poor: float) -> None:
    other = fit("low-pass" if kernel == "boxcar" else "boxcar", width_s)
    pair = (fit(kernel, width_s), other)
    assert _lead(pair, PERIOD_S, 130.0, good) > 2.0 * _lead(pair, PERIOD_S, 130.0, poor)


def test_the_next_load_tells_the_width_better_than_most() -> None:
    pair = (fit("boxcar", 0.025), fit("low-pass", 0.025))
    chosen = best_ratio(pair, PERIOD_S, 130.0, undecided=False)
    errors = [_width_std(pair[0], PERIOD_S, 130.0, ratio) for ratio in (0.57, 1.27, 2.3, 4.7, 12.3)]
    assert _width_std(pair[0], PERIOD_S, 130.0, chosen) <= min(errors)


def test_a_planned_wave_is_never_locked() -> None:
    starts = square_wave(2.0 * PERIOD_S, 40).start_s
    place = np.sort(np.mod(starts, PERIOD_S) / PERIOD_S)
    assert np.max(np.diff(np.append(place, place[0] + 1.0))) < 0.15


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


def test_levels_tell_gain_without_a_bend(calibration: SensorCalibration) -> None:
    assert "7 levels" in calibration.notes["gain_levels"]
    assert "no bend" in calibration.notes["gain_levels"]
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

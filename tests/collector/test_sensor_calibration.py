"""Characterising a sensor: the clock is not fooled, the kernel is named where the record can tell, and nothing is invented."""

import json
from pathlib import Path

import numpy as np
import pytest

from collector.errors import SensorError
from collector.sensor.averaging import Averaging, fit_averaging
from collector.sensor.calibration import SensorCalibration, calibration_from_document, read_calibration
from collector.sensor.load import LoadStamps, load_shapes, pole
from collector.sensor.sources import load_source
from collector.sensor.update_clock import UpdateClock, Updates, fit_update_clock
from estimator.quantities import Array


def polls(period_s: float, poll_s: float, span_s: float, jitter_s: float, seed: int, skipped: float = 0.0) -> tuple[Array, Array]:
    """Polls of a sensor with a rigid, jittery update clock."""
    random = np.random.default_rng(seed)
    count = int(span_s / period_s) + 2
    update_s = random.uniform(0, period_s) + period_s * np.arange(count) + random.normal(0, jitter_s, count)
    kept = random.random(count) >= skipped
    update_s, value = update_s[kept], np.round(random.normal(100.0, 1.0, count), 2)[kept]
    time_s = np.cumsum(random.uniform(0.8, 1.3, int(span_s / poll_s)) * poll_s)
    time_s = time_s[(time_s < span_s) & (time_s > update_s[0])]
    return time_s, value[np.searchsorted(update_s, time_s, side="right") - 1]


@pytest.mark.parametrize(("period_ms", "poll_ms"), [(101.2, 13), (101.2, 8), (99.97, 7), (31.0, 5), (20.04, 7), (15.41, 2)])
def test_the_period_is_the_sensors_not_the_polls(period_ms: float, poll_ms: float) -> None:
    time_s, value = polls(period_ms * 1e-3, poll_ms * 1e-3, 8.0, 3e-4, seed=int(period_ms + poll_ms), skipped=0.01)
    clock, updates = fit_update_clock(time_s, value)
    assert clock.period_s == pytest.approx(period_ms * 1e-3, abs=1e-4)
    assert abs(clock.period_s - period_ms * 1e-3) < 4.0 * clock.period_std_s
    assert clock.rigid
    assert np.all(np.diff(updates.number) >= 1)


def test_jitter_that_adds_up_is_no_grid() -> None:
    random = np.random.default_rng(2)
    update_s = np.cumsum(random.normal(0.020, 1e-3, 600))
    value = np.round(random.normal(100.0, 1.0, 600), 2)
    time_s = np.arange(0.05, 11.5, 0.005)
    clock, _ = fit_update_clock(time_s, value[np.searchsorted(update_s, time_s, side="right") - 1])
    assert not clock.rigid
    assert clock.period_s == pytest.approx(np.diff(update_s).mean(), abs=3.0 * clock.period_std_s + 1e-4)


def test_too_few_changes_and_polls_too_slow_are_refused() -> None:
    time_s = np.arange(0.0, 5.0, 0.01)
    with pytest.raises(SensorError, match="changes of the reading"):
        fit_update_clock(time_s, np.full(time_s.shape, 50.0))
    with pytest.raises(SensorError, match="every poll"):
        fit_update_clock(time_s, np.arange(len(time_s), dtype=np.float64))


def load_of(waves: list[tuple[float, float]], seed: int) -> LoadStamps:
    """Square waves (period, duration) one after the other, cycles a little different."""
    random = np.random.default_rng(seed)
    starts, ends, now = [], [], 1.0
    for period_s, duration_s in waves:
        until = now + duration_s
        while now < until:
            cycle = period_s * (1.0 + random.uniform(-0.015, 0.015))
            starts.append(now)
            ends.append(now + 0.5 * cycle)
            now += cycle
    return LoadStamps(start_s=np.array(starts), end_s=np.array(ends))


def read_through(load: LoadStamps, kernel: str, width_s: float, period_s: float, delay_s: float, seed: int) -> tuple[Array, Array]:
    """What polls show of a load through a sensor."""
    random = np.random.default_rng(seed)
    end_s = float(load.end_s[-1]) + 1.0
    shapes = load_shapes(load, end_s)
    power = 60.0 + 150.0 * (0.95 * shapes.shapes[0] + 0.05 * shapes.shapes[2])
    grid = shapes.origin_s + 5e-4 * (np.arange(len(power)) + 1.0)
    if kernel == "low-pass":
        seen = np.fft.irfft(np.fft.rfft(power) * pole(len(power), 0.5 * width_s), n=len(power))
    else:
        sums = np.cumsum(power) * 5e-4
        seen = (sums - np.interp(grid - width_s, grid, sums, left=0.0)) / width_s
    update_s = np.arange(0.2 + random.uniform(0, period_s), end_s, period_s)
    update_s += random.normal(0.0, 3e-4, len(update_s))
    value = np.round(0.96 * np.interp(update_s - delay_s, grid, seen) - 1.5 + random.normal(0.0, 0.6, len(update_s)), 2)
    time_s = np.arange(update_s[0] + 0.001, end_s, 0.0071)
    return time_s, value[np.searchsorted(update_s, time_s, side="right") - 1]


def by_load(clock: UpdateClock, updates: Updates, load: LoadStamps) -> Averaging:
    return fit_averaging(updates, load_source(load, float(updates.time_s[-1])), clock, load)


@pytest.mark.parametrize(("kernel", "width_s", "period_s"), [("low-pass", 0.025, 0.1012), ("boxcar", 1.05, 0.1)])
def test_the_kernel_is_named_and_its_width_found(kernel: str, width_s: float, period_s: float) -> None:
    load = load_of([(1.27 * period_s, 3.0), (2.3 * period_s, 2.5), (4.7 * period_s, 2.0), (3.0, 3.0)], seed=1)
    clock, updates = fit_update_clock(*read_through(load, kernel, width_s, period_s, 2e-3, seed=2))
    found = by_load(clock, updates, load)
    assert found.kind == ("trailing-mean" if width_s > 1.0 else kernel), found.reason
    best = found.best
    assert best.width_s == pytest.approx(width_s, abs=max(3.0 * best.width_std_s, 0.03 * width_s))


def test_a_lone_step_names_no_kernel() -> None:
    load = LoadStamps(start_s=np.array([3.0]), end_s=np.array([7.0]))
    clock, updates = fit_update_clock(*read_through(load, "boxcar", 0.1, 0.1, 0.0, seed=3))
    found = by_load(clock, updates, load)
    assert found.kind == "undetermined"
    assert "edges" in found.reason


def test_a_load_locked_to_the_updates_names_no_kernel() -> None:
    period_s = 0.1
    starts = 1.0 + 2.0 * period_s * np.arange(40)
    load = LoadStamps(start_s=starts, end_s=starts + period_s)
    clock, updates = fit_update_clock(*read_through(load, "boxcar", 0.025, period_s, 0.0, seed=4))
    found = by_load(clock, updates, load)
    assert found.kind == "undetermined"
    assert "locked" in found.reason


def test_the_planted_sensor_is_found_with_a_meter(calibration: SensorCalibration) -> None:
    assert calibration.averaging == "low-pass"
    assert calibration.tau_s == pytest.approx(0.0125, abs=0.0008)
    assert calibration.update_period_s == pytest.approx(0.1012, abs=1e-4)
    assert calibration.gain == pytest.approx(0.954, abs=3.0 * (calibration.gain_std or 0.0))
    assert calibration.offset_w == pytest.approx(-1.18, abs=3.0 * (calibration.offset_std_w or 0.0))
    assert calibration.transient == "instant"
    assert 0.02 < (calibration.settle_s or 0.0) < 0.2


def test_a_calibration_survives_json(calibration: SensorCalibration, tmp_path: Path) -> None:
    document = json.loads(json.dumps(calibration.document(), allow_nan=False))
    assert calibration_from_document(document).document() == calibration.document()
    contract = {
        "update_period_s", "averaging", "window_s", "tau_s", "window_std_s", "delay_s", "rise_time_s", "transient", "gain",
        "offset_w", "n_updates", "sampled_fraction", "notes",
    }  # fmt: skip
    assert contract <= document.keys()
    path = tmp_path / "sensor.json"
    path.write_text(json.dumps(document))
    assert read_calibration(path, calibration.gpu_uuid, calibration.driver).document() == calibration.document()
    for uuid, driver, reason in (("GPU-other", calibration.driver, "board"), (calibration.gpu_uuid, "1.0", "driver")):
        with pytest.raises(SensorError, match=reason):
            read_calibration(path, uuid, driver)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"gain": -1.0}, "gain"),
        ({"gain": "much"}, "gain"),
        ({"update_period_s": 0.0}, "update_period_s"),
        ({"averaging": "magic"}, "averaging"),
        ({"colour": 1}, "colour"),
        ({"n_updates": 1.5}, "n_updates"),
        ({"notes": "none"}, "notes"),
        ({"transient": "slow"}, "transient"),
        ({"window_s": float("inf")}, "window_s"),
    ],
)
def test_a_foreign_calibration_is_refused_by_key(calibration: SensorCalibration, change: dict[str, object], reason: str) -> None:
    with pytest.raises(SensorError, match=reason):
        calibration_from_document({**calibration.document(), **change})


def test_files_that_are_no_calibration_are_refused(tmp_path: Path) -> None:
    for name, content in (("a.json", "{"), ("b.json", "[1]"), ("c.json", "{}")):
        path = tmp_path / name
        path.write_text(content)
        with pytest.raises(SensorError, match=name):
            read_calibration(path, "", "")
    with pytest.raises(SensorError, match="cannot be read"):
        read_calibration(tmp_path / "none.json", "", "")

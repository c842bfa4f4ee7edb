"""Laws of the sensor's response and of taking it out again."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.correction.block_tridiagonal import factored, inverse_diagonal, solved
from collector.correction.deconvolution import deconvolve
from collector.correction.response import SensorResponse, interval_shares, possible_responses
from collector.correction.updates import board_updates
from collector.errors import SensorError
from tests.collector.made_readings import Made, made

KERNELS = st.sampled_from(["boxcar", "low-pass"])


@given(KERNELS, st.floats(2e-3, 0.3), st.floats(-0.01, 0.01), st.integers(1, 7), st.integers(0, 100))
def test_shares_of_adjoining_intervals_add_up(kernel: str, width_s: float, delay_s: float, bins: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    edges = 1.0 + np.cumsum(random.uniform(0.003, 0.2, 12))
    time_s = random.uniform(0.5, 4.0, 40)
    response = SensorResponse(kernel=kernel, width_s=width_s, delay_s=delay_s)
    parts = interval_shares(response, edges[:-1], edges[1:], bins, time_s)
    whole = interval_shares(response, edges[:1], edges[-1:], 1, time_s)
    assert parts.shape == (40, bins)
    assert parts.min() >= -1e-12
    assert parts.sum(axis=1) == pytest.approx(whole[:, 0], abs=1e-9)
    assert whole.max() <= 1.0 + 1e-9


@settings(max_examples=8)
@given(KERNELS, st.floats(5e-3, 0.2), st.integers(0, 50))
def test_shares_are_the_integral_of_the_weight(kernel: str, width_s: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    start = np.cumsum(random.uniform(0.05, 0.1, 6))
    end = start + random.uniform(0.01, 0.045, 6)
    time_s = random.uniform(0.0, 0.9, 5)
    response = SensorResponse(kernel=kernel, width_s=width_s, delay_s=1e-3)
    found = interval_shares(response, start, end, 2, time_s)
    age = (np.arange(100_000) + 0.5) * 1e-5
    weight = (age < width_s) / width_s if kernel == "boxcar" else np.exp(-2.0 * age / width_s) * 2.0 / width_s
    for row, u in zip(found, time_s, strict=True):
        then = u - 1e-3 - age
        index = np.searchsorted(start, then, side="right") - 1
        place = (then - start[np.maximum(index, 0)]) / (end - start)[np.maximum(index, 0)]
        on = (index >= 0) & (place < 1.0)
        for half in (0, 1):
            inside = on & (np.floor(2.0 * place) == half)
            assert row[half] == pytest.approx(float((weight * inside).sum() * 1e-5), abs=4e-3)


@given(st.integers(1, 5), st.integers(2, 6), st.integers(0, 1000))
def test_block_tridiagonal_algebra_is_that_of_dense_matrices(blocks: int, size: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    whole = np.zeros((blocks * size, blocks * size))
    for b in range(blocks - 1):
        part = random.normal(size=(3, 2 * size))
        whole[b * size : (b + 2) * size, b * size : (b + 2) * size] += part.T @ part
    whole += np.eye(blocks * size)
    diagonal = np.array([whole[b * size : (b + 1) * size, b * size : (b + 1) * size] for b in range(blocks)])
    beside = np.array([whole[b * size : (b + 1) * size, (b + 1) * size : (b + 2) * size] for b in range(blocks - 1)]).reshape(
        -1, size, size
    )
    matrix = factored(diagonal, beside)
    right = random.normal(size=(blocks, size))
    assert solved(matrix, right).ravel() == pytest.approx(np.linalg.solve(whole, right.ravel()))
    assert matrix.log_determinant == pytest.approx(np.linalg.slogdet(whole)[1])
    inverse = np.linalg.inv(whole)
    for b, block in enumerate(inverse_diagonal(matrix)):
        assert block == pytest.approx(inverse[b * size : (b + 1) * size, b * size : (b + 1) * size])


def a_recording(averaging: str, width_s: float, period_s: float, seed: int) -> Made:
    starts = np.array([0.7, 2.13, 3.0, 4.91, 6.6]) + 0.01 * seed
    return made(averaging, width_s, period_s, starts, 0.8, seed=seed, gain=1.0, offset_w=0.0)


@pytest.mark.parametrize(
    ("averaging", "width_s", "period_s"), [("boxcar", 0.1, 0.09997), ("low-pass", 0.106, 0.01541), ("boxcar", 1.1, 0.1)]
)
def test_energy_is_exact_where_averages_tile_time(averaging: str, width_s: float, period_s: float) -> None:
    deviations = []
    for seed in range(3):
        record = a_recording(averaging, width_s, period_s, seed)
        updates = board_updates(record.time_s, record.power_w, record.calibration)
        response = possible_responses(record.calibration).responses[0]
        start, end = 0.5, float(updates.time_s[-1]) - 0.1
        found = deconvolve(updates.time_s, updates.value, response, period_s, 0.3, start, end)
        true = float(record.energy_j(np.array([start]), np.array([end]))[0])
        assert found.well_posed
        assert found.energy_j == pytest.approx(true, rel=5e-3)
        deviations.append((found.energy_j - true) / found.energy_std_j)
        middle = slice(len(found.power_w) // 10, -len(found.power_w) // 10)
        mean = record.energy_j(found.edge_s[:-1], found.edge_s[1:]) / np.diff(found.edge_s)
        assert np.mean(np.abs(found.power_w - mean)[middle] < 2.5 * found.std_w[middle]) > 0.85
    assert math.sqrt(np.mean(np.square(deviations))) < 2.0


def test_a_slow_low_pass_is_sharpened() -> None:
    record = a_recording("low-pass", 0.106, 0.01541, 1)
    updates = board_updates(record.time_s, record.power_w, record.calibration)
    response = possible_responses(record.calibration).responses[0]
    found = deconvolve(updates.time_s, updates.value, response, 0.01541, 0.3, 0.0, 7.0)
    middle = 0.5 * (found.edge_s[1:] + found.edge_s[:-1])
    true = np.interp(middle, record.grid_s, record.true_w)
    read = np.interp(middle, updates.time_s, updates.value)
    assert np.sqrt(np.mean((found.power_w - true) ** 2)) < 0.6 * np.sqrt(np.mean((read - true) ** 2))
    assert found.resolution_s < 0.04


def test_what_a_sensor_did_not_see_is_uncertain() -> None:
    seen, unseen = a_recording("boxcar", 0.1, 0.1, 2), a_recording("boxcar", 0.025, 0.1, 2)
    stds = []
    for record in (seen, unseen):
        updates = board_updates(record.time_s, record.power_w, record.calibration)
        response = possible_responses(record.calibration).responses[0]
        stds.append(deconvolve(updates.time_s, updates.value, response, 0.1, 0.3, 0.5, 7.0).energy_std_j)
    assert stds[1] > 10.0 * stds[0]


def test_what_cannot_be_deconvolved_is_refused() -> None:
    response = SensorResponse(kernel="boxcar", width_s=5.0, delay_s=0.0)
    with pytest.raises(SensorError, match="updates"):
        deconvolve(np.array([1.0, 2.0]), np.array([1.0, 2.0]), response, 0.1, 0.3, 0.0, 2.0)
    with pytest.raises(SensorError, match="record for longer"):
        deconvolve(np.arange(8) * 0.1, np.arange(8.0), response, 0.1, 0.3, 0.0, 0.8)

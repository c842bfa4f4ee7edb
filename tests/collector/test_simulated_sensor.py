"""Laws of the simulated power sensor: update clock, window, gain, and what a poll shows."""

from dataclasses import replace

import numpy as np
import pytest

from collector.bench import open_simulated
from collector.simulated.board import SimulatedBoard
from collector.simulated.profile import board_names, load_board
from estimator.vocabulary.workload import make_operator

PRODUCT = make_operator("gemm", "linear", "fp16", batch=1, m=4096, n=4096, k=4096)

boards = pytest.mark.parametrize("name", board_names())


def quiet_board(name, **changes):
    """A board whose sensor has no noise and whose power follows the silicon at once."""
    profile = load_board(name)
    still = {"jitter_s": 0.0, "wander_s": 0.0, "noise_w": 0.0, "skip_share": 0.0, "quantum_w": 1e-6, "clock": "rigid"}
    sensor = replace(profile.sensor, **(still | changes))
    transient = replace(profile.transient, fast_time_s=1e-5, slow_share=0.0, creep_share=0.0)
    return SimulatedBoard(replace(profile, sensor=sensor, transient=transient), 0)


def drive(board, high_s, low_s, cycles):
    """A square wave of load."""
    board.gpu.lock_clock_mhz(board.gpu.supported_clocks_mhz()[20])
    prepared = board.runner.prepare(PRODUCT)
    launches = max(1, int(high_s / board.planted_latency_s(prepared, board.gpu.supported_clocks_mhz()[20])))
    for _ in range(cycles):
        board.runner.run(prepared, launches)
        board.clock.wait(low_s)


def changes_s(stamps, values):
    """Times of the polls at which the value was seen to change."""
    return stamps[1:][np.diff(values) != 0.0] * 1e-9


def true_power(board, end_s, profile):
    """The window's mean of the true power, by direct summation over a fine grid."""
    window_s, boxcar = profile.sensor.window_s, profile.sensor.kind == "boxcar"
    edges = np.arange(0.0, (window_s if boxcar else 6.0 * window_s) + 5e-5, 1e-4)
    energy = board.world.trace.energy_j((end_s[:, None] - edges).ravel()).reshape(len(end_s), -1)
    weights = np.ones(len(edges) - 1) if boxcar else np.exp(-2.0 * edges[1:] / window_s)
    return np.diff(-energy, axis=1) / 1e-4 @ (weights / weights.sum())


@boards
@pytest.mark.parametrize("change", [{}, {"delay_s": 0.02}], ids=["", "delayed"])
def test_a_value_is_gain_times_the_windowed_power_plus_offset(name, change):
    board = quiet_board(name, **change)
    board.sensor.read()
    drive(board, 0.137, 0.091, 12)
    sensor = board.world.profile.sensor
    reading = board.sensor.read()[0]
    updates = board.sensor._seen[0, -60:]
    values = board.sensor._seen[1, -60:]
    expected = sensor.gain * true_power(board, updates - sensor.delay_s, board.world.profile) + sensor.offset_w
    assert np.ptp(values) > 20.0
    assert values == pytest.approx(expected, abs=0.3)
    assert np.isin(np.round(reading.power_w[-20:], 6), np.round(values, 6)).all()


@boards
def test_values_change_once_an_update_period(name):
    with open_simulated(name) as board:
        board.sensor.read()
        drive(board, 0.11, 0.07, 200)
        reading = board.sensor.read()[0]
        period = load_board(name).sensor.update_period_s
        seen = changes_s(reading.host_ns, reading.power_w)
        assert np.median(np.diff(seen)) == pytest.approx(period, rel=0.35)
        assert len(seen) * period == pytest.approx(seen[-1] - seen[0], rel=0.05)


@boards
def test_readings_do_not_depend_on_how_often_they_are_fetched(name):
    def readings(fetches):
        with open_simulated(name, seed=5) as board:
            parts = []
            for number in range(8):
                drive(board, 0.11, 0.07, 3)
                if number >= 8 - fetches:
                    parts.append(board.sensor.read())
            return [b"".join(reading.power_w.tobytes() for reading in field) for field in zip(*parts, strict=True)]

    assert readings(8) == readings(1)


def test_the_average_field_trails_the_instant_one_by_half_a_second():
    with open_simulated("rtx-3090") as board:
        board.gpu.lock_clock_mhz(900.0)
        prepared = board.runner.prepare(PRODUCT)
        board.sensor.read()
        edge_ns = board.clock.now_ns()
        board.runner.run(prepared, int(4.0 / board.planted_latency_s(prepared, 900.0)))
        instant, average = board.sensor.read()
        top = average.power_w[-50:].mean()
        half = 0.5 * (average.power_w[0] + top)
        reached = (average.host_ns[np.argmax(average.power_w > half)] - edge_ns) * 1e-9
        assert 0.4 < reached < 0.8
        assert top == pytest.approx(instant.power_w[-50:].mean(), rel=0.01)
        assert (instant.host_ns[np.argmax(instant.power_w > half)] - edge_ns) * 1e-9 < 0.25


@boards
def test_the_meter_sees_the_energy_that_the_board_drew(name):
    with open_simulated(name) as board:
        board.meter.read()
        begin = board.clock.now_ns()
        drive(board, 0.3, 0.2, 6)
        samples = board.meter.read()[0]
        energy = board.true_energy_j(begin, board.clock.now_ns())
        seconds = (board.clock.now_ns() - begin) * 1e-9
        assert samples.power_w.mean() * seconds == pytest.approx(energy, rel=0.003)

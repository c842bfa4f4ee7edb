"""Boards at their power limit: what is stated there is what a board does whose power equation errs as stated."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from estimator import estimate, load_bundle, override_gpu, sweep
from estimator.model.power_limit import (
    CURVE_CLOCKS,
    BoardCurves,
    Held,
    Settled,
    curve_nodes,
    near_limit,
    ranges,
    std_of,
)
from estimator.vocabulary.gpu import ClockTable
from examples.gpt2_prefill import gpt2_prefill
from fitter.rows.selection import read_selection
from tests.estimator.estimating import unlimited

A100 = load_bundle("a100-pcie-40gb-eager")
HUNGRY = gpt2_prefill(32, 512)
GRID = A100.gpu.clocks_mhz()
DRAWS = 20_000
LIMIT_LN_STD = 0.0075
NAMES = ("sm_clock_mhz", "latency_s", "power_w", "energy_j")


def curves_of(latency_s, power_w):
    return BoardCurves(clock_mhz=GRID, latency_s=latency_s[None], power_w=power_w[None])


def curve_of(exponent, clocked):
    """Power ∝ f^exponent over idle, latency with a share `clocked` that follows the clock."""
    relative = GRID / 1410.0
    return curves_of(latency_s=0.02 * (clocked / relative + 1.0 - clocked), power_w=60.0 + 200.0 * relative**exponent)


def stated(curve, asked_mhz, limit_w, time_std, power_std):
    asked = np.array([[asked_mhz]])
    free_s, free_w = np.interp(asked, GRID, curve.latency_s[0]), np.interp(asked, GRID, curve.power_w[0])
    settled = curve.settled_mhz(0, limit_w, asked, free_w)
    point = Settled(
        asked_mhz=asked,
        free_s=free_s,
        free_w=free_w,
        clock_mhz=settled,
        latency_s=np.exp(curve.log_latency(0, settled, asked, free_s)),
        power_w=np.minimum(np.interp(settled, GRID, curve.power_w[0]), max(limit_w, float(curve.power_w[0, 0]))),
    )
    return point, ranges(point, curve, Held(limit_w, LIMIT_LN_STD), np.array([[time_std]]), np.array([[power_std]]))


def drawn(curve, asked_mhz, limit_w, time_std, power_std):
    """What boards do whose equations err: each holds its own limit at the clock that its own power allows."""
    generator = np.random.default_rng(7)
    of_power, of_limit, of_time = (generator.normal(0.0, std, DRAWS) for std in (power_std, LIMIT_LN_STD, time_std))
    asked, free_s, free_w = (np.full(DRAWS, np.interp(asked_mhz, GRID, column)) for column in (GRID, curve.latency_s[0], curve.power_w[0]))
    clock = curve.settled_mhz(0, limit_w * np.exp(of_limit - of_power), asked, free_w)
    latency = np.exp(curve.log_latency(0, clock, asked, free_s) + of_time)
    power = np.interp(clock, GRID, curve.power_w[0]) * np.exp(of_power)
    return {"sm_clock_mhz": clock, "latency_s": latency, "power_w": power, "energy_j": power * latency}


@pytest.mark.parametrize(
    "limit_w", [420.0, 290.0, 265.0, 255.0, 225.0, 150.0, 75.0, 30.0]
)  # 260 W without a limit, 61 W at the lowest clock
@pytest.mark.parametrize("time_std, power_std", [(0.05, 0.04), (0.03, 0.1), (0.2, 0.2)])
def test_stated_intervals_hold_nine_of_ten_boards_whose_equations_err_as_stated(limit_w, time_std, power_std):
    curve = curve_of(exponent=2.2, clocked=0.7)
    _, found = stated(curve, 1410.0, limit_w, time_std, power_std)
    truth = drawn(curve, 1410.0, limit_w, time_std, power_std)
    for name in NAMES:
        low, high = getattr(found, name)[:, 0, 0]
        below, above = np.mean(truth[name] < low * (1.0 - 1e-3)), np.mean(truth[name] > high * (1.0 + 1e-3))
        assert max(below, above) < 0.08, (name, below, above)
        if name in ("latency_s", "energy_j"):  # power and clock pile up at their ends, which intervals hold
            assert min(below, above) > 0.025, (name, below, above)


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), steep=st.floats(0.2, 3.0))
def test_a_clock_settles_where_a_board_does_that_tries_the_asked_one_and_then_its_own_below(seed, steep):
    random = np.random.default_rng(seed)
    asked = np.concatenate([random.choice(GRID, 5), random.uniform(GRID[0], GRID[-1], 5)])
    watt = 60.0 + 200.0 * (GRID / 1410.0) ** steep + np.cumsum(random.uniform(0.0, 3.0, len(GRID)))
    curve, asked_w = curves_of(1.0 / GRID, watt), np.interp(asked, GRID, watt)
    limits_w = random.uniform(20.0, 500.0, (10, 1))
    found = curve.settled_mhz(0, limits_w, asked, asked_w)
    for (limit,), row in zip(limits_w, found, strict=True):
        for clock, clock_w, settled in zip(asked, asked_w, row, strict=True):
            tried = [*zip(GRID[clock > GRID], watt[clock > GRID], strict=True), (clock, clock_w)]
            fitting = [i for i, (_, power) in enumerate(tried) if power <= limit]
            (low, low_w), above = tried[fitting[-1]] if fitting else (GRID[0], 0.0), tried[fitting[-1] + 1 :][:1] if fitting else []
            assert settled == pytest.approx(low + sum((limit - low_w) / (power - low_w) * (one - low) for one, power in above), rel=1e-12)
    assert_allclose(np.exp(curve.log_latency(0, found, asked, 1.0 / asked)), 1.0 / found, rtol=1e-3)


@given(st.floats(0.0, 0.3), st.floats(0.0, 0.3))
def test_far_from_the_limit_intervals_are_those_of_the_equations(time_std, power_std):
    point, found = stated(curve_of(2.0, 0.5), 900.0, 400.0, time_std, power_std)
    assert not near_limit(point.free_w, Held(400.0, LIMIT_LN_STD), np.array([[power_std]]))
    assert_allclose(std_of(point.latency_s, found.latency_s), point.latency_s * time_std, atol=1e-12)
    assert_allclose(std_of(point.power_w, found.power_w), point.power_w * power_std, atol=1e-12)
    energy_j = point.power_w * point.latency_s
    assert_allclose(std_of(energy_j, found.energy_j), energy_j * math.hypot(time_std, power_std), atol=1e-12)
    without = ranges(point, None, Held(400.0, LIMIT_LN_STD), np.array([[time_std]]), np.array([[power_std]]))
    assert all(np.array_equal(getattr(found, name), getattr(without, name)) for name in NAMES)


@pytest.mark.parametrize("step_mhz", [15.0, 300.0])
@pytest.mark.parametrize("cap_w", [120.0, 180.0])
def test_a_board_far_above_its_limit_holds_it_and_doubts_its_clock_however_coarse_its_clocks(step_mhz, cap_w):
    gpu = override_gpu(A100.gpu, {"sm_clock_step_mhz": step_mhz})
    answer = estimate(HUNGRY, A100, gpu=gpu, sm_clock_mhz=1410, power_cap_w=cap_w)[0]
    swept = sweep(HUNGRY, A100, gpu=gpu, sm_clock_mhz=1410, power_cap_w=cap_w)
    free = estimate(HUNGRY, unlimited(A100), sm_clock_mhz=answer.sm_clock_mhz)[0]
    assert answer.power_w == swept.power_w[0] == cap_w * A100.power.limit_share
    assert not swept.above_limit.any()
    assert answer.power_w_std == pytest.approx(cap_w * A100.power.limit_share_std, rel=0.05)
    assert answer.power_w_std < 0.8 * free.power_w_std
    assert answer.latency_s_std > free.latency_s_std
    assert answer.sm_clock_mhz_low < answer.sm_clock_mhz < answer.sm_clock_mhz_high < 1410
    assert answer.latency_s_low < answer.latency_s < answer.latency_s_high
    assert (free.sm_clock_mhz_low, free.sm_clock_mhz_high) == (free.sm_clock_mhz, free.sm_clock_mhz)


OTHERS = st.lists(st.floats(210.0, 1410.0), min_size=1, max_size=12)
FIELDS = tuple(name + end for name in NAMES for end in ("", "_low", "_high"))


@settings(max_examples=25)
@given(own=st.floats(210.0, 1410.0), others=OTHERS, cap=st.floats(20.0, 250.0), step=st.sampled_from([15.0, 170.0, 200.0]))
@example(own=1410.0, others=[737.0], cap=150.0, step=15.0)
@example(own=511.3, others=[510.9, 1400.1], cap=100.0, step=170.0)  # 8 clocks: with those asked for more than CURVE_CLOCKS
def test_no_answer_depends_on_which_other_clocks_are_asked(own, others, cap, step):
    gpu = override_gpu(A100.gpu, {"sm_clock_step_mhz": str(step)})
    alone = estimate(HUNGRY, A100, gpu=gpu, sm_clock_mhz=own, power_cap_w=cap)[0]
    clocks = [*others, own]
    beside = estimate(HUNGRY, A100, gpu=gpu, sm_clock_mhz=clocks, power_cap_w=cap)[-1]
    points = sweep(HUNGRY, A100, gpu=gpu, sm_clock_mhz=clocks, power_cap_w=cap)
    for name in FIELDS:
        assert_allclose([getattr(beside, name), getattr(points, name)[-1]], getattr(alone, name), rtol=1e-10, err_msg=name)


@given(st.integers(2, 200), st.floats(0.0, 1.0), st.floats(1.0, 8.0))
def test_times_at_a_few_clocks_tell_those_at_all(count, clocked, p):
    clocks = np.linspace(210.0, 1410.0, count)
    nodes, weights = curve_nodes(clocks)
    assert len(nodes) <= CURVE_CLOCKS

    def seconds(clocks):
        return ((clocked * 900.0 / clocks) ** p + (1.0 - clocked) ** p) ** (1.0 / p)

    assert_allclose(np.exp(weights @ np.log(seconds(nodes))), seconds(clocks), rtol=2e-2 if p > 3.0 else 2e-4)


@pytest.mark.parametrize("workload", [gpt2_prefill(1, 16), gpt2_prefill(1, 128), gpt2_prefill(8, 128), HUNGRY])
@pytest.mark.parametrize("bundle", [A100, load_bundle("a10-eager")])
@pytest.mark.parametrize("launch_s", [0.0, 3e-5, 1e-3])
def test_power_never_falls_with_a_higher_clock(workload, bundle, launch_s):
    points = sweep(workload, unlimited(bundle), sm_clock_mhz=bundle.gpu.clocks_mhz(), host_launch_s=launch_s)
    assert np.diff(points.power_w).min() >= -1e-9 * points.power_w.max()


@given(st.lists(st.floats(0.1, 100.0), min_size=1, max_size=30))
def test_a_table_without_dips_is_kept_and_dips_are_halved(values):
    clocks = tuple(200.0 + 15.0 * i for i in range(len(values)))
    table = ClockTable(sm_clock_mhz=clocks, value=tuple(values)).rising
    assert all(np.diff(table.value) >= 0.0)
    deepest = float(np.max(np.maximum.accumulate(values) - np.array(values)))
    assert np.abs(np.array(table.value) - np.array(values)).max() <= deepest + 1e-12
    assert table.rising.value == table.value


def test_throttled_runs_lie_in_the_stated_intervals_of_power_and_clock(shared_data):
    rows = read_selection([shared_data / "energaizer" / "a100_clocks.csv"]).workloads
    throttled = np.flatnonzero(rows.clock_mhz(A100.gpu) < rows.asked_clock_mhz(A100.gpu) - 10.0)
    rows = rows.select(throttled)
    answers = [
        estimate(workload, A100, sm_clock_mhz=float(clock))[0]
        for workload, clock in zip(rows.row_workloads(), rows.asked_clock_mhz(A100.gpu), strict=True)
    ]
    measured = {"power_w": rows.power_w, "sm_clock_mhz": rows.clock_mhz(A100.gpu), "latency_s": rows.latency_s}
    for name, values in measured.items():
        inside = [
            getattr(answer, f"{name}_low") <= value <= getattr(answer, f"{name}_high")
            for answer, value in zip(answers, values, strict=True)
        ]
        assert np.mean(inside) >= 0.7, name
    assert len(answers) == 15

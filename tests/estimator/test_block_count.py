"""Block-count models: the equations in three forms, and the bundle's section."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator import BundleError
from estimator.blocks.model import FORMS, BlockModel, model_key, models_from_section, occupancy_times, section_of

MODEL = BlockModel(
    kernel="vector_add_1024",
    block_threads=1024,
    num_sms=108,
    blocks_per_sm=2,
    sm_clock_mhz=900.0,
    times_s=np.array([4e-6, 1.2e-3, 0.9e-3]),
    overlap=2.0,
    time_covariance=np.diag([0.04, 1e-4, 4e-4, 0.01]),
    energies=np.array([0.15e-2, 12.0]),
    energy_covariance=np.diag([1e-10, 0.04]),
    static_w=41.0,
    static_std_w=0.1,
    slope_s=1.4e-5,
    intercept_s=5e-4,
    slope_j=2e-3,
    blocks=(54, 5000),
    rows=8,
    scatter={"occupancy": {"time": 0.002, "energy": 0.004}, "rounds": {"time": 0.14, "energy": 0.3}},
    tied=("start_s",),
)
GRIDS = st.integers(1, 2**31 - 1)


def test_a_round_is_as_long_as_its_fullest_sm():
    start, lone, share = MODEL.times_s
    one, two = math.hypot(lone, share), math.hypot(lone, 2 * share)
    expected = {1: one, 108: one, 109: two, 216: two, 217: two + one, 432: 2 * two, 325: two + one + (two - one)}
    assert MODEL.latency_s(list(expected)) == pytest.approx([start + time for time in expected.values()], rel=1e-12)
    sharp = replace(MODEL, overlap=1e3)
    assert sharp.latency_s([108, 216]) == pytest.approx([start + lone, start + 2 * share], rel=1e-3), "the longer of both"


def test_derivatives_are_those_of_the_times():
    grids = np.array([1.0, 150.0, 216.0, 500.0])
    at = MODEL.logarithms
    _, slopes = occupancy_times(grids, 108, 2, at)
    for place in range(4):
        step = np.zeros(4)
        step[place] = 1e-6
        above, below = (occupancy_times(grids, 108, 2, at + sign * step)[0] for sign in (1, -1))
        assert slopes[:, place] == pytest.approx((above - below) / 2e-6, rel=1e-4, abs=1e-9)


def test_the_published_forms_are_equations_1_to_7():
    grids = np.array([1, 108, 109, 1000])
    rounds = np.array([1, 1, 2, 10])
    assert MODEL.latency_s(grids, "linear") == pytest.approx(1.4e-5 * grids + 5e-4)
    assert MODEL.energy_j(grids, "linear") == pytest.approx(2e-3 * grids + 41.0 * (1.4e-5 * grids + 5e-4))
    assert MODEL.latency_s(grids, "rounds") == pytest.approx(1.4e-5 * 108 * rounds)
    assert MODEL.energy_j(grids, "rounds") == pytest.approx((2e-3 * 108 + 41.0 * 1.4e-5 * 108) * rounds)


@given(grid=GRIDS, form=st.sampled_from(FORMS))
def test_more_blocks_never_take_less(grid, form):
    pair = [grid, min(grid + 1, 2**31 - 1)]
    assert np.all(np.diff(MODEL.latency_s(pair, form)) >= 0)
    assert np.all(np.diff(MODEL.energy_j(pair, form)) >= 0)


def test_the_power_of_whole_rounds_is_the_rounds_power():
    grids = 216 * 9_000_000
    assert float(MODEL.energy_j(grids) / MODEL.latency_s(grids)) == pytest.approx(MODEL.round_power_w(), rel=1e-6)


def test_uncertainty_has_the_coefficients_and_the_scatter():
    exact = replace(MODEL, time_covariance=np.zeros((4, 4)), energy_covariance=np.zeros((2, 2)), static_std_w=0.0)
    assert exact.latency_std_s(216) == pytest.approx(0.002 * float(exact.latency_s(216)))
    assert exact.energy_std_j(216) == pytest.approx(0.004 * float(exact.energy_j(216)))
    assert MODEL.latency_std_s(216) > exact.latency_std_s(216)
    assert MODEL.energy_std_j(216) > exact.energy_std_j(216)
    quiet = replace(MODEL, scatter={})
    slopes = occupancy_times(np.array(216.0), 108, 2, MODEL.logarithms)[1]
    assert float(quiet.latency_std_s(216)) == pytest.approx(math.sqrt(float(np.diag(MODEL.time_covariance) @ slopes**2)), rel=1e-9)


def test_the_section_gives_every_model_back():
    bare = replace(MODEL, kernel="plain", energies=np.full(2, np.nan), static_w=math.nan, scatter={}, sm_clock_mhz=math.nan)
    section = json.loads(json.dumps(section_of([MODEL, bare]), allow_nan=False))
    models = models_from_section(section)
    assert set(models) == {"vector_add_1024/1024@900", "plain/1024"}
    again = models[model_key(MODEL)]
    assert json.dumps(section_of([again])) == json.dumps(section_of([MODEL]))
    assert not models["plain/1024"].has_power
    assert np.isnan(models["plain/1024"].energy_j(5))
    assert models_from_section({}) == {}


@pytest.mark.parametrize(
    "change", [{"times_s": [1.0, 2.0]}, {"times_s": [1.0, 2.0, 0.0]}, {"time_covariance": [[-1.0] * 4] * 4}, {"scatter": {"cubic": {}}}]
)
def test_a_section_that_does_not_fit_is_refused(change):
    section = section_of([MODEL])
    name = next(iter(section))
    with pytest.raises(BundleError, match="block_models"):
        models_from_section({name: {**section[name], **change}})

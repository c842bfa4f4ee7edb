"""A host at two paces: runs at the slow one leave the launch cost of the usual one as it is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator import load_gpu
from estimator.model.coefficients import CoefficientTable
from estimator.model.timeline import smooth_maximum
from estimator.vocabulary.quantities import HZ_PER_MHZ
from fitter.latency.runs import (
    MOST_SLOW,
    SHARE_RUNS,
    SLOW_PACE,
    SLOW_SHARE,
    fit_latency,
    prior_groups,
    run_kernels,
    run_seconds,
    shifted,
    slow_probability,
    slow_share,
)
from fitter.priors import HOST_LAUNCH
from tests.fitter.test_recovery import PLANTED_SHIFT, runs

NOISE = 0.01
FINITE = st.floats(min_value=0.0, max_value=1e6)


@pytest.fixture(scope="module")
def planted_rows():
    return runs()


def paced(rows, host_launch_s, slow_runs, ratio=SLOW_PACE, seed=0):
    """Latencies of `rows` become those of a host at `host_launch_s`, a share of them `ratio` times slower.  Share of runs it paces."""
    gpu = load_gpu(rows.gpus[0])
    groups, host = shifted(prior_groups(), PLANTED_SHIFT)
    kernels = run_kernels(rows.workloads, rows.workload_index, rows.clock_mhz(gpu) * HZ_PER_MHZ, gpu, groups)
    gpu_s, host_s = run_seconds(kernels, CoefficientTable(groups).vectors, host_launch_s)
    rng = np.random.default_rng(seed)
    pace = np.where(rng.random(len(rows)) < slow_runs, ratio, 1.0)
    rows.latency_s[:] = smooth_maximum(gpu_s, host_s * pace, host.overlap_exponent) * np.exp(NOISE * rng.standard_normal(len(rows)))
    return gpu, float(np.mean(host_s > 1.3 * gpu_s))


@pytest.mark.parametrize("host_launch_s", [20e-6, 36e-6, 45e-6, 60e-6])
@pytest.mark.parametrize("slow_runs", [0.0, 0.15, 0.35])
@pytest.mark.parametrize("ratio", [1.2, SLOW_PACE, 1.3])
def test_the_usual_pace_comes_back_whatever_share_of_runs_is_slow(planted_rows, host_launch_s, slow_runs, ratio):
    gpu, host_paced = paced(planted_rows, host_launch_s, slow_runs, ratio)
    assert host_paced > 0.15  # otherwise nothing is tested
    assert fit_latency(planted_rows, gpu).host.launch_s == pytest.approx(host_launch_s, rel=0.015)


def test_slow_runs_move_no_parameter_by_more_than_is_stated(planted_rows):
    gpu, _ = paced(planted_rows, 36e-6, 0.0)
    usual = fit_latency(planted_rows, gpu)
    paced(planted_rows, 36e-6, 0.3)
    moved = np.abs(fit_latency(planted_rows, gpu).log_shift - usual.log_shift)
    assert (moved < np.sqrt(np.diag(usual.covariance))).all()  # the launch cost by 18 of them if all runs had one pace


def test_few_runs_of_one_pace_are_taken_for_the_usual_one(planted_rows):
    gpu, _ = paced(planted_rows, SLOW_PACE * HOST_LAUNCH.centre, 0.0)  # what the slow pace of an ordinary host would be
    few = planted_rows.select(np.arange(0, len(planted_rows), 16))
    assert fit_latency(few, gpu).host.launch_s == pytest.approx(SLOW_PACE * HOST_LAUNCH.centre, rel=0.04)


@given(usual=st.lists(FINITE, min_size=1, max_size=5), slow=FINITE, share=st.floats(min_value=0.01, max_value=MOST_SLOW))
def test_a_run_is_slow_as_far_as_the_slow_pace_explains_it_better(usual, slow, share):
    cost = np.array([usual, [slow] * len(usual)])
    found = slow_probability(cost, share)
    assert ((found >= 0.0) & (found <= 1.0)).all()
    assert (found[cost[0] < cost[1]] <= share + 1e-12).all()
    assert (found[cost[0] > cost[1]] >= share - 1e-12).all()
    assert slow_probability(np.array([[slow], [slow]]), share) == pytest.approx(share)


@pytest.mark.parametrize("paced_runs", [0, 1, 10, 1000])
def test_the_share_of_slow_runs_starts_as_expected_and_stays_below_one_half(paced_runs):
    ones = np.ones(paced_runs)
    assert slow_share(0.0 * ones, ones) == pytest.approx(SLOW_SHARE * SHARE_RUNS / (paced_runs + SHARE_RUNS))
    assert slow_share(ones, ones) <= MOST_SLOW
    assert slow_share(ones, 0.0 * ones) == pytest.approx(SLOW_SHARE)  # runs that the GPU paces tell nothing

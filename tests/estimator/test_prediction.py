"""Laws of estimates: energy, limits, settings, other GPUs."""

import math
from dataclasses import replace

import pytest
from numpy.testing import assert_allclose

from estimator import estimate, load_bundle, load_gpu, sweep
from estimator.uncertainty.laboratory import HOST_STD, unknown_host
from estimator.vocabulary.quantities import NORMAL_90
from tests.estimator.synthetic import known_bundle, transformer

BIG = transformer(4096, 2048, 4)
SMALL = transformer(128, 256, 4)
BUNDLE = known_bundle(load_gpu("a100-pcie-40gb"))


def test_the_kernels_of_a_gpu_bound_workload_add_up_to_it():
    power = replace(BUNDLE.power, leakage_w_per_k=0.2, rest_c=35.0, operating_c=45.0, operating_k_per_w=0.1)
    leaking = replace(BUNDLE, power=power)
    workload = replace(BIG, operators=(replace(BIG.operators[0], origin="completed:rule"), *BIG.operators[1:]))
    answers = [estimate(workload, one, sm_clock_mhz=900, host_launch_s=0.0)[0] for one in (BUNDLE, leaking)]
    assert answers[1].power_w > answers[0].power_w
    for answer in answers:
        assert_allclose(sum(k.count * k.latency_s for k in answer.kernels), answer.latency_s, rtol=1e-9)
        assert_allclose(sum(k.count * k.energy_j for k in answer.kernels), answer.energy_j, rtol=1e-9)
        assert all(0.0 <= share <= 1.0 for kernel in answer.kernels for share in kernel.utilization.values())


def test_a_small_workload_waits_for_the_host():
    answer = estimate(SMALL, BUNDLE, sm_clock_mhz=1410)[0]
    launches = sum(o.host_share * c for o, c in zip(SMALL.operators, SMALL.counts, strict=True))
    assert_allclose(answer.latency_s, 30e-6 * launches, rtol=0.02)
    assert any("for the host's launches, 30 µs an operator (--host" in line for line in answer.notes)
    assert estimate(SMALL, BUNDLE, sm_clock_mhz=1410, host_launch_s=0.0)[0].latency_s < 0.5 * answer.latency_s
    points = sweep(SMALL, BUNDLE, sm_clock_mhz=1410)
    told = [any("GPU waits" in line for _, line in replace(points, gpu_s=share * points.latency_s).notes) for share in (0.99, 0.998)]
    assert told == [True, False], "no wait of 0 % is told"


@pytest.mark.parametrize("workload", [BIG, SMALL])
@pytest.mark.parametrize("factor", [0.2, 0.8, 1.3, 5.0])
def test_the_host_of_another_laboratory_moves_latency_as_far_as_its_launches_reach(workload, factor):
    """The interval elsewhere holds the latency with launches dearer by their 90 % limit; a host of one's own adds nothing."""
    bundle = load_bundle("h100-sxm")
    gpu_s = estimate(workload, bundle, sm_clock_mhz=1830, host_launch_s=0.0)[0].latency_s
    launch_s = factor * gpu_s / sum(o.host_share * c for o, c in zip(workload.operators, workload.counts, strict=True))
    dearer = math.exp(NORMAL_90 * HOST_STD) * max(unknown_host(bundle.gpu).launch_s / launch_s, 1.0)
    hosted = replace(bundle, host=replace(bundle.host, launch_s=launch_s, launch_ln_std=0.0), digest="")
    found = estimate(workload, hosted, sm_clock_mhz=1830)[0]
    far = estimate(workload, hosted, sm_clock_mhz=1830, host_launch_s=dearer * launch_s)[0]
    stated = NORMAL_90 * found.latency_s_std_elsewhere / found.latency_s
    assert math.log(far.latency_s / found.latency_s) < stated
    own = estimate(workload, hosted, sm_clock_mhz=1830, host_launch_s=1.0001 * launch_s)[0]
    assert own.latency_s_std_elsewhere < 1.001 * found.latency_s_std_elsewhere
    if factor > 1.0:
        assert math.log(far.latency_s / found.latency_s) > NORMAL_90 * own.latency_s_std_elsewhere / own.latency_s

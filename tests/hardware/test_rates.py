"""Rates that a board is held to are rates that a board can have."""

import math

import pytest

from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.specifications import gpu_names, load_gpu
from microbench.loads.generated import architecture_of
from tests.hardware.rates import PRODUCTS, SATURATING, reachable_share

LANES = 128
"""Lanes to which the four schedulers of an SM issue in a clock."""

LOOP_CONTROL = 3
NEAR_PEAK = 0.90


@pytest.fixture(scope="module", params=gpu_names())
def gpu(request: pytest.FixtureRequest) -> GpuSpec:
    return load_gpu(request.param)


def test_no_arithmetic_is_held_to_more_than_its_schedulers_can_issue(gpu: GpuSpec) -> None:
    for kernel in SATURATING:
        precision, flop = next(iter(kernel.work.flop.items()))
        per_clock = gpu.matrix_flop_per_clock(precision, kernel.module == "cuda")
        if kernel.module != "cuda" or not math.isfinite(per_clock):
            continue
        instructions = reachable_share(kernel, gpu) * per_clock / (flop / kernel.unroll)
        assert NEAR_PEAK * instructions * (kernel.unroll + LOOP_CONTROL) / kernel.unroll <= LANES, kernel.name


def test_every_matrix_unit_that_can_be_filled_is_filled_by_some_kernel(gpu: GpuSpec) -> None:
    names = PRODUCTS.get(gpu.compute_capability, ())
    filling = [kernel for kernel in SATURATING if kernel.name in names]
    assert {kernel.name for kernel in filling} == set(names)
    for kernel in filling:
        assert kernel.refusal(architecture_of(gpu)) == ""
        assert reachable_share(kernel, gpu) == 1.0
        assert math.isfinite(gpu.matrix_flop_per_clock(next(iter(kernel.work.flop)), cuda_cores=False))

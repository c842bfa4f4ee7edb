"""Explanations add up, and name what limits."""

from dataclasses import replace

import pytest

from estimator import Asked, Variant, bundle_names, explain, load_bundle, load_gpu, with_precision
from estimator.display.estimates import explanation_text
from estimator.model.coefficients import COEFFICIENTS, DEFAULTS
from estimator.model.power import PARTS
from estimator.questions.explanation import LIMIT_OF_PHASE, LIMITS
from examples.gpt2_prefill import gpt2_prefill
from tests.estimator.estimating import question, unlimited
from tests.estimator.synthetic import addition, known_bundle, matmul, transformer, workload_of

A100 = load_bundle("a100-pcie-40gb-eager")
PLANTED = known_bundle(load_gpu("h100-sxm"))
SAVING = replace(gpt2_prefill(8, 512), counts=(*gpt2_prefill(8, 512).counts[:-1], -1.0))
"""A workload that saves one launch of its last kernel, as served models with given scales save conversions."""


def explained(workload, bundle=A100, **settings):
    return explain(question(workload, bundle, sm_clock_mhz=(900.0,), **settings))


@pytest.mark.parametrize(
    "bundle, clock_mhz, cap_w", [(A100, 900.0, None), (PLANTED, 900.0, None), (A100, 1410.0, 171.0), (A100, 1410.0, 150.0)]
)
@pytest.mark.parametrize("workload", [gpt2_prefill(8, 512), transformer(64, 256, 3), SAVING])
def test_parts_of_time_and_energy_add_up_at_a_power_limit_too(workload, bundle, clock_mhz, cap_w):
    answer = explain(question(workload, bundle, sm_clock_mhz=(clock_mhz,), power_cap_w=cap_w))
    result = answer.result
    assert sum(answer.limits_s.values()) + answer.waiting_s == pytest.approx(result.latency_s)
    assert sum(answer.energy_parts_j.values()) == pytest.approx(result.energy_j)
    assert sum(kernel.time_s for kernel in answer.kernels) == pytest.approx(result.gpu_s)
    assert sum(kernel.energy_j for kernel in answer.kernels) <= result.energy_j * (1.0 + 1e-9)
    for kernel in answer.kernels:
        assert sum(kernel.phases_s.values()) == pytest.approx(kernel.time_s)
        assert sum(kernel.limits.values()) == pytest.approx(1.0)
        assert min(kernel.limits.values()) >= 0.0


def test_a_limit_of_which_more_is_saved_than_spent_has_a_line():
    answer = replace(explained(SAVING), limits_s={"DRAM": 1e-3, "latency": -2e-4})
    assert "-200.0 µs  latency\n" in explanation_text(answer, 1, False)


def test_every_phase_has_a_limit():
    phases = set(COEFFICIENTS) - set(DEFAULTS) - {"math"} | {"epsilon"}
    assert set(LIMIT_OF_PHASE) == phases
    assert set(LIMIT_OF_PHASE.values()) <= set(LIMITS)


@pytest.mark.parametrize(
    "operator, limit",
    [
        (matmul(8192, 8192, 8192), "tensor cores"),
        (matmul(8192, 8192, 8192, "fp32", cuda_cores=True), "CUDA cores"),
        (matmul(1, 8192, 8192), "DRAM"),
        (addition(2**28), "DRAM"),
        (addition(128), "launch"),
    ],
)
def test_what_limits_a_kernel_is_named(operator, limit):
    kernel = explained(workload_of(operator, 1000.0)).kernels[0]
    assert kernel.limit == limit
    assert (kernel.ideal_s > 0.6 * kernel.time_s) == (limit in ("tensor cores", "CUDA cores", "DRAM")), kernel


@pytest.mark.parametrize("name", bundle_names())
def test_no_kernel_of_a_shipped_bundle_takes_less_than_its_ideal_time(name):
    for kernel in explain(question(with_precision(gpt2_prefill(8, 512), "fp16"), load_bundle(name))).kernels:
        assert kernel.ideal_s <= 1.02 * kernel.time_s, kernel.operator


def test_the_power_limit_and_the_host_show_in_the_time():
    variant = Variant(workload=gpt2_prefill(32, 512))
    free = explain(Asked(variant=variant, bundle=unlimited(A100)))
    held = explain(Asked(variant=variant, bundle=A100, power_cap_w=120.0))
    assert free.capped_s == 0.0
    assert held.capped_s == pytest.approx(held.result.latency_s - free.result.latency_s)
    slow = explained(gpt2_prefill(1, 64), host_launch_s=1e-4)
    assert slow.waiting_s > 0.5 * slow.result.latency_s
    assert set(slow.energy_parts_j) == set(PARTS)

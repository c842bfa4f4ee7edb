"""Explanations add up; best points, what cannot be told from them, limits; what two predictions share falls out of their difference."""

import math
from dataclasses import replace

import numpy as np
import pytest

from estimator import (
    Asked,
    OperatingPointError,
    Variant,
    best,
    bundle_names,
    compare,
    explain,
    load_bundle,
    load_gpu,
    sweep,
    variants,
    with_precision,
)
from estimator.display.estimates import explanation_text
from estimator.model.coefficients import COEFFICIENTS, DEFAULTS, TIED_COEFFICIENTS
from estimator.model.power import PARTS
from estimator.questions.explanation import LIMIT_OF_PHASE, LIMITS
from estimator.questions.judging import judged, log_ratio_std
from examples.gpt2_prefill import gpt2_prefill
from fitter.latency.runs import WIDTHS
from tests.estimator.estimating import question, unlimited
from tests.estimator.synthetic import addition, known_bundle, matmul, transformer, workload_of
from tests.estimator.workload_files import recorded

BUNDLE = load_bundle("a100-pcie-40gb-eager")
WORKLOAD = gpt2_prefill(8, 512)
ASKED = Asked(variant=Variant(workload=WORKLOAD, batch=8, sequence=512, tokens=4096), bundle=BUNDLE)


def test_the_best_clock_needs_the_least_energy_of_all_clocks():
    answer = best(ASKED)
    assert answer.index == int(answer.points.energy_j.argmin())
    assert answer.gains["energy"].high < 1.0  # the published clock is no optimum on this board
    assert answer.gains["latency"].low > 1.0


@pytest.mark.parametrize("name", ["a100-pcie-40gb-eager", "h100-sxm", "b200-sxm"])
def test_the_best_clock_is_looked_for_among_all_that_the_gpu_can_lock(name):
    bundle = load_bundle(name)
    answer = best(replace(ASKED, bundle=bundle))
    assert answer.points.asked_clock_mhz.tolist() == bundle.gpu.clocks_mhz().tolist()


@pytest.mark.parametrize("power_w, latency_s", [(150.0, math.inf), (math.inf, 0.0205), (220.0, 0.0225)])
def test_the_best_point_keeps_its_limits(power_w, latency_s):
    answer = best(ASKED, power_limit_w=power_w, latency_limit_s=latency_s)
    within = (answer.points.power_w <= power_w) & (answer.points.latency_s <= latency_s)
    assert (answer.fits == within).all()
    assert answer.points.energy_j[answer.index] == answer.points.energy_j[within].min()
    assert answer.fits[answer.alike].all()


def test_limits_that_nothing_keeps_are_refused_with_what_is_possible():
    with pytest.raises(OperatingPointError, match=r"no point keeps 20 W \(least: .* W\) and 1 ms \(least: .* ms\); allow more"):
        best(ASKED, power_limit_w=20.0, latency_limit_s=0.001)


def test_a_forecast_is_less_certain_than_a_prediction_and_a_new_architecture_less_than_a_sister_board():
    own, sister, other = (
        sweep(WORKLOAD, BUNDLE, gpu=gpu, sm_clock_mhz=1200.0) for gpu in (None, load_gpu("a100-sxm-80gb"), load_gpu("h100-sxm"))
    )
    relative = [float(one.latency_s_std[0] / one.latency_s[0]) for one in (own, sister, other)]
    power = [float(one.power_w_std[0] / one.power_w[0]) for one in (own, sister, other)]
    assert relative == sorted(relative)
    assert power == sorted(power)
    assert relative[2] > 2 * relative[0]


@pytest.mark.parametrize("name", ["optmodel_opt-1p3b_pbf16_b8_s1024", "optmodel_opt-1p3b_pbf16_b8_s2048"])
@pytest.mark.parametrize(
    "change, published", [({"precision": ("bf16", "fp32")}, (4.0, 5.0)), ({"attention": ("flash", "eager")}, (2.0, 3.0))]
)
def test_bf16_and_fused_attention_are_as_much_faster_as_published_and_draw_more(name, change, published, shared_data):
    """Published speed-ups on A100-PCIe-40GB (EnergAIzer, section VI-D), at 900 MHz, where no power limit acts."""
    workload = recorded(shared_data, f"{name}_modeprefill")
    one = compare(*(Asked(variant=one, bundle=BUNDLE, sm_clock_mhz=(900.0,)) for one in variants(workload, **change)))
    assert one.ratios["latency"].low < published[1]
    assert one.ratios["latency"].high > published[0]
    assert one.ratios["power"].ratio < 1.0


# What two predictions share ---------------------------------------------------------------------------------------------

A10 = load_bundle("a10-eager")
CLOCKS = (510.0, 900.0, 1020.0)


def asked(workload=WORKLOAD, bundle=BUNDLE, clocks=CLOCKS):
    return question(workload, bundle, sm_clock_mhz=clocks)


def of_all_but_the_clock(loadings):
    return np.sqrt(sum(loading**2 for name, loading in loadings.items() if not name.endswith(":clock")))


@pytest.mark.parametrize("workload", [WORKLOAD, gpt2_prefill(1, 64), gpt2_prefill(32, 512), transformer(512, 768, 4, family="unseen")])
@pytest.mark.parametrize("bundle", [BUNDLE, A10])
def test_sources_sum_up_to_the_stated_uncertainty(workload, bundle):
    """At the power limit too, which the largest workload meets at the highest clock."""
    answer = judged(asked(workload, bundle, (*CLOCKS, 1410.0)))
    points = answer.points
    stated = {"latency": points.latency_s_std / points.latency_s, "power": points.power_w_std / points.power_w}
    for quantity, std in stated.items():
        np.testing.assert_allclose(of_all_but_the_clock(answer.loadings(quantity)), std, rtol=1e-9)


def test_two_bundles_share_nothing():
    left, right = judged(asked(clocks=(1410.0,))), judged(asked(bundle=A10, clocks=(1695.0,)))
    alone = [np.sqrt(sum(v[0] ** 2 for v in one.loadings("latency").values())) for one in (left, right)]
    assert log_ratio_std(left, 0, right, 0, "latency") == pytest.approx(np.hypot(*alone))


def test_the_fit_moves_all_tied_parameters():
    assert list(WIDTHS) == list(TIED_COEFFICIENTS)


def test_a_notebook_shows_both_sides_of_a_comparison_and_their_ratio_as_text():
    hostile = replace(ASKED.variant, workload=replace(ASKED.variant.workload, name="<script>"))
    found = compare(replace(ASKED, sm_clock_mhz=(900.0,)), replace(ASKED, variant=hostile, sm_clock_mhz=(1410.0,), power_cap_w=150.0))
    html = found._repr_html_()
    assert "<script>" not in html
    for one in (found.left, found.right):  # the clock that runs under the limit
        assert f", {one.cases[0].gpu}, {one.sm_clock_mhz[0]:.0f} MHz, {one.cases[0].validity}</td>" in html
    for value in (found.left.latency_s[0], found.right.power_w[0]):
        assert f"<td>{value:.4g}</td>" in html
    assert f"{found.ratios['energy'].ratio:.3g} (" in html


PLANTED = known_bundle(load_gpu("h100-sxm"))
SAVING = replace(WORKLOAD, counts=(*WORKLOAD.counts[:-1], -1.0))
"""A workload that saves one launch of its last kernel, as served models with given scales save conversions."""


def explained(workload, **settings):
    return explain(question(workload, BUNDLE, sm_clock_mhz=(900.0,), **settings))


@pytest.mark.parametrize(
    "bundle, clock_mhz, cap_w", [(BUNDLE, 900.0, None), (PLANTED, 900.0, None), (BUNDLE, 1410.0, 171.0), (BUNDLE, 1410.0, 150.0)]
)
@pytest.mark.parametrize("workload", [WORKLOAD, transformer(64, 256, 3), SAVING])
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
    kernel = explained(workload_of(operator, counts=(1000.0,))).kernels[0]
    assert kernel.limit == limit
    assert (kernel.ideal_s > 0.6 * kernel.time_s) == (limit in ("tensor cores", "CUDA cores", "DRAM")), kernel


@pytest.mark.parametrize("name", bundle_names())
def test_no_kernel_of_a_shipped_bundle_takes_less_than_its_ideal_time(name):
    for kernel in explain(question(with_precision(WORKLOAD, "fp16"), load_bundle(name))).kernels:
        assert kernel.ideal_s <= 1.02 * kernel.time_s, kernel.operator


def test_the_power_limit_and_the_host_show_in_the_time():
    large = gpt2_prefill(32, 512)
    free, held = explain(question(large, unlimited(BUNDLE))), explain(question(large, BUNDLE, power_cap_w=120.0))
    assert free.capped_s == 0.0
    assert held.capped_s == pytest.approx(held.result.latency_s - free.result.latency_s)
    slow = explained(gpt2_prefill(1, 64), host_launch_s=1e-4)
    assert slow.waiting_s > 0.5 * slow.result.latency_s
    assert set(slow.energy_parts_j) == set(PARTS)

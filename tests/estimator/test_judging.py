"""What two predictions share falls out of their difference, and no more than that."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.bundle.content import Bundle, Covariance
from estimator.bundle.files import load_bundle
from estimator.model.coefficients import TIED_COEFFICIENTS, parameter_targets
from estimator.questions.choosing import compare
from estimator.questions.estimates import estimate
from estimator.questions.judging import QUANTITIES, STEP, Asked, difference_std, judged, log_ratio_std, log_ratio_stds
from estimator.transforms.variation import Variant
from estimator.vocabulary.workload import Workload
from examples.gpt2_prefill import gpt2_prefill
from fitter.latency.runs import TIED, affected_groups
from tests.estimator.synthetic import transformer

A100, A10 = load_bundle("a100-pcie-40gb-eager"), load_bundle("a10-eager")
WORKLOAD = gpt2_prefill(8, 512)
CLOCKS = (510.0, 900.0, 1020.0)


def asked(workload: Workload = WORKLOAD, bundle: Bundle = A100, clocks: tuple[float, ...] = CLOCKS) -> Asked:
    return Asked(variant=Variant(workload=workload), bundle=bundle, sm_clock_mhz=clocks)


def of_all_but_the_clock(loadings: dict[str, np.ndarray]) -> np.ndarray:
    return np.sqrt(sum(loading**2 for name, loading in loadings.items() if ":clock:" not in name))


@pytest.mark.parametrize("workload", [WORKLOAD, gpt2_prefill(1, 64), transformer(512, 768, 4, family="unseen")])
@pytest.mark.parametrize("bundle", [A100, A10])
def test_sources_sum_up_to_the_stated_uncertainty(workload: Workload, bundle: Bundle) -> None:
    answer = judged(asked(workload, bundle))
    points = answer.points
    np.testing.assert_allclose(of_all_but_the_clock(answer.loadings("latency")), points.latency_s_std / points.latency_s, rtol=1e-9)
    np.testing.assert_allclose(of_all_but_the_clock(answer.loadings("power")), points.power_w_std / points.power_w, rtol=1e-9)


def test_a_prediction_differs_from_itself_by_nothing() -> None:
    answer = judged(asked())
    for quantity in QUANTITIES:
        assert log_ratio_std(answer, 1, answer, 1, quantity) == 0.0
        assert difference_std(answer, 1, answer, 1, quantity) == 0.0


def test_two_bundles_share_nothing() -> None:
    left, right = judged(asked(clocks=(1410.0,))), judged(asked(bundle=A10, clocks=(1695.0,)))
    alone = [np.sqrt(sum(v[0] ** 2 for v in one.loadings("latency").values())) for one in (left, right)]
    assert log_ratio_std(left, 0, right, 0, "latency") == pytest.approx(np.hypot(*alone))


def test_neighbouring_clocks_can_be_told_apart_far_better_than_each_is_known() -> None:
    answer = judged(asked(clocks=(1005.0, 1020.0)))
    stated = np.hypot(answer.points.latency_s_std / answer.points.latency_s, answer.points.power_w_std / answer.points.power_w)
    assert log_ratio_stds(answer, 1, "energy")[0] < 0.05 * stated[0]
    assert log_ratio_stds(answer, 1, "energy")[1] == 0.0


@given(st.sampled_from(["math.gemm", "dram", "epsilon", "issue"]))
def test_a_coefficient_moves_a_ratio_by_the_difference_of_its_loadings(name: str) -> None:
    spread = 0.01
    known = {group: replace(section, ln_std={}) for group, section in A100.groups.items()}  # nothing but that coefficient is uncertain
    bundle = replace(A100, groups=known, latency_parameters=Covariance(names=(name,), covariance=((spread**2,),)))
    workloads = gpt2_prefill(8, 512), gpt2_prefill(32, 96)
    left, right = (judged(replace(asked(workload, bundle, (900.0,)), host_launch_s=0.0)) for workload in workloads)
    targets = parameter_targets(name, bundle.groups)
    groups = dict(bundle.groups)
    for group, coefficient in targets:
        values = dict(groups[group].coefficients)
        values[coefficient] = values.get(coefficient, 0.0) * np.exp(STEP)
        groups[group] = replace(groups[group], coefficients=values)
    moved = [
        estimate(gpt2_prefill(*size), replace(bundle, groups=groups), sm_clock_mhz=900.0, host_launch_s=0.0)[0].latency_s
        for size in ((8, 512), (32, 96))
    ]
    before = [float(one.points.latency_s[0]) for one in (left, right)]
    slope = (np.log(moved[0] / moved[1]) - np.log(before[0] / before[1])) / STEP * spread
    loading = [next(v[0] for k, v in one.loadings("latency").items() if k.endswith("coefficient 0")) for one in (left, right)]
    assert abs(loading[0] - loading[1]) == pytest.approx(abs(slope), rel=0.02, abs=1e-7)


def test_tied_parameters_mean_what_the_fit_means() -> None:
    assert {p.name: (p.groups, p.coefficients) for p in TIED} == TIED_COEFFICIENTS
    for parameter in TIED:
        pairs = parameter_targets(parameter.name, A100.groups)
        assert list(dict.fromkeys(group for group, _ in pairs)) == affected_groups(parameter, A100.groups)


def test_a_kernel_parameter_stands_for_one_coefficient_of_its_group() -> None:
    assert parameter_targets("gemm.linear.math", ["gemm", "gemm.linear"]) == [("gemm.linear", "math")]
    assert parameter_targets("gemm.linear.math", ["gemm"]) == []
    assert parameter_targets("gemm.nonsense", ["gemm"]) == []


def test_a_comparison_states_ratio_difference_and_interval() -> None:
    one = compare(asked(clocks=(900.0,)), asked(clocks=(1020.0,)))
    ratio = one.ratios["latency"]
    assert ratio.ratio == pytest.approx(float(one.right.latency_s[0] / one.left.latency_s[0]))
    assert ratio.low < ratio.ratio < ratio.high < 1.0
    value, std = one.differences["energy"]
    assert value == pytest.approx(float(one.right.energy_j[0] - one.left.energy_j[0]))
    assert 0.0 < std < float(one.left.energy_j_std[0])

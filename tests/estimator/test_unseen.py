"""What the fit has not seen is said from 1 % of an answer's GPU time on, with its share, whatever else is asked."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator import Workload, estimate, explain, make_operator, sweep
from estimator.uncertainty.unseen import LEAST_SHARE
from tests.estimator.estimating import question, unlimited
from tests.estimator.synthetic import addition, matmul, workload_of
from tests.estimator.test_validity import bundle_of_rows

PRODUCT = matmul(4096, 4096, 4096)
ODD = {
    "fp64": addition(2**20, "fp64"),
    "int8": addition(2**20, "int8"),
    "shapes of copy": make_operator("copy", "contiguous", "bf16", elements=2, reads=2),
    "shapes of norm": make_operator("norm", "layernorm", "bf16", rows=2, dim=1024),
    "priors of softmax": make_operator("softmax", "softmax", "bf16", rows=2048, dim=1024),
}
PRINTED = {"fp64": "kernels in fp64", "int8": "kernels in int8", "priors of softmax": "are priors"}


def bundle():
    """A bundle with rows of bf16, narrow ranges for copies and norms, and softmax never seen."""
    whole = bundle_of_rows(*((family, "bf16") for family in ("gemm", "norm", "elementwise", "copy", "softmax")))
    groups = {key: replace(group, rows=0) if key.startswith("softmax") else group for key, group in whole.groups.items()}
    return replace(whole, groups=groups, domain={"copy": {"elements": (1e5, 1e8)}, "norm": {"rows": (1e3, 1e6)}})


BUNDLE = bundle()


def time_s(operator, clock=1410.0):
    return estimate(workload_of(operator), unlimited(BUNDLE), sm_clock_mhz=clock)[0].gpu_s


def with_shares(**shares):
    """A product, and of each odd kernel as many as take this share of the GPU time at the usual clock."""
    rest = 1.0 - sum(shares.values())
    counts = [share / rest * 1e3 * time_s(PRODUCT) / time_s(ODD[name]) for name, share in shares.items()]
    return Workload(name="w", operators=(PRODUCT, *(ODD[name] for name in shares)), counts=(1e3, *counts))


def answer(workload, clock=1410.0):
    return estimate(workload, unlimited(BUNDLE), sm_clock_mhz=clock)[0]


def share_unseen(one):
    times = [(kernel.count * kernel.latency_s, kernel.outside_validity) for kernel in one.kernels]
    return sum(time for time, odd in times if odd) / sum(time for time, _ in times)


@pytest.mark.parametrize("name", list(ODD))
@pytest.mark.parametrize("share", [0.0099, 0.034])
def test_a_reason_is_said_with_its_share_from_one_percent_on(name, share):
    one = answer(with_shares(**{name: share}))
    assert share_unseen(one) == pytest.approx(share, rel=1e-6)
    if share < LEAST_SHARE:
        assert (one.warnings, one.validity) == ((), "measured")
    else:
        (line,) = one.warnings
        assert PRINTED.get(name, "is outside the fitted range") in line
        assert f"{share:.0%} of the GPU time" in line
        assert one.validity == "extrapolated"


def test_a_reason_leaves_out_what_is_no_percent_of_the_time():
    whole, norm = with_shares(fp64=0.05), make_operator("norm", "layernorm", "fp64", rows=2048, dim=1024)
    (line,) = answer(replace(whole, operators=(*whole.operators, norm), counts=(*whole.counts, 1.0))).warnings
    assert "fp64 of elementwise (5%" in line
    assert "norm" not in line


def test_small_reasons_are_named_where_they_are_much_together():
    one = answer(with_shares(**dict.fromkeys(ODD, 0.004)))
    assert len(one.warnings) == len(ODD)
    assert one.validity == "extrapolated"
    assert answer(with_shares(**dict.fromkeys(ODD, 0.0018))).warnings == ()


@settings(max_examples=8)
@given(
    shares=st.dictionaries(st.sampled_from(list(ODD)), st.sampled_from([0.001, 0.004, 0.008, 0.012, 0.02, 0.1]), max_size=5),
    clocks=st.lists(st.sampled_from(np.arange(510.0, 1411.0, 15.0).tolist()), min_size=1, max_size=3),
    cap_w=st.sampled_from([None, 120.0]),
)
def test_an_answer_is_the_same_whatever_other_clocks_and_workloads_are_asked(shares, clocks, cap_w):
    asked = [with_shares(int8=0.015, fp64=0.02), with_shares(**shares)]
    points = sweep(asked, BUNDLE, sm_clock_mhz=clocks, power_cap_w=cap_w)
    together = [one for workload in asked for one in estimate(workload, BUNDLE, sm_clock_mhz=clocks, power_cap_w=cap_w)]
    validity, texts = points.validity(), points.label("warnings")
    for i, one in enumerate(together):
        workload, clock = asked[i // len(clocks)], clocks[i % len(clocks)]
        (alone,) = estimate(workload, BUNDLE, sm_clock_mhz=clock, power_cap_w=cap_w)
        assert (one.warnings, one.validity) == (alone.warnings, alone.validity)
        assert validity[i] == alone.validity
        assert texts[i] == tuple(line for line in alone.warnings if "GPU time" in line)
        told = explain(question(workload, BUNDLE, sm_clock_mhz=(clock,), power_cap_w=cap_w)).result
        assert told.warnings == alone.warnings


def test_kernels_of_a_library_that_the_fit_has_not_seen_have_wider_intervals():
    own, other = (
        estimate(workload_of(one), unlimited(BUNDLE), sm_clock_mhz=1410.0)[0] for one in (PRODUCT, replace(PRODUCT, library="vllm"))
    )
    assert other.latency_s == own.latency_s
    assert other.latency_s_std > own.latency_s_std

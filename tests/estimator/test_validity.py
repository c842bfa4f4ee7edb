"""What the fit has not seen – precisions, changed boards – is said from 1 % of the GPU time on, marked, and widens the interval."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator import compare, estimate, explain, load_bundle, load_gpu, make_operator, override_gpu, sweep, write_workload
from estimator.model.power_limit import UNLIMITED_W
from estimator.uncertainty.forecast import EFFICIENCY_STD, forecast_std
from estimator.uncertainty.unseen import ALIKE_STD, LEAST_SHARE, PRIOR_STD
from estimator.uncertainty.validity import why_no_time
from tests.estimator.estimating import question, run, tabled, unlimited
from tests.estimator.synthetic import addition, attention, matmul, workload_of
from tests.fitter.measured import PLANTED

BUNDLE = "a100-pcie-40gb-eager"


def bundle_of_rows(*kinds):
    """A bundle with held-out errors of rows of these families and precisions, and 1 % error in every group."""
    errors = tuple(
        {"family": family, "operator": "x", "precision": precision, "latency": None, "power": None} for family, precision in kinds
    )
    groups = {key: replace(group, rows=50, ln_std=group.ln_std or {"math": 0.01}) for key, group in PLANTED.groups.items()}
    stated = {"groups": dict.fromkeys(groups, 0.01)}
    return replace(PLANTED, groups=groups, errors=errors, uncertainty={"latency": stated, "power": stated})


def mixed(precision):
    return workload_of(
        matmul(4096, 4096, 4096),
        attention(1024, precision, batch=8, heads=16, kv_heads=16),
        make_operator("norm", "layernorm", precision, rows=8192, dim=1024),
        addition(2**24, precision),
    )


SEEN = (("gemm", "bf16"), ("gemm", "fp32"), ("attention", "bf16"), ("norm", "bf16"), ("norm", "fp32"), ("copy", "bf16"), ("copy", "fp32"))


SEEN_ROWS = bundle_of_rows(*SEEN)


def ln_std(answer, quantity):
    return float(getattr(answer, f"{quantity}_std") / getattr(answer, quantity))


def share_of(answer, *families):
    times = [(kernel.count * kernel.latency_s, kernel.family in families) for kernel in answer.kernels]
    return sum(time for time, own in times if own) / sum(time for time, _ in times)


def test_a_precision_that_no_row_of_its_family_had_is_named_with_its_share_of_the_time_and_widens_the_interval():
    inside = estimate(mixed("bf16"), SEEN_ROWS, sm_clock_mhz=1410, power_cap_w=UNLIMITED_W)[0]
    assert (inside.validity, inside.warnings) == ("measured", ())
    answer = estimate(mixed("fp32"), SEEN_ROWS, sm_clock_mhz=1410, power_cap_w=UNLIMITED_W)[0]
    (line,) = answer.warnings
    share = share_of(answer, "attention")
    assert f"no kernels in fp32 of attention ({share:.0%} of the GPU time; fitted in bf16)" in line
    assert answer.validity == "extrapolated"
    assert [kernel.family for kernel in answer.kernels if kernel.outside_validity] == ["attention"]
    for quantity in ("latency_s", "power_w"):
        assert ln_std(answer, quantity) > share * PRIOR_STD
        assert ln_std(answer, quantity) < math.hypot(share * PRIOR_STD, 0.05)


def test_an_alike_precision_widens_less_than_a_strange_one():
    usual, alike, strange = (estimate(mixed(name), SEEN_ROWS, sm_clock_mhz=600)[0] for name in ("bf16", "fp16", "fp64"))
    added = ln_std(alike, "latency_s") ** 2 - ln_std(usual, "latency_s") ** 2
    assert added == pytest.approx((share_of(alike, "attention", "norm", "elementwise") * ALIKE_STD) ** 2, rel=0.2)
    assert ln_std(strange, "latency_s") > 3 * ln_std(alike, "latency_s")


def test_runs_of_whole_models_have_seen_streams_in_fp32():
    bundle = bundle_of_rows(("workload", "bf16"))
    assert estimate(replace(mixed("fp32"), operators=mixed("fp32").operators[2:], counts=(1.0, 1.0)), bundle)[0].validity == "measured"
    assert "attention" in estimate(mixed("fp32"), bundle)[0].warnings[0]


A100 = load_gpu("a100-pcie-40gb")
CHANGED = override_gpu(A100, {"num_sms": "132", "tensor_flop_per_clock.bf16": "4096"})


@pytest.mark.parametrize(
    "change, said, added",
    [
        ({"gpu": CHANGED}, "num_sms 108 → 132, tensor_flop_per_clock.bf16 2048 → 4096", forecast_std(A100, A100)),
        ({"efficiency": {"dram": 0.5}}, "efficiency of dram → 0.5", EFFICIENCY_STD),
    ],
)
def test_a_changed_figure_is_a_forecast_that_says_what_it_was_and_is(change, said, added):
    # far below the power limit, which would bound both
    own, answer = (estimate(mixed("bf16"), SEEN_ROWS, sm_clock_mhz=300.0, **settings)[0] for settings in ({}, change))
    assert answer.validity == "forecast"
    (line,) = answer.warnings
    assert line.startswith(f"forecast: a100-pcie-40gb with {said}")
    for quantity, std in zip(("latency_s", "power_w"), added, strict=True):
        assert ln_std(answer, quantity) == pytest.approx(math.hypot(ln_std(own, quantity), std), rel=0.1)


def test_errors_of_two_changed_boards_do_not_fall_out_of_their_ratio():

    def asked(sms):
        return question(mixed("bf16"), SEEN_ROWS, gpu=override_gpu(SEEN_ROWS.gpu, {"num_sms": sms}))

    changed, same = compare(asked("108"), asked("132")).ratios["latency"], compare(asked("132"), asked("132")).ratios["latency"]
    assert changed.high / changed.ratio > math.exp(forecast_std(SEEN_ROWS.gpu, SEEN_ROWS.gpu)[0])
    assert same.high == pytest.approx(same.ratio)


@pytest.mark.parametrize(
    "words, validity, said",
    [
        ("", "measured", ""),
        ("--set num_sms=132", "forecast", "num_sms 108 → 132"),
        ("--efficiency dram=0.8", "forecast", "efficiency of dram"),
        ("--precision fp16", "extrapolated", "no kernels in fp16"),
    ],
)
def test_every_form_of_the_answer_is_marked(words, validity, said, tmp_path):
    file = tmp_path / "list.json"
    write_workload(workload_of(matmul(4096, 3072, 768), counts=(12.0,)), file)
    call = (file, f"--bundle {BUNDLE} {words}")
    status, out, err = run(call, "--json")
    document = json.loads(out)
    assert (status, document["validity"], any(said in line for line in document["warnings"])) == (0, validity, bool(said))
    assert [line.startswith("warning: one: ") for line in err.splitlines() if said in line and "warning" in line] == [True] * bool(said)
    assert run(call, "--strict --quiet")[::2] == ((3, "") if said else (0, ""))
    (row,) = tabled(call)
    assert row["validity"] == validity
    text = run(call)[1]
    assert text.splitlines()[0].endswith(f"validity {validity}")
    explained = run("explain", call)[1]
    marks = [("k=768 *\n" in one, "* the fit has seen no kernel like it" in one) for one in (text, explained)]
    assert marks == [(validity == "extrapolated",) * 2] * 2


@pytest.mark.parametrize(
    "head_dim, fitted, outside",
    [
        (256, None, ""),
        (257, None, "the heads of FlashAttention's kernels, 1 to 256"),
        (257, (64.0, 256.0), "the fitted range 64 to 256"),
        (320, (64.0, 512.0), ""),
        (256, (64.0, 128.0), ""),
    ],
)
def test_heads_that_no_kernel_of_flash_attention_takes_are_extrapolated_unless_fitted(head_dim, fitted, outside):
    domain = {} if fitted is None else {"attention.prefill": {"head_dim": fitted}}
    (answer,) = estimate(workload_of(attention(1024, head_dim=head_dim)), replace(SEEN_ROWS, domain=domain))
    lines = [line for line in answer.warnings if "head_dim" in line]
    assert [f"head_dim = {head_dim} is outside {outside}" in line for line in lines] == [True] * bool(outside)
    assert answer.kernels[0].outside_validity == bool(outside)


@pytest.mark.parametrize("precision, gpu", [("fp8", "a100-pcie-40gb"), ("bf16", "v100-pcie-32gb"), ("nvfp4", "h100-sxm")])
def test_kernels_that_a_gpu_has_no_rate_for_have_no_time_and_the_reason_is_said(precision, gpu):
    operators, spec, bundle = (matmul(64, 64, 64, precision, operator="bmm"), addition(64, "fp32")), load_gpu(gpu), load_bundle(BUNDLE)
    workload = workload_of(*operators, counts=(2.0, 1.0), name="w")
    (result,) = estimate(workload, bundle, gpu=spec)
    assert not math.isfinite(result.latency_s)
    reason = f"{gpu} cannot run gemm.bmm {precision}: its specification has no rate for that"
    assert reason in result.warnings
    assert not any("nan" in line for line in result.warnings)
    assert result.validity != "measured"
    points = sweep([workload, workload_of(operators[1], name="v")], bundle, gpu=spec)
    assert [(name, reason) in points.warnings for name in "wv"] == [True, False]
    assert why_no_time(result.warnings).startswith(f"{reason}; choose another precision")


PRODUCT = matmul(4096, 4096, 4096)
ODD = {
    "fp64": addition(2**20, "fp64"),
    "int8": addition(2**20, "int8"),
    "shapes of copy": make_operator("copy", "contiguous", "bf16", elements=2, reads=2),
    "shapes of norm": make_operator("norm", "layernorm", "bf16", rows=2, dim=1024),
    "priors of softmax": make_operator("softmax", "softmax", "bf16", rows=2048, dim=1024),
}
PRINTED = {"fp64": "kernels in fp64", "int8": "kernels in int8", "priors of softmax": "are priors"}


KNOWN = bundle_of_rows(*((family, "bf16") for family in ("gemm", "norm", "elementwise", "copy", "softmax")))
A100_BUNDLE = replace(
    KNOWN,
    groups={key: replace(group, rows=0) if key.startswith("softmax") else group for key, group in KNOWN.groups.items()},
    domain={"copy": {"elements": (1e5, 1e8)}, "norm": {"rows": (1e3, 1e6)}},
)
"""A bundle with rows of bf16, narrow ranges for copies and norms, and softmax never seen."""


def answer(workload):
    return estimate(workload, unlimited(A100_BUNDLE), sm_clock_mhz=1410.0)[0]


def with_shares(**shares):
    """A product, and of each odd kernel as many as take this share of the GPU time at the usual clock."""
    rest = 1.0 - sum(shares.values())
    counts = [
        share / rest * 1e3 * answer(workload_of(PRODUCT)).gpu_s / answer(workload_of(ODD[name])).gpu_s for name, share in shares.items()
    ]
    return workload_of(PRODUCT, *(ODD[name] for name in shares), counts=(1e3, *counts))


@pytest.mark.parametrize("name", list(ODD))
@pytest.mark.parametrize("share", [0.0099, 0.034])
def test_a_reason_is_said_with_its_share_from_one_percent_on(name, share):
    one = answer(with_shares(**{name: share}))
    unseen = {kernel.family for kernel in one.kernels if kernel.outside_validity}
    assert share_of(one, *unseen) == pytest.approx(share, rel=1e-6)
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
    points = sweep(asked, A100_BUNDLE, sm_clock_mhz=clocks, power_cap_w=cap_w)
    together = [one for workload in asked for one in estimate(workload, A100_BUNDLE, sm_clock_mhz=clocks, power_cap_w=cap_w)]
    validity, texts = points.validity(), points.label("warnings")
    for i, one in enumerate(together):
        workload, clock = asked[i // len(clocks)], clocks[i % len(clocks)]
        (alone,) = estimate(workload, A100_BUNDLE, sm_clock_mhz=clock, power_cap_w=cap_w)
        assert (one.warnings, one.validity) == (alone.warnings, alone.validity)
        assert validity[i] == alone.validity
        assert texts[i] == tuple(line for line in alone.warnings if "GPU time" in line)
        told = explain(question(workload, A100_BUNDLE, sm_clock_mhz=(clock,), power_cap_w=cap_w)).result
        assert told.warnings == alone.warnings


def test_kernels_of_a_library_that_the_fit_has_not_seen_have_wider_intervals():
    own, other = (answer(workload_of(one)) for one in (PRODUCT, replace(PRODUCT, library="vllm")))
    assert other.latency_s == own.latency_s
    assert other.latency_s_std > own.latency_s_std

"""Counted events, busy power, and power that was not measured: what silicon says agrees with boards that were measured."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from estimator import estimate, load_bundle, load_gpu, make_operator
from estimator.bundle.content import group_coefficients
from estimator.engine.board import open_board
from estimator.engine.kernel_table import bundle_times, warm_events
from estimator.engine.prediction import prepare
from estimator.model.gemm import Gemm
from estimator.model.phases import EVENTS
from estimator.model.power import (
    POWER_TERMS,
    WARM_KNEE,
    Leakage,
    PowerModel,
    busy_share,
    capacitance_f,
    carried_factors,
    leakage_power_w,
    power_events,
    static_power_w,
    term_scale,
    warm_dram_share,
)
from estimator.model.silicon import energy_factors, usual_rest_w, voltage_ratios
from estimator.model.timeline import warm_ratio
from estimator.vocabulary.gpu import ClockTable
from estimator.vocabulary.specifications import gpu_names
from tests.estimator.synthetic import attention, known_bundle, matmul, phases_of, tables_of, workload_of

A100 = load_gpu("a100-pcie-40gb")


def events_of(operator, split=1.0, board=A100):
    return dict(zip(EVENTS, phases_of(operator, board, 128.0, 128.0, split).events[0].tolist(), strict=True))


def linear(m, precision="bf16", n=1024):
    return matmul(m, n, 1024, precision)


def test_padded_products_cost_less_than_useful_ones_but_not_nothing():
    full, padded = events_of(linear(128)), events_of(linear(65))
    assert full["tensor"] == 2 * 128 * 1024 * 1024
    assert 2 * 65 * 1024 * 1024 < padded["tensor"] < full["tensor"]


def test_tensor_flop_are_counted_by_the_time_for_which_they_keep_the_units_busy():
    assert events_of(linear(256, "tf32"))["tensor"] == 2 * events_of(linear(256))["tensor"]
    assert events_of(linear(256, "int8"))["tensor"] == events_of(linear(256))["tensor"] / 2


def test_each_tile_of_rows_widens_narrow_weights_anew():
    for tiles in (1, 3):
        narrow, wide = (events_of(linear(tiles * 128, form)) for form in ("int4_wo", "bf16"))
        assert_allclose(narrow["cuda"] - wide["cuda"], Gemm.WIDEN * tiles * 1024 * 1024)
        assert events_of(linear(tiles * 128, "w4a8_mxfp4_mxfp8"))["cuda"] > events_of(linear(tiles * 128, "fp8"))["cuda"]


@pytest.mark.parametrize("kind, queries", [("prefill", 2048), ("decode", 1)])
def test_attention_in_8_bits_keeps_the_units_busy_for_half_as_long(kind, queries):
    shape = {"batch": 4, "context": 2048, "heads": 16, "kv_heads": 4, "head_dim": 128}
    short, full = (events_of(attention(queries, name, kind, **shape), board=load_gpu("b200-sxm")) for name in ("fp8", "bf16"))
    assert (short["tensor"], short["sfu"]) == (full["tensor"] / 2, full["sfu"])


def test_attention_without_tensor_cores_multiplies_on_cuda_cores():
    single, half = (events_of(attention(1024, precision, batch=4, head_dim=128, causal=0)) for precision in ("fp32", "fp16"))
    assert single["tensor"] == 0.0
    assert_allclose(single["cuda"] - half["cuda"], Gemm.MULTIPLY_ADD * half["tensor"] / 2)


@pytest.mark.parametrize("board, whole", [("a100-pcie-40gb", True), ("rtx-4090", True), ("h100-sxm", False)])
def test_before_hopper_one_row_costs_the_matrix_work_of_a_whole_tile(board, whole):
    shape = {"batch": 4, "context": 2048, "heads": 16, "kv_heads": 16, "head_dim": 128, "library": "vllm"}
    one, tile = (events_of(attention(rows, "bf16", "decode", **shape), board=load_gpu(board)) for rows in (1, 64))
    assert (one["tensor"] == tile["tensor"]) is whole


def test_blocks_fetch_nothing_beyond_the_edge_of_a_matrix():
    m, n, k = 65, 1024, 1024
    fetched = 2 * k * (m * n / 128 + n * np.ceil(m / 128))
    assert_allclose(events_of(linear(m))["l2"], fetched + 2 * m * n)


def test_a_split_writes_and_reads_its_partial_results():
    one, four = (events_of(linear(128), split=split) for split in (1.0, 4.0))
    assert_allclose(four["l2"] - one["l2"], 4 * 8 * 128 * 1024)
    assert four["shared"] == one["shared"]


def test_a_long_softmax_row_passes_through_shared_memory_and_a_short_one_does_not():
    short, long, longest = (make_operator("softmax", "softmax", "bf16", rows=4096, dim=dim) for dim in (1024, 4096, 65536))
    assert events_of(short)["shared"] == 0
    assert events_of(long)["shared"] >= 3 * 4096 * 4096 * 2
    assert_allclose(events_of(longest)["l2"], 4 * 4096 * 65536 * 2)  # read three times, written once


def test_warm_operands_that_fit_into_the_l2_do_not_cross_dram():
    for m, low, high in ((512, 0.0, 0.01), (16384, 0.99, 1.0)):
        phases = phases_of(linear(m, n=16384 if m > 512 else 1024), A100, 128.0, 128.0, 1.0)
        counted = power_events(phases, A100, 0.0)
        warm, cold = (warm_events(counted, warm_ratio(phases, A100, np.array([w])))[0] for w in (True, False))
        dram, l2 = POWER_TERMS.index("dram"), POWER_TERMS.index("l2")
        assert low <= warm[dram] / cold[dram] <= high
        assert warm[l2] == cold[l2]


def test_the_edge_of_l2_lies_at_the_knee_and_cold_operands_cross_whole():
    share = warm_dram_share(np.array([0.0, 0.5, 1.0, 2.0, np.inf]) * WARM_KNEE)
    assert_allclose(share[[0, 2, 4]], [0.0, 0.5, 1.0], atol=1e-12)
    assert share[1] < 0.1 < 0.9 < share[3]


def test_rows_that_leave_l2_before_their_second_look_cross_dram_again():
    for dim, low, high in ((768, 1.0, 1.001), (16384, 1.3, 1.5)):
        row = make_operator("norm", "layernorm", "bf16", rows=8192, dim=dim)
        assert low <= events_of(row)["dram"] / (8192 * dim * 4) <= high


def test_busy_power_falls_with_idle_sms_with_the_gaps_between_short_kernels_and_with_waiting_for_the_host():
    seconds, clock, whole = np.array([1e-3, 1e-5, 3e-6]), np.full(3, 1.41e9), np.ones(3)
    full, half = busy_share(seconds, whole, whole, clock), busy_share(seconds, np.full(3, 0.5), whole, clock)
    assert (np.diff(full) < 0).all()
    assert full[0] == pytest.approx(1.0, abs=2e-3)
    assert (half < full).all()
    assert (half > 0.5 * full).all()
    assert (busy_share(seconds, whole, 0.8 * whole, clock) < full).all()


TABLES = tables_of(A100)


def model_of(leakage=None):
    return PowerModel(
        event_energy_j=np.zeros(len(POWER_TERMS)), busy_w=20.0, active_w=5.0, voltage_exponent=2.5,
        reference_clock_mhz=900.0, leakage=leakage,
    )  # fmt: skip


def test_events_in_the_core_follow_its_voltage_and_running_sms_its_clock_too():
    point = TABLES.at(np.array([900.0, 1410.0]))
    core = point.voltage_ratio**2.5
    assert core[1] > 1.3
    assert_allclose(term_scale(model_of(), point).T, [np.ones(2), *[core] * (len(POWER_TERMS) - 1)])
    rest, busy = (static_power_w(model_of(), point, np.full(2, share)) for share in (0.0, 1.0))
    assert_allclose(rest, point.idle_w + 5.0 * point.idle_ratio)
    assert_allclose(busy - rest, 20.0 * core * [1.0, 1410.0 / 900.0])


def test_a_capacitance_switched_at_the_reference_voltage_takes_the_energy_of_its_events():
    energy_j, rates = np.array([1e-12, 5e-11]), np.array([2e5, 3e3])
    assert_allclose(0.7**2 * capacitance_f(energy_j, rates, 0.7), energy_j * rates)


def test_leakage_feeds_back_on_itself():
    model = model_of(Leakage(w_per_k=0.2, idle_c=38.0, operating_c=38.0, operating_k_per_w=0.1))
    point, other = TABLES.at(np.array([900.0, 1410.0])), np.array([150.0, 150.0])
    own = leakage_power_w(model, point, other)
    assert_allclose(own, 0.2 * point.voltage_ratio**3 * 0.1 * (other + own))
    assert own[1] > own[0] > 0.0


def test_few_blocks_leave_sms_without_work():
    for m, expected in ((128, 8 / 108), (128 * 27, 1.0), (128 * 54, 1.0)):
        assert_allclose(phases_of(linear(m), A100, 128.0, 128.0, 1.0).occupied, expected)


H100 = load_gpu("h100-sxm")

AWAKE_W = {"a100-pcie-80gb": 46, "h200-sxm": 121, "b200-sxm": 190, "l40s": 101, "l4": 27.5, "t4": 25.5, "a40": 74, "v100-pcie-32gb": 38}
"""Rest power of boards with a context [W]: medians of published nvidia-smi tables and logs, clocks high or unknown."""


def test_the_usual_curve_lies_near_the_voltage_of_measured_boards():
    for name in ("a100-pcie-40gb", "a100-sxm-80gb"):
        gpu = load_gpu(name)
        clock = gpu.clocks_mhz()
        measured, usual = (voltage_ratios(gpu, table, None).at(clock) for table in (gpu.voltage_v, None))
        assert np.abs(usual / measured - 1.0).max() < 0.08


def test_rest_power_tells_the_voltage():
    assert voltage_ratios(A100, None, A100.idle_w).at(np.array([1410.0]))[0] == pytest.approx(
        voltage_ratios(A100, A100.voltage_v, None).at(np.array([1410.0]))[0], rel=0.04
    )
    ratio = voltage_ratios(H100, None, H100.idle_w).at(np.array([500.0, 1830.0]))
    assert ratio == pytest.approx([1.0, 1.4], abs=0.06)
    flat = ClockTable(sm_clock_mhz=(300.0, 1000.0), value=(50.0, 50.0))  # a table that does not rise tells nothing: the usual curve
    assert voltage_ratios(H100, None, flat).value[-1] > 1.3


def test_a_single_reading_scales_rest_power():
    gpu = replace(H100, idle_w=None)
    clocks = gpu.clocks_mhz()
    read = ClockTable(sm_clock_mhz=(1500.0,), value=(60.0,))
    rule, scaled = (replace(tables_of(gpu), voltage_v=None, idle_w=one).rest_w(clocks) for one in (None, read))
    assert scaled / rule == pytest.approx(60.0 / np.interp(1500.0, clocks, rule))


def test_a_board_with_a_higher_voltage_costs_more_in_the_core_alone():
    raised = ClockTable(sm_clock_mhz=A100.voltage_v.sm_clock_mhz, value=tuple(1.1 * volt for volt in A100.voltage_v.value))
    found = carried_factors(tables_of(A100), 3.0, tables_of(replace(A100, voltage_v=raised)), 3.0)
    assert found == pytest.approx({term: 1.0 if term in ("dram", "active") else 1.1**3 for term in found})
    inferred = ClockTable(sm_clock_mhz=(900.0, 1410.0), value=(1.0, 1.2))  # from power: its scale is unknown
    assert voltage_ratios(A100, inferred, None).value == (1.0, 1.2)


@pytest.mark.parametrize("name", gpu_names())
def test_voltage_and_rest_power_never_fall_with_the_clock(name):
    gpu = load_gpu(name)
    clock = gpu.clocks_mhz()
    bare = replace(tables_of(gpu), voltage_v=None, idle_w=None)
    for point in (bare.at(clock), tables_of(gpu).at(clock)):
        assert (np.diff(point.voltage_ratio) >= 0.0).all()
        assert (np.diff(point.idle_w) >= 0.0).all()
    assert 0.05 < point.idle_w.max() / gpu.power_limit_w < 0.5


def test_the_rule_for_rest_power_lies_near_boards_that_were_read():
    for gpu in (A100, H100):
        clock = np.array(gpu.idle_w.sm_clock_mhz)
        ratio = tables_of(gpu).voltage_ratios.at(clock)
        assert np.abs(usual_rest_w(gpu, clock, ratio) / gpu.idle_w.at(clock) - 1.0).max() < 0.22
    for name, awake in AWAKE_W.items():
        gpu = replace(load_gpu(name), idle_w=None)
        rest = tables_of(gpu).rest_w(gpu.clocks_mhz())
        assert 0.8 * rest.min() < awake < 1.25 * rest.max(), name


def test_energies_carried_to_another_board_and_back_are_the_same():
    for name in gpu_names():
        one, other = tables_of(A100, 1410.0), tables_of(load_gpu(name), 900.0)
        there, back = carried_factors(one, 3.0, other, 2.0), carried_factors(other, 2.0, one, 3.0)
        assert {term: there[term] * back[term] for term in there} == pytest.approx(dict.fromkeys((*POWER_TERMS, "busy", "active"), 1.0))
    own = carried_factors(tables_of(A100), 3.0, tables_of(A100), 3.0)
    assert set(own.values()) == {1.0}


def test_each_difference_between_boards_moves_the_energies_that_it_concerns():
    def changed(**figures):
        return carried_factors(tables_of(A100), 3.0, tables_of(replace(A100, **figures)), 3.0)

    newer = changed(process="tsmc-4n")
    assert {term: value for term, value in newer.items() if value != 1.0} == dict.fromkeys(("tensor", "cuda", "sfu"), 0.62)
    assert {term for term, value in changed(num_sms=216).items() if value != 1.0} == {"busy"}
    wide = changed(tensor_flop_per_clock={**A100.tensor_flop_per_clock, "fp16": 4096.0})
    assert {term: value for term, value in wide.items() if value != 1.0} == {"tensor": 0.75}
    slow, whole = (energy_factors(load_gpu(name)) for name in ("l20", "l4"))
    assert slow["tensor"] == whole["tensor"]  # sold with half the rate, on the same units


def test_half_of_a_lambda_belongs_to_the_fitted_board():
    bundle = known_bundle(A100)
    group = replace(bundle.groups["gemm"], usual={"math": 4.0 * bundle.groups["gemm"].coefficients["math"]})
    bundle = replace(bundle, groups={**bundle.groups, "gemm": group})
    own, other = (group_coefficients(bundle, replace(A100, name="x", compute_capability=name))["gemm"] for name in ("8.0", "8.6"))
    assert own == group.coefficients
    assert other == pytest.approx(own | {"math": 2.0 * own["math"]})


@pytest.mark.parametrize("precision, rate", [("bf16", "bf16"), ("fp8", "fp8")])
def test_experts_on_a_slower_board_stay_below_its_peak(precision, rate):
    bundle, gpu = load_bundle("h100-sxm"), load_gpu("h20")
    sizes = {"hidden": 4096, "inter": 14336, "topk": 2, "experts": 8, "tp": 1, "ep": 1, "skew": 0, "gated": 1}
    for tokens in (1024, 4096, 16384):
        one = make_operator("moe", "moe", precision, tokens=tokens, **sizes)
        found = estimate(workload_of(one), bundle, gpu=replace(gpu, power_limit_w=5000.0), host_launch_s=0.0)[0]
        flop = 2.0 * 3.0 * tokens * 2.0 * 4096 * 14336
        assert flop / found.latency_s < gpu.tensor_flop_per_clock[rate] * gpu.num_sms * found.sm_clock_mhz * 1e6


@pytest.mark.parametrize("name, carried", [("l40s", True), ("rtx-4090", True), ("l4", True), ("rtx-a6000", False), ("h100-sxm", False)])
def test_the_same_kernels_keep_their_corrections_on_other_boards(name, carried):
    bundle = load_bundle("l40s")
    products = tuple(matmul(m, n, k) for m in (1, 8, 512, 4096) for n, k in ((6144, 4096), (4096, 14336), (28672, 4096)))
    alone = {"sm_clock_mhz": np.full(len(products), 1500.0), "warm": np.zeros(len(products)), "known": None}
    own, found = (
        [np.log(times.latency_s / times.equations_s), prepare([workload_of(*products)], open_board(bundle, gpu=gpu)).log_correction]
        for gpu in (bundle.gpu, load_gpu(name))
        for times in [bundle_times(products, bundle, gpu, **alone)]
    )
    assert np.ptp(own, axis=1) == pytest.approx([0.6, 0.6], abs=0.4)
    assert np.array(found) == pytest.approx(np.array(own) * carried)


@pytest.mark.parametrize("bundle", ["a100-sxm-80gb", "h200-sxm", "l40s"])
@pytest.mark.parametrize("precision, stored", [("bf16", 2.0), ("int8_wo", 1.0), ("int4_wo", 0.5)])
def test_weights_are_read_no_faster_than_memory_gives_them(bundle, precision, stored):
    workload, own = workload_of(matmul(1, 65536, 16384, precision)), load_bundle(bundle)
    for name in ("a40", "h100-pcie", "h20", "rtx-4090", own.gpu.name):
        gpu = replace(load_gpu(name), power_limit_w=1e4)
        (found,) = estimate(workload, own, gpu=gpu, host_launch_s=0.0)
        assert found.latency_s > stored * 65536 * 16384 / gpu.dram_bytes_per_s


@pytest.mark.parametrize(
    "rate, kind, kept", [(256, "8.9", 0.25), (512, "8.6", 0.5), (1024, "8.9", 1.0), (2048, "8.9", 1.0), (512, "7.5", 1.0)]
)
def test_tensor_cores_sold_with_a_lower_rate_lose_less_and_others_not(rate, kind, kept):
    bundle = known_bundle(A100)
    group = replace(bundle.groups["gemm"], coefficients={**bundle.groups["gemm"].coefficients, "math": 1.4}, usual={})
    changed = replace(A100, tensor_flop_per_clock={"bf16": float(rate)}, compute_capability=kind)
    found = group_coefficients(replace(bundle, groups={"gemm": group}), changed)["gemm"]
    assert found["math"] ** 2.6 - 1.0 == pytest.approx(kept**2.6 * (1.4**2.6 - 1.0))
    assert found["prologue"] == kept * group.coefficients["prologue"]
    assert found | {name: group.coefficients[name] for name in ("math", "prologue")} == group.coefficients

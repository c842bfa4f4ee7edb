"""Laws of the counted events and of the share of busy power."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from estimator import load_gpu, make_operator
from estimator.engine.kernel_table import warm_events
from estimator.model.gemm import Gemm
from estimator.model.phases import EVENTS
from estimator.model.power import (
    POWER_TERMS,
    WARM_KNEE,
    Leakage,
    PowerModel,
    busy_share,
    capacitance_f,
    leakage_power_w,
    power_events,
    static_power_w,
    term_scale,
    warm_dram_share,
)
from estimator.model.timeline import warm_ratio
from tests.estimator.synthetic import attention, matmul, phases_of, tables_of

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
        operator = linear(m, n=16384 if m > 512 else 1024)
        phases = phases_of(operator, A100, 128.0, 128.0, 1.0)
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


def test_leakage_feeds_back_on_itself_and_follows_a_given_temperature():
    model = model_of(Leakage(w_per_k=0.2, idle_c=38.0, operating_c=38.0, operating_k_per_w=0.1))
    point, other = TABLES.at(np.array([900.0, 1410.0])), np.array([150.0, 150.0])
    own = leakage_power_w(model, point, other)
    assert_allclose(own, leakage_power_w(model, point, other, 38.0 + 0.1 * (other + own)))
    assert own[1] > own[0] > 0.0
    assert_allclose(leakage_power_w(model, point, other, np.array([38.0, np.nan])), [0.0, own[1]])


def test_few_blocks_leave_sms_without_work():
    for m, expected in ((128, 8 / 108), (128 * 27, 1.0), (128 * 54, 1.0)):
        assert_allclose(phases_of(linear(m), A100, 128.0, 128.0, 1.0).occupied, expected)

"""Laws of the latency equations, of output that persistent blocks hide, and of long rows that are read once more."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from estimator import load_gpu, make_operator
from estimator.model.coefficients import COLUMN, CoefficientTable, coefficient_vector
from estimator.model.gemm import candidate_phases
from estimator.model.lowering import STREAM_KINDS, lower, matrix_columns
from estimator.model.phases import EVENTS, OVERLAPPED, SERIAL
from estimator.model.streams import Stream, norm_loads
from estimator.model.tiling import tile_candidates
from estimator.model.timeline import kernel_seconds, launch_bound_share, p_norm, smooth_maximum, sweep_parts, sweep_seconds, wave_share
from estimator.vocabulary.quantities import HZ_PER_MHZ
from tests.estimator.synthetic import attention, convolution, matmul, phases_of, prior_rows, transformer

A100 = load_gpu("a100-pcie-40gb")
positive = st.floats(1e-9, 1e3)
side = st.integers(1, 4096)


@given(st.lists(positive, min_size=2, max_size=6), st.floats(1.0, 20.0))
def test_a_p_norm_lies_between_the_longest_part_and_the_sum(parts, p):
    total = p_norm(np.array([parts]), np.array([p]))[0]
    assert max(parts) * (1 - 1e-9) <= total <= sum(parts) * (1 + 1e-9)


@given(positive, positive, st.floats(1.0, 256.0))
def test_a_workload_takes_at_least_the_longer_of_gpu_and_host(gpu_s, host_s, p):
    total = float(smooth_maximum(np.array([gpu_s]), np.array([host_s]), p)[0])
    assert max(gpu_s, host_s) * (1 - 1e-12) <= total <= max(gpu_s, host_s) * 2 ** (1 / p) * (1 + 1e-12)
    share = float(launch_bound_share(np.array([gpu_s]), np.array([host_s]), p)[0])
    assert (share > 0.5) == (host_s > gpu_s) or abs(host_s - gpu_s) < 1e-9 * gpu_s


def product_phases(m, n, k, precision="bf16", tile=128.0, split=1.0):
    return phases_of(matmul(m, n, k, precision), A100, tile, tile, split)


def part(phases, name):
    """The time of one phase of the first kernel."""
    return phases.overlapped[0, ..., OVERLAPPED.index(name)] if name in OVERLAPPED else phases.serial[0, ..., SERIAL.index(name)]


def seconds_of(phases, clock_hz=1e9, **coefficients):
    return float(kernel_seconds(phases, coefficient_vector({"epsilon_s": 0.0, **coefficients})[None, :], clock_hz)[0])


def test_a_sweep_gives_what_single_clocks_give_and_no_kernel_slows_down_when_the_clock_rises():
    operators = transformer(300, 1024, 2).operators
    coefficients = prior_rows(operators)
    coefficients[::2, COLUMN["ceiling"]] = 1.4
    phases = lower(operators, A100, coefficients)
    clocks = A100.clocks_mhz() * HZ_PER_MHZ
    sweep = sweep_seconds(sweep_parts(phases, coefficients), clocks)
    for i in (0, 40, 80):
        assert_allclose(sweep[:, i], kernel_seconds(phases, coefficients, float(clocks[i])), rtol=1e-12)
    assert (np.diff(sweep, axis=1) <= 0).all()


@given(side, side, side)
def test_a_product_with_lambda_one_never_beats_the_roofline(m, n, k):
    ideal = {"math": 1.0, "l2": 1.0, "dram": 1.0, "dram_activations": 1.0, "loop": 1.0, "epilogue": 1.0, "exponent": 2.0}
    coefficients, _ = CoefficientTable({"gemm": ideal}).rows(["gemm"])
    seconds = float(kernel_seconds(lower([matmul(m, n, k)], A100, coefficients), coefficients, 1410e6)[0])
    assert seconds >= 2.0 * m * n * k / (A100.matrix_flop_per_clock("bf16", cuda_cores=False) * A100.num_sms * 1410e6)
    assert seconds >= 2.0 * (m * k + n * k + m * n) / A100.dram_bytes_per_s * (1 - 1e-12)


@given(side, side, st.integers(1, 65536), st.sampled_from(["bf16", "fp8"]))
def test_a_ceiling_bounds_the_rate_at_all_clocks_and_leaves_alone_what_is_slower(m, n, k, precision):
    phases = phases_of(matmul(m, n, k, precision), load_gpu("h100-sxm"), 128.0, 128.0, 1.0)
    ideal_s, quantise = 2.0 * m * n * k / (4096 * (1 + (precision == "fp8")) * 132 * 1980e6), {"quantise": 1.0, "math": 1.0}
    for clock_hz in (600e6, 1980e6):
        free, held = (seconds_of(phases, clock_hz, **quantise, ceiling=ceiling) for ceiling in (0.0, 1.4))
        converting = seconds_of(phases, clock_hz, quantise=1.0)
        assert held >= max(free, converting + 1.4 * ideal_s) * (1 - 1e-9)
        assert held <= (1.0 + 2.0**-10) * free or free < 2.8 * ideal_s + converting


def test_whole_waves_cost_whole_waves():
    full, one_more = (phases_of(matmul(128 * 108 + more, 256, 1024), A100, 128.0, 256.0, 1.0) for more in (0, 1))
    assert_allclose(part(one_more, "math"), 2 * part(full, "math"))


def test_a_convolution_moves_its_image_not_its_im2col():
    events = phases_of(convolution(3, height=56, width=56, padding=1), A100).events[0]
    assert_allclose(events[EVENTS.index("dram")], 2 * (8 * 64 * 56 * 56 * 2) + 64 * 64 * 9 * 2)
    assert_allclose(events[EVENTS.index("tensor")], 2 * 8 * 56 * 56 * 64 * 64 * 9)


@pytest.mark.parametrize("channels, stride, padded", [(3, 2, 4), (3, 1, 8), (4, 2, 4), (5, 2, 8), (16, 2, 16), (17, 1, 24)])
def test_tensor_cores_work_through_the_channels_that_a_library_adds(channels, stride, padded):
    columns = matrix_columns([convolution(7, channels=channels, stride=stride)], A100)
    assert (columns.k[0], columns.padded_k[0], columns.weight_byte[0]) == (channels * 49, padded * 49, 64 * channels * 49 * 2)


def test_blocks_that_share_an_sm_hide_each_others_stores():
    alone, beside, crowded = (part(product_phases(128, 128 * blocks, 64), "store") for blocks in (1, 2 * 108, 4 * 108))
    assert_allclose([beside, crowded], [alone, 2 * alone])


def test_the_pipeline_is_filled_as_often_as_waves_count():
    phases = product_phases(128, 128, 1024)
    shares = [wave_share(phases, coefficient_vector({"wave_exponent": eta})[None, :])[0] for eta in (0.0, 0.5, 1.0)]
    assert_allclose(shares, [0.5, np.sqrt(0.5), 1.0])
    assert_allclose(seconds_of(phases, prologue=1.0, wave_exponent=0.0), seconds_of(phases, prologue=1.0, wave_exponent=1.0) / 2)


def test_without_tensor_cores_a_small_tile_waits_for_its_loads():
    small, large = (part(product_phases(32, 32, 4096, "fp32", tile=tile), "loop") for tile in (32.0, 128.0))
    assert_allclose([small, large], [4096 / 8 * 300.0, 2 * 128 * 128 * 4096 / A100.cuda_flop_per_clock["fp32"]])


def test_starting_the_reduction_of_a_split_follows_the_clock():
    whole, split = (product_phases(128, 128, 4096, split=split) for split in (1.0, 4.0))
    assert seconds_of(whole, reduce_start=1.0) == 0.0
    assert_allclose(seconds_of(split, 5e8, reduce_start=1.0), 2 * seconds_of(split, 1e9, reduce_start=1.0))


@pytest.mark.parametrize("queries", [1, 7, 64, 300, 4096])
def test_flash_attention_is_finite_and_grows_with_the_sequence(queries):
    operators = [attention(queries * factor, batch=2, heads=16, kv_heads=4) for factor in (1, 2)]
    short, long = (float(kernel_seconds(phases_of(one, A100), prior_rows([one]), 1410e6)[0]) for one in operators)
    assert 0.0 < short <= long < 1.0


@pytest.mark.parametrize("gpu, rows", [("h100-sxm", 128), ("b200-sxm", 256)])
def test_causal_attention_ends_about_when_the_last_multiprocessor_does_that_takes_its_blocks_by_turns(gpu, rows):
    spec, ratios = load_gpu(gpu), []
    for queries in (1024, 3072, 8192, 16384):
        for heads in (2, 3, 8, 12, 20, 32, 64, 96, 160):
            keys = np.tile(np.arange(1, queries // rows + 1) * rows // 64, heads)
            turns = np.append(keys, np.zeros(-len(keys) % spec.num_sms)).reshape(-1, spec.num_sms)
            chain = part(phases_of(attention(queries, batch=1, heads=heads, kv_heads=heads), spec), "loop")
            ratios.append(chain / 600.0 / turns.sum(axis=0).max())
    assert 0.85 < np.mean(ratios) < 1.05
    assert 0.6 < min(ratios) <= max(ratios) < 1.3


# Output that persistent blocks hide -----------------------------------------------------------------------------------

sizes = st.integers(1, 40_000)


def shares(gpu, m, n, k):
    """Output in the open and hidden, over the time that the whole output takes, and split-K, of every candidate tile."""
    columns = matrix_columns([matmul(m, n, k)], gpu)
    tiles = tile_candidates(gpu, cuda_cores=False)
    phases = candidate_phases(columns, tiles, gpu)
    whole = columns.output_byte[0] / gpu.dram_bytes_per_s
    hidden = part(phases, "dram_activations") - columns.activation_byte[0] / gpu.dram_bytes_per_s
    return part(phases, "epilogue") / whole, hidden / whole, tiles.split


@given(sizes, sizes, sizes)
def test_all_of_the_output_is_written_once(m, n, k):
    serial, hidden, split = shares(load_gpu("h100-sxm"), m, n, k)
    assert serial + hidden == pytest.approx(1.0, rel=1e-6)
    assert (serial > 0.0).all()
    assert serial[split > 1] == pytest.approx(1.0)


def test_a_block_alone_on_its_sm_hides_nothing_and_the_more_follow_the_more_is_hidden():
    gpu = load_gpu("h100-sxm")
    alone, few, many = (shares(gpu, m, 1024, 512)[0][shares(gpu, m, 1024, 512)[2] == 1] for m in (64, 8192, 32768))
    assert alone == pytest.approx(1.0)
    assert (many < few).all()
    assert many.min() < 0.5


def test_blocks_that_stay_on_their_sm_write_in_the_open():
    assert shares(load_gpu("a100-sxm-80gb"), 32768, 4096, 512)[0] == pytest.approx(1.0)


# Long rows ------------------------------------------------------------------------------------------------------------

SMALL_L2 = load_gpu("v100-pcie-32gb")
ROWS = 20_000


def rows_of(operator, dim, gpu, rows=ROWS, precision="fp32"):
    family = "softmax" if operator == "softmax" else "norm"
    return STREAM_KINDS["stream"]([make_operator(family, operator, precision, rows=rows, dim=dim)], gpu)


def read_again(phases, dim, gpu):
    """Bytes that cross DRAM once more, in sizes of the fp32 matrix."""
    return float(part(phases, "dram_activations")) * gpu.dram_bytes_per_s / (4.0 * ROWS * dim)


LONGEST = Stream.SHARED_ROW_BYTES // 4


@pytest.mark.parametrize(
    "operator, dim, gpu, low, high",
    [
        ("layernorm", 1024, A100, 0.0, 0.01), ("layernorm", 8192, SMALL_L2, 0.9, 1.0),
        ("softmax", LONGEST, SMALL_L2, 0.0, 0.0), ("softmax", 4 * LONGEST, SMALL_L2, 1.8, 2.0),
    ],
)  # fmt: skip
def test_rows_that_outgrow_l2_are_read_again_norms_once_and_long_softmax_rows_twice(operator, dim, gpu, low, high):
    assert low <= read_again(rows_of(operator, dim, gpu), dim, gpu) <= high


@given(st.sampled_from(["softmax", "layernorm", "rmsnorm"]), st.integers(8, 60_000), st.integers(1, 50_000))
def test_time_and_energy_count_the_same_bytes(operator, dim, rows):
    for gpu in (A100, SMALL_L2):
        phases = rows_of(operator, dim, gpu, rows)
        counted = phases.events[0, EVENTS.index("dram")] / gpu.dram_bytes_per_s
        assert part(phases, "dram_activations") + part(phases, "dram") == pytest.approx(counted)


@given(st.sampled_from(["layernorm", "rmsnorm"]), st.integers(8, 60_000), st.integers(1, 50_000))
def test_a_norm_without_vectors_waits_longer_than_one_of_longer_rows_with_them(operator, dim, rows):
    plain, vectors = (rows_of(operator, length, A100, rows) for length in (dim // 4 * 4 + 1, dim // 4 * 4 + 4))
    assert all(part(plain, name) >= part(vectors, name) for name in ("issue", "loop", "wait"))
    assert part(plain, "waves") > part(vectors, "waves")


def slowest_warp(dim):
    """Loads one after the other of the slowest of four warps, lane by lane: a warp walks every way that one of its lanes takes."""
    vectors = -(-dim // 4)
    counts = [len(range(thread, vectors, 128)) for thread in range(128)]
    warps = [counts[first : first + 32] for first in range(0, 128, 32)]
    return max(max(count // 4 for count in warp) + max(count % 4 for count in warp) for warp in warps)


@given(st.integers(1, 40_000))
def test_a_norm_waits_for_the_loads_of_its_slowest_warp(dim):
    assert norm_loads(dim) == slowest_warp(dim)

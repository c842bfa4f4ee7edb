"""Laws of the latency equations."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from estimator.model.coefficients import coefficient_rows, coefficient_vector, group_key
from estimator.model.lowering import KnownTiles, lower, matrix_columns
from estimator.model.phases import EVENTS, OVERLAPPED, SERIAL, Phases
from estimator.model.timeline import kernel_seconds, launch_bound_share, p_norm, sweep_parts, sweep_seconds, wave_share, workload_seconds
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import HZ_PER_MHZ
from estimator.vocabulary.specifications import load_gpu
from estimator.vocabulary.workload import Operator, make_operator
from fitter.latency.runs import prior_groups
from tests.estimator.synthetic import transformer

positive = st.floats(1e-9, 1e3)


@pytest.fixture(scope="module")
def a100() -> GpuSpec:
    return load_gpu("a100-pcie-40gb")


@given(st.lists(positive, min_size=2, max_size=6), st.floats(1.0, 20.0))
def test_a_p_norm_lies_between_the_longest_part_and_the_sum(parts: list[float], p: float) -> None:
    total = p_norm(np.array([parts]), np.array([p]))[0]
    assert max(parts) * (1 - 1e-9) <= total <= sum(parts) * (1 + 1e-9)


@given(positive, positive, st.floats(1.0, 256.0))
def test_a_workload_takes_at_least_the_longer_of_gpu_and_host(gpu_s: float, host_s: float, p: float) -> None:
    total = float(workload_seconds(np.array([gpu_s]), np.array([host_s]), p)[0])
    assert max(gpu_s, host_s) * (1 - 1e-12) <= total <= max(gpu_s, host_s) * 2 ** (1 / p) * (1 + 1e-12)
    share = float(launch_bound_share(np.array([gpu_s]), np.array([host_s]), p)[0])
    assert (share > 0.5) == (host_s > gpu_s) or abs(host_s - gpu_s) < 1e-9 * gpu_s


def test_a_sweep_gives_what_single_clocks_give(a100: GpuSpec) -> None:
    operators = transformer(512, 768, 2).operators
    coefficients, _ = coefficient_rows(prior_groups(), [group_key(o) for o in operators])
    phases = lower(operators, a100, coefficients).phases
    clocks = a100.clocks_mhz() * HZ_PER_MHZ
    sweep = sweep_seconds(sweep_parts(phases, coefficients), clocks)
    for i in (0, 40, 80):
        assert_allclose(sweep[:, i], kernel_seconds(phases, coefficients, float(clocks[i])), rtol=1e-12)


def test_no_kernel_slows_down_when_the_clock_rises(a100: GpuSpec) -> None:
    operators = transformer(300, 1024, 1).operators
    coefficients, _ = coefficient_rows(prior_groups(), [group_key(o) for o in operators])
    sweep = sweep_seconds(sweep_parts(lower(operators, a100, coefficients).phases, coefficients), a100.clocks_mhz() * HZ_PER_MHZ)
    assert (np.diff(sweep, axis=1) <= 0).all()


@given(st.integers(1, 4096), st.integers(1, 4096), st.integers(1, 4096))
def test_a_product_with_lambda_one_never_beats_the_roofline(m: int, n: int, k: int) -> None:
    gpu = load_gpu("a100-pcie-40gb")
    operator = make_operator("gemm", "linear", "bf16", batch=1, m=m, n=n, k=k)
    ideal = {"math": 1.0, "l2": 1.0, "dram": 1.0, "dram_activations": 1.0, "loop": 1.0, "epilogue": 1.0, "exponent": 2.0}
    coefficients, _ = coefficient_rows({"gemm": ideal}, [group_key(operator)])
    seconds = float(kernel_seconds(lower([operator], gpu, coefficients).phases, coefficients, 1410e6)[0])
    assert seconds >= 2.0 * m * n * k / gpu.peak_flop_per_s("bf16")
    assert seconds >= 2.0 * (m * k + n * k + m * n) / gpu.dram_bytes_per_s * (1 - 1e-12)


def test_whole_waves_cost_whole_waves(a100: GpuSpec) -> None:
    math = OVERLAPPED.index("math")
    times = []
    for m in (128 * 108, 128 * 108 + 1):
        operator = make_operator("gemm", "linear", "bf16", batch=1, m=m, n=256, k=1024)
        coefficients, _ = coefficient_rows(prior_groups(), ["gemm"])
        known = KnownTiles(tile_m=np.array([128.0]), tile_n=np.array([256.0]), split=np.array([1.0]))
        times.append(lower([operator], a100, coefficients, known).phases.overlapped[0, math])
    assert_allclose(times[1], 2 * times[0])


def test_a_convolution_moves_its_image_not_its_im2col(a100: GpuSpec) -> None:
    operator = make_operator(
        "conv",
        "conv2d",
        "bf16",
        batch=8,
        channels=64,
        height=56,
        width=56,
        filters=64,
        kernel_h=3,
        kernel_w=3,
        stride=1,
        padding=1,
        groups=1,
    )
    coefficients, _ = coefficient_rows(prior_groups(), [group_key(operator)])
    events = lower([operator], a100, coefficients).phases.events[0]
    image, weights = 8 * 64 * 56 * 56 * 2, 64 * 64 * 9 * 2
    assert_allclose(events[EVENTS.index("dram")], 2 * image + weights)
    assert_allclose(events[EVENTS.index("tensor")], 2 * 8 * 56 * 56 * 64 * 64 * 9)


def convolution(channels: int, kernel: int, stride: int, precision: str = "bf16") -> Operator:
    return make_operator(
        "conv", "conv2d", precision, batch=8, channels=channels, height=64, width=64, filters=64, kernel_h=kernel, kernel_w=kernel,
        stride=stride, padding=0, groups=1,
    )  # fmt: skip


@pytest.mark.parametrize(("channels", "stride", "padded"), [(3, 2, 4), (3, 1, 8), (4, 2, 4), (5, 2, 8), (16, 2, 16), (17, 1, 24)])
def test_tensor_cores_work_through_the_channels_that_a_library_adds(a100: GpuSpec, channels: int, stride: int, padded: int) -> None:
    columns = matrix_columns([convolution(channels, 7, stride)], a100)
    assert columns.k[0] == channels * 49
    assert columns.padded_k[0] == padded * 49
    assert columns.weight_byte[0] == 64 * channels * 49 * 2


def product_phases(gpu: GpuSpec, m: int, n: int, k: int, precision: str = "bf16", tile: float = 128.0, split: float = 1.0) -> Phases:
    operator = make_operator("gemm", "linear", precision, batch=1, m=m, n=n, k=k)
    coefficients, _ = coefficient_rows(prior_groups(), ["gemm"])
    known = KnownTiles(tile_m=np.array([tile]), tile_n=np.array([tile]), split=np.array([split]))
    return lower([operator], gpu, coefficients, known).phases


def test_blocks_that_share_an_sm_hide_each_others_stores(a100: GpuSpec) -> None:
    store = SERIAL.index("store")
    alone = product_phases(a100, 128, 128, 64).serial[0, store]
    beside = product_phases(a100, 128, 128 * 2 * 108, 64).serial[0, store]
    crowded = product_phases(a100, 128, 128 * 4 * 108, 64).serial[0, store]
    assert_allclose(beside, alone)
    assert_allclose(crowded, 2 * alone)


def test_the_pipeline_is_filled_as_often_as_waves_count(a100: GpuSpec) -> None:
    phases = product_phases(a100, 128, 128, 1024)
    shares = [wave_share(phases, coefficient_vector({"wave_exponent": eta})[None, :])[0] for eta in (0.0, 0.5, 1.0)]
    assert_allclose(shares, [0.5, np.sqrt(0.5), 1.0])
    times = [
        float(kernel_seconds(phases, coefficient_vector({"prologue": 1.0, "epsilon_s": 0.0, "wave_exponent": eta})[None, :], 1e9)[0])
        for eta in (0.0, 1.0)
    ]
    assert_allclose(times[0], times[1] / 2)


def test_without_tensor_cores_a_small_tile_waits_for_its_loads(a100: GpuSpec) -> None:
    loop = OVERLAPPED.index("loop")
    small, large = (product_phases(a100, 32, 32, 4096, "fp32", tile=tile).overlapped[0, loop] for tile in (32.0, 128.0))
    assert_allclose(small, 4096 / 8 * 300.0)
    assert_allclose(large, 2 * 128 * 128 * 4096 / a100.cuda_flop_per_clock["fp32"])


def test_starting_the_reduction_of_a_split_follows_the_clock(a100: GpuSpec) -> None:
    values = coefficient_vector({"reduce_start": 1.0, "epsilon_s": 0.0})[None, :]
    whole, split = (product_phases(a100, 128, 128, 4096, split=split) for split in (1.0, 4.0))
    assert_allclose(kernel_seconds(whole, values, 1e9), 0.0)
    assert_allclose(kernel_seconds(split, values, np.array([5e8])), 2 * kernel_seconds(split, values, np.array([1e9])))


@pytest.mark.parametrize("queries", [1, 7, 64, 300, 4096])
def test_flash_attention_is_finite_and_grows_with_the_sequence(a100: GpuSpec, queries: int) -> None:
    seconds = []
    for factor in (1, 2):
        operator = make_operator(
            "attention",
            "prefill",
            "bf16",
            batch=2,
            queries=queries * factor,
            context=queries * factor,
            heads=16,
            kv_heads=4,
            head_dim=64,
            window=0,
            causal=1,
        )
        coefficients, _ = coefficient_rows(prior_groups(), [group_key(operator)])
        seconds.append(float(kernel_seconds(lower([operator], a100, coefficients).phases, coefficients, 1410e6)[0]))
    assert np.isfinite(seconds).all()
    assert 0 < seconds[0] <= seconds[1]


def test_a_window_makes_long_attention_linear(a100: GpuSpec) -> None:
    tensor = EVENTS.index("tensor")
    work = []
    for length in (8192, 16384):
        operator = make_operator(
            "attention", "prefill", "bf16", batch=1, queries=length, context=length, heads=8, kv_heads=8, head_dim=128, window=512, causal=1
        )
        coefficients, _ = coefficient_rows(prior_groups(), [group_key(operator)])
        work.append(lower([operator], a100, coefficients).phases.events[0, tensor])
    assert_allclose(work[1] / work[0], 2.0, rtol=0.05)

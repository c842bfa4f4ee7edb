"""Laws of the simulated library and scheduler: no kernel beats its roofline, more work takes longer."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.errors import RunnerError
from collector.simulated.board import plan_kernel
from collector.simulated.plan import sm_speeds
from collector.simulated.profile import board_names, load_board
from collector.simulated.scheduler import kernel_timing
from estimator import make_operator
from tests.collector.dataset_rows import addition, operators_of_every_kind, product

boards = pytest.mark.parametrize("name", board_names())


def seconds(name, operator, l2_state="cold"):
    profile = load_board(name)
    speeds = sm_speeds(profile.schedule, profile.spec.num_sms, 0)
    return kernel_timing(profile, plan_kernel(operator, profile), l2_state, profile.spec.sm_clock_max_mhz, speeds).gpu_s


@boards
@pytest.mark.parametrize("precision", ["fp16", "fp32", "bf16"])
def test_every_kind_of_operator_runs_or_is_refused(name, precision):
    profile = load_board(name)
    gpu = profile.spec
    for operator in operators_of_every_kind(precision):
        matrix = operator.family in ("gemm", "attention") or operator.operator == "conv2d"
        known = precision in gpu.tensor_flop_per_clock or (precision == "fp32" and operator.family != "attention")
        if matrix and not known:
            with pytest.raises(RunnerError, match=f"{precision}: no such kernel"):
                plan_kernel(operator, profile)
            continue
        plan = plan_kernel(operator, profile)
        assert plan.kernel.kernel_name
        assert 1 <= plan.kernel.blocks_per_sm <= gpu.blocks_per_sm
        assert plan.kernel.shared_bytes_per_block < gpu.shared_bytes_per_sm
        assert seconds(name, operator) > 1e-6
        traffic = plan.traffic
        assert 0.0 <= traffic["warm"] <= traffic["cold"] * (1.0 + 1e-9)
        assert traffic["cold"] <= 1.05 * plan.l2_bytes


sizes = st.integers(min_value=1, max_value=6000) | st.integers(min_value=1, max_value=750).map(lambda eighth: 8 * eighth)


@settings(max_examples=60)
@given(
    name=st.sampled_from(board_names()),
    shape=st.tuples(st.sampled_from([1, 3, 32]), sizes, sizes, sizes),
    state=st.sampled_from(["warm", "cold"]),
    which=st.integers(0, 3),
)
def test_no_product_beats_its_roofline_and_twice_the_work_is_not_faster(name, shape, state, which):
    def multiplied(factor):
        sides = [side * factor if number == which else side for number, side in enumerate(shape)]
        return make_operator("gemm", "bmm", "fp16", **dict(zip(("batch", "m", "n", "k"), sides, strict=True)))

    gpu, (batch, m, n, k) = load_board(name).spec, shape
    compute_s = 2.0 * batch * m * n * k / (gpu.matrix_flop_per_clock("fp16", cuda_cores=False) * gpu.num_sms * gpu.sm_clock_max_mhz * 1e6)
    dram_s = 2.0 * batch * (m * k + n * k + m * n) / gpu.dram_bytes_per_s if state == "cold" else 0.0
    single = seconds(name, multiplied(1), state)
    assert single > max(compute_s, dram_s)
    # A larger tile or another split may decide the time of products of a few elements; an odd row doubled is loaded in wider pieces.
    if n % 8 == k % 8 == 0:
        assert 1.06 * seconds(name, multiplied(2), state) + 0.5e-6 > single


@settings(max_examples=40)
@given(name=st.sampled_from(board_names()), elements=st.integers(1, 1 << 28), inputs=st.integers(1, 3))
def test_no_stream_beats_the_memory(name, elements, inputs):
    operator = make_operator("elementwise", "other", "fp32", elements=elements, reads=inputs * elements)
    assert seconds(name, operator) > 4.0 * (1 + inputs) * elements / load_board(name).spec.dram_bytes_per_s


@boards
def test_data_in_the_l2_are_faster_than_data_in_memory(name):
    profile = load_board(name)
    elements = int(profile.memory.l2_usable_share * profile.spec.l2_bytes / 4 / 3)
    operator = addition(elements // 2)
    warm, cold = seconds(name, operator, "warm"), seconds(name, operator, "cold")
    assert cold > 1.15 * warm
    much = addition(100 * elements)
    assert seconds(name, much, "cold") == pytest.approx(seconds(name, much, "warm"), rel=1e-3)


@boards
def test_a_wave_more_costs_a_step(name):
    profile = load_board(name)
    if profile.library.generation == "hopper":
        pytest.skip("persistent kernels share out their last wave")
    operator = product(128, k=4096, precision="fp32")
    plan, slots = plan_kernel(operator, profile), profile.spec.num_sms
    speeds = sm_speeds(profile.schedule, slots, 0)

    def time_of(blocks):
        wave = replace(plan, kernel=replace(plan.kernel, blocks_per_sm=1, grid=(blocks, 1, 1)))
        return kernel_timing(profile, wave, "warm", 900.0, speeds).gpu_s

    within, beyond = time_of(4 * slots), time_of(4 * slots + 1)
    assert beyond > 1.1 * within
    assert 0.95 * within < time_of(4 * slots - 1) <= within


@pytest.mark.parametrize(("slow", "fast"), [(1540, 1536), (2044, 2048), (3588, 3584)])
def test_a_norm_whose_warps_part_takes_longer_for_an_element(slow, fast):
    norms = [make_operator("norm", "layernorm", "fp32", rows=8192, dim=dim) for dim in (slow, fast)]
    slower, faster = (seconds("a100-pcie-40gb", norm) / norm["dim"] for norm in norms)
    assert slower > 1.01 * faster


@pytest.mark.parametrize(("m", "n", "k", "ratio"), [(197, 200, 64, 1.0), (197, 197, 64, 1.1), (197, 64, 197, 1.3), (197, 64, 200, 1.0)])
def test_only_rows_that_are_no_multiple_of_16_bytes_slow_a_product(m, n, k, ratio):
    own, padded = (
        seconds("a100-pcie-40gb", make_operator("gemm", "bmm", "bf16", batch=512, m=m, n=-(-n // to) * to, k=-(-k // to) * to))
        for to in (1, 8)
    )
    assert own >= padded * ratio
    assert own == padded or ratio > 1.0

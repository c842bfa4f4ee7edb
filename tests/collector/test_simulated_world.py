"""Laws of the simulated world, library and scheduler: energy, heat, clocks, sensor; no kernel beats its roofline."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.bench import open_simulated
from collector.devices.protocols import limiting_reasons
from collector.errors import RunnerError
from collector.simulated.board import SimulatedBoard, plan_kernel
from collector.simulated.plan import sm_speeds
from collector.simulated.profile import Faults, board_names, load_board
from collector.simulated.scheduler import kernel_timing
from collector.simulated.world import PowerTrace
from estimator import make_operator
from tests.collector.dataset_rows import addition, operators_of_every_kind, product

PRODUCT = product(4096)


boards = pytest.mark.parametrize("name", board_names())


def planted_latency_s(board, prepared, sm_clock_mhz):
    """Time from one launch to the next at a clock, without a run's random variation [s]."""
    return board.runner._loaded[prepared](sm_clock_mhz).period_s


def run_for(board, seconds, clock_mhz):
    """Runs the product for about so long at a locked clock."""
    board.gpu.lock_clock_mhz(clock_mhz)
    prepared = board.runner.prepare(PRODUCT)
    board.runner.run(prepared, max(1, int(seconds / planted_latency_s(board, prepared, clock_mhz))))
    return prepared


def test_board_energy_is_in_the_end_what_the_silicon_drew():
    profile = load_board("a100-pcie-40gb")
    trace, drawn, now_s = PowerTrace(profile.transient, 0.01, 0.0, 40.0), 0.0, 0.0
    for seconds, watt in ((0.3, 250.0), (0.0004, 90.0), (1.7, 180.0), (60.0, 40.0)):
        now_s, drawn = now_s + seconds, drawn + seconds * watt
        trace.extend(now_s, watt)
    assert trace.energy_j(np.array([now_s]))[0] == pytest.approx(drawn, rel=1e-9)


@boards
def test_the_power_limit_lowers_the_clock_and_is_kept(name):
    with open_simulated(name) as board:
        top = board.gpu.supported_clocks_mhz()[-1]
        prepared = run_for(board, 1.0, top)
        board.gpu.read_states()
        begin = board.clock.now_ns()
        launches = int(4.0 / planted_latency_s(board, prepared, top))
        record = board.runner.run(prepared, launches)
        states = board.gpu.read_states()
        late_ns = record.end_ns - 1_000_000_000
        mean_w = board.true_energy_j(late_ns, record.end_ns)
        assert mean_w <= 1.002 * board.gpu.power_limit_w()
        late = states.host_ns > begin + 200_000_000
        assert np.all(states.sm_clock_mhz[late] < top)
        assert limiting_reasons(int(states.throttle_mask[late][-1])) == ("sw_power_cap",)
        assert record.segment_s[-1] > 1.02 * planted_latency_s(board, prepared, top)


@pytest.mark.parametrize("sink_k, faults, clock", [(62.0, None, None), (0.0, Faults(throttle_share=1.0), 720.0)])
def test_a_hot_board_or_a_throttled_run_slows_down_and_says_so(sink_k, faults, clock):
    with open_simulated("a100-pcie-40gb", faults=faults) as board:
        board.world._sink_k += sink_k
        board.gpu.read_states()
        run_for(board, 0.5, 900.0)
        states = board.gpu.read_states()
        assert states.sm_clock_mhz[-1] == clock if clock else states.sm_clock_mhz[-1] < 900.0
        assert limiting_reasons(int(states.throttle_mask[-1])) == ("sw_thermal_slowdown",)


def quiet_board(name, **changes):
    """A board whose sensor has no noise and whose power follows the silicon at once."""
    profile = load_board(name)
    still = {"jitter_s": 0.0, "wander_s": 0.0, "noise_w": 0.0, "skip_share": 0.0, "quantum_w": 1e-6, "clock": "rigid"}
    sensor = replace(profile.sensor, **(still | changes))
    transient = replace(profile.transient, fast_time_s=1e-5, slow_share=0.0, creep_share=0.0)
    return SimulatedBoard(replace(profile, sensor=sensor, transient=transient), 0)


def drive(board, high_s, low_s, cycles):
    """A square wave of load."""
    board.gpu.lock_clock_mhz(board.gpu.supported_clocks_mhz()[20])
    prepared = board.runner.prepare(PRODUCT)
    launches = max(1, int(high_s / planted_latency_s(board, prepared, board.gpu.supported_clocks_mhz()[20])))
    for _ in range(cycles):
        board.runner.run(prepared, launches)
        board.clock.wait(low_s)


def true_power(board, end_s, profile):
    """The window's mean of the true power, by direct summation over a fine grid."""
    window_s, boxcar = profile.sensor.window_s, profile.sensor.kind == "boxcar"
    edges = np.arange(0.0, (window_s if boxcar else 6.0 * window_s) + 5e-5, 1e-4)
    energy = board.world.trace.energy_j((end_s[:, None] - edges).ravel()).reshape(len(end_s), -1)
    weights = np.ones(len(edges) - 1) if boxcar else np.exp(-2.0 * edges[1:] / window_s)
    return np.diff(-energy, axis=1) / 1e-4 @ (weights / weights.sum())


@boards
@pytest.mark.parametrize("change", [{}, {"delay_s": 0.02}], ids=["", "delayed"])
def test_a_value_is_gain_times_the_windowed_power_plus_offset(name, change):
    board = quiet_board(name, **change)
    board.sensor.read()
    drive(board, 0.137, 0.091, 12)
    sensor = board.world.profile.sensor
    reading = board.sensor.read()[0]
    updates = board.sensor._seen[0, -60:]
    values = board.sensor._seen[1, -60:]
    expected = sensor.gain * true_power(board, updates - sensor.delay_s, board.world.profile) + sensor.offset_w
    assert np.ptp(values) > 20.0
    assert values == pytest.approx(expected, abs=0.3)
    assert np.isin(np.round(reading.power_w[-20:], 6), np.round(values, 6)).all()


@boards
def test_readings_do_not_depend_on_how_often_they_are_fetched(name):
    def readings(fetches):
        with open_simulated(name, seed=5) as board:
            parts = []
            for number in range(8):
                drive(board, 0.11, 0.07, 3)
                if number >= 8 - fetches:
                    parts.append(board.sensor.read())
            return [b"".join(reading.power_w.tobytes() for reading in field) for field in zip(*parts, strict=True)]

    assert readings(8) == readings(1)


def test_the_average_field_trails_the_instant_one_by_half_a_second():
    with open_simulated("rtx-3090") as board:
        board.gpu.lock_clock_mhz(900.0)
        prepared = board.runner.prepare(PRODUCT)
        board.sensor.read()
        edge_ns = board.clock.now_ns()
        board.runner.run(prepared, int(4.0 / planted_latency_s(board, prepared, 900.0)))
        instant, average = board.sensor.read()
        top = average.power_w[-50:].mean()
        half = 0.5 * (average.power_w[0] + top)
        reached = (average.host_ns[np.argmax(average.power_w > half)] - edge_ns) * 1e-9
        assert 0.4 < reached < 0.8
        assert top == pytest.approx(instant.power_w[-50:].mean(), rel=0.01)
        assert (instant.host_ns[np.argmax(instant.power_w > half)] - edge_ns) * 1e-9 < 0.25


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


@pytest.mark.parametrize("slow, fast", [(1540, 1536), (2044, 2048), (3588, 3584)])
def test_a_norm_whose_warps_part_takes_longer_for_an_element(slow, fast):
    norms = [make_operator("norm", "layernorm", "fp32", rows=8192, dim=dim) for dim in (slow, fast)]
    slower, faster = (seconds("a100-pcie-40gb", norm) / norm["dim"] for norm in norms)
    assert slower > 1.01 * faster


@pytest.mark.parametrize("n, k, ratio", [(200, 64, 1.0), (197, 64, 1.1), (64, 197, 1.3), (64, 200, 1.0)])
def test_only_rows_that_are_no_multiple_of_16_bytes_slow_a_product(n, k, ratio):
    own, padded = (
        seconds("a100-pcie-40gb", make_operator("gemm", "bmm", "bf16", batch=512, m=197, n=-(-n // to) * to, k=-(-k // to) * to))
        for to in (1, 8)
    )
    assert own >= padded * ratio
    assert own == padded or ratio > 1.0

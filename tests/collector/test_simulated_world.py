"""Laws of the simulated world: energy, heat, clocks, and repetition to the bit."""

import numpy as np
import pytest

from collector.bench import open_simulated
from collector.devices.protocols import limiting_reasons
from collector.simulated.profile import Faults, board_names, load_board
from collector.simulated.silicon import rest_power_w, voltage_v
from collector.simulated.trace import PowerTrace
from estimator.vocabulary.workload import make_operator

PRODUCT = make_operator("gemm", "linear", "fp16", batch=1, m=4096, n=4096, k=4096)
ADDITION = make_operator("elementwise", "add", "fp32", elements=1 << 22, reads=1 << 23)

boards = pytest.mark.parametrize("name", board_names())


def run_for(board, operator, seconds, clock_mhz):
    """Runs an operator for about so long at a locked clock."""
    board.gpu.lock_clock_mhz(clock_mhz)
    prepared = board.runner.prepare(operator)
    board.runner.run(prepared, max(1, int(seconds / board.planted_latency_s(prepared, clock_mhz))))
    return prepared


def transcript(name, seed):
    """Everything that a small session can see, as bytes."""
    parts = []
    with open_simulated(name, seed=seed) as board:
        for clock in board.gpu.supported_clocks_mhz()[::30]:
            for operator in (PRODUCT, ADDITION):
                prepared = run_for(board, operator, 0.3, clock)
                record = board.runner.run(prepared, 50)
                board.clock.wait(0.1)
                states = board.gpu.read_states()
                columns = (record.segment_s, states.sm_clock_mhz, states.temperature_c, states.host_ns)
                parts += [column.tobytes() for column in columns] + [repr(prepared).encode(), str(record.end_ns).encode()]
                parts += [column.tobytes() for reading in board.sensor.read() for column in (reading.host_ns, reading.power_w)]
                parts += [board.meter.read()[0].power_w.tobytes()]
    return b"".join(parts)


@boards
def test_a_seed_repeats_to_the_bit_and_another_does_not(name):
    first = transcript(name, 7)
    assert first == transcript(name, 7)
    assert first != transcript(name, 8)


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
        prepared = run_for(board, PRODUCT, 1.0, top)
        board.gpu.read_states()
        begin = board.clock.now_ns()
        launches = int(4.0 / board.planted_latency_s(prepared, top))
        record = board.runner.run(prepared, launches)
        states = board.gpu.read_states()
        late_ns = record.end_ns - 1_000_000_000
        mean_w = board.true_energy_j(late_ns, record.end_ns)
        assert mean_w <= 1.002 * board.gpu.power_limit_w()
        late = states.host_ns > begin + 200_000_000
        assert np.all(states.sm_clock_mhz[late] < top)
        assert limiting_reasons(int(states.throttle_mask[late][-1])) == ("sw_power_cap",)
        assert record.segment_s[-1] > 1.02 * board.planted_latency_s(prepared, top)


@boards
def test_voltage_rises_with_the_clock_in_the_regulators_steps(name):
    profile = load_board(name)
    volts = np.array([voltage_v(profile, clock) for clock in profile.spec.clocks_mhz()])
    steps = volts / profile.clock.voltage_step_v
    assert np.all(np.diff(volts) >= 0.0)
    assert np.abs(steps - np.round(steps)).max() < 1e-4
    assert volts[-1] > volts[0]


@boards
def test_a_board_warms_under_load_and_cools_at_rest(name):
    with open_simulated(name) as board:
        clock = board.gpu.supported_clocks_mhz()[30]
        cool = board.world.temperature_c
        run_for(board, PRODUCT, 30.0, clock)
        warm = board.world.temperature_c
        board.clock.wait(300.0)
        assert warm > cool + 3.0
        profile, thermal = board.world.profile, board.world.profile.thermal
        rest_w = rest_power_w(profile, clock, voltage_v(profile, clock), board.world.temperature_c)
        settled = thermal.ambient_c + (thermal.die_k_per_w + thermal.sink_k_per_w) * rest_w
        assert board.world.temperature_c == pytest.approx(settled, abs=0.3)


@pytest.mark.parametrize(("sink_k", "faults", "clock"), [(62.0, None, None), (0.0, Faults(throttle_share=1.0), 720.0)])
def test_a_hot_board_or_a_throttled_run_slows_down_and_says_so(sink_k, faults, clock):
    with open_simulated("a100-pcie-40gb", faults=faults) as board:
        board.world._sink_k += sink_k
        board.gpu.read_states()
        run_for(board, PRODUCT, 0.5, 900.0)
        states = board.gpu.read_states()
        assert states.sm_clock_mhz[-1] == clock if clock else states.sm_clock_mhz[-1] < 900.0
        assert limiting_reasons(int(states.throttle_mask[-1])) == ("sw_thermal_slowdown",)


def test_faults_are_off_unless_asked_for_and_then_show():
    def latency_and_power(faults):
        with open_simulated("a100-pcie-40gb", faults=faults) as board:
            prepared = board.runner.prepare(make_operator("gemm", "linear", "bf16", batch=1, m=2048, n=2048, k=2048))
            point = board.runner.loaded(prepared)(900.0)
            return point.gpu_s, point.added_w

    plain_s, plain_w = latency_and_power(None)
    hidden_s, hidden_w = latency_and_power(Faults(hidden_pj_per_byte=30.0, hidden_slowdown=0.2))
    assert latency_and_power(Faults()) == (plain_s, plain_w)
    assert hidden_s == pytest.approx(1.2 * plain_s, rel=1e-3)
    assert hidden_w > plain_w + 3.0

"""What every bench keeps to, whatever is behind it; written against the protocols alone."""

import numpy as np
import pytest

from collector.bench import bench_words, open_bench
from collector.devices.protocols import THROTTLE_BITS
from collector.errors import ClockError
from estimator import make_operator
from tests.collector.dataset_rows import product

PRODUCT = product(2048)
SMALL = make_operator("softmax", "softmax", "fp32", rows=256, dim=512)


@pytest.fixture(params=bench_words())
def bench(request):
    with open_bench(request.param) as opened:
        yield opened


def launches_for(bench, operator, seconds):
    prepared = bench.runner.prepare(operator)
    return prepared, max(1, int(seconds / bench.runner.run(prepared, 20).segment_s.mean()))


def test_time_moves_only_forward(bench):
    before, wall = bench.clock.now_ns(), bench.clock.unix_s()
    bench.clock.wait(0.25)
    passed_s = (bench.clock.now_ns() - before) * 1e-9
    assert passed_s + 1e-9 >= 0.25
    assert bench.clock.unix_s() - wall == pytest.approx(passed_s, abs=0.01)


def test_a_board_says_who_it_is_and_says_it_again(bench):
    identity = bench.gpu.identity()
    assert identity == bench.gpu.identity()
    assert identity.uuid.startswith("GPU-")
    assert identity.simulated == bench.simulated
    assert identity.canonical_name == bench.gpu_spec.name
    assert all((identity.name, identity.pci_address, identity.driver, identity.vbios, identity.compute_capability))


def test_a_locked_clock_is_held_and_given_back(bench):
    clocks = bench.gpu.supported_clocks_mhz()
    assert list(clocks) == sorted(set(clocks))
    wanted = clocks[len(clocks) // 3]
    bench.gpu.lock_clock_mhz(wanted)
    prepared, launches = launches_for(bench, SMALL, 0.3)
    bench.gpu.read_states()
    bench.runner.run(prepared, launches)
    assert np.abs(bench.gpu.read_states().sm_clock_mhz - wanted).max() <= 0.51
    bench.gpu.unlock_clock()
    bench.gpu.unlock_clock()


def test_a_clock_between_the_supported_ones_is_refused(bench):
    clocks = bench.gpu.supported_clocks_mhz()
    for wrong in (clocks[0] - 100.0, 0.5 * (clocks[0] + clocks[1]), clocks[-1] + 100.0, float("nan")):
        with pytest.raises(ClockError, match="not supported"):
            bench.gpu.lock_clock_mhz(wrong)


def test_a_state_lies_within_what_the_board_can_be(bench):
    state = bench.gpu.state()
    assert state.host_ns == bench.clock.now_ns()
    assert 0.0 < state.sm_clock_mhz <= bench.gpu_spec.sm_clock_limit_mhz
    assert state.memory_clock_mhz > 0.0
    assert 10.0 < state.temperature_c < 100.0
    assert state.power_limit_w == bench.gpu.power_limit_w() > 0.0
    assert state.throttle_mask & ~sum(THROTTLE_BITS.values()) == 0
    assert np.isfinite(state.voltage_v) == bench.gpu.voltage_readable()


def test_states_and_readings_are_handed_over_once_and_in_order(bench):
    last_state_ns, last_reading_ns = 0, 0
    bench.gpu.read_states()
    for sensor in bench.sensors:
        sensor.read()
    opened_ns = bench.clock.now_ns()
    for seconds in (0.5, 0.0, 0.003, 0.7):
        bench.clock.wait(seconds)
        states = bench.gpu.read_states()
        columns = {len(column) for column in (states.sm_clock_mhz, states.temperature_c, states.voltage_v, states.throttle_mask)}
        assert columns == {len(states.host_ns)}
        for sensor in bench.sensors:
            readings = sensor.read()
            assert tuple(reading.field for reading in readings) == sensor.fields()
            for reading in readings:
                assert reading.host_ns.dtype == np.int64
                assert len(reading.host_ns) == len(reading.power_w)
                assert np.all(np.isfinite(reading.power_w))
        stamps = bench.sensors[0].read()[0].host_ns
        assert len(stamps) == 0
        stamps = readings[0].host_ns
        for times, last in ((states.host_ns, last_state_ns), (stamps, last_reading_ns)):
            assert np.all(np.diff(times) > 0)
            assert np.all(times > last)
            assert np.all(times <= bench.clock.now_ns())
        last_state_ns = int(states.host_ns[-1]) if len(states.host_ns) else last_state_ns
        last_reading_ns = int(stamps[-1]) if len(stamps) else last_reading_ns
    assert min(last_state_ns, last_reading_ns) > opened_ns


def test_an_energy_counter_counts_what_the_power_readings_say(bench):
    sensor = bench.sensors[0]
    first = sensor.read_energy()
    if first is None:
        pytest.skip(f"{bench.word} has no energy counter")
    prepared, launches = launches_for(bench, PRODUCT, 5.0)
    sensor.read()
    before = sensor.read_energy()
    bench.runner.run(prepared, launches)
    after = sensor.read_energy()
    reading = sensor.read()[0]
    assert first.energy_j <= before.energy_j <= after.energy_j
    seconds = (after.host_ns - before.host_ns) * 1e-9
    assert (after.energy_j - before.energy_j) / seconds == pytest.approx(reading.power_w.mean(), rel=0.06)

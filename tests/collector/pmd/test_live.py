"""The driver against the emulated meters, through a real terminal."""

from dataclasses import replace
from time import monotonic_ns

import numpy as np
import pytest

from collector.errors import DeviceError
from collector.pmd.emulated import wave_w
from collector.pmd.meter import open_meter
from collector.pmd.protocol import PMD2, PMD_USB, STREAM_BAUD
from collector.pmd.sensor import open_pmd
from collector.pmd.serial_line import SerialLine
from collector.sampling import joined_readings
from tests.collector.pmd.conftest import emulated_port
from tests.collector.steady import in_real_time
from tests.words import one_line

LATEST_S = 0.02
"""A busy machine's delay of a byte; the emulated wave's half period is 50 ms."""


def read_for(sensor, seconds):
    """Readings of so many seconds, joined."""
    parts, until = [], monotonic_ns() + round(seconds * 1e9)
    while monotonic_ns() < until:
        parts += sensor.read()
    return joined_readings(parts)


@in_real_time
def test_a_streaming_meter_is_a_power_sensor_that_loses_nothing_and_stamps_what_it_took():
    with emulated_port(clock_error_ppm=400.0) as port, open_pmd(port.path) as sensor:
        assert (sensor.name(), sensor.fields(), sensor.read_energy()) == ("pmd", ("total",), None)
        found = read_for(sensor, 0.6)
        called_ns = monotonic_ns()
        assert sensor.read()[0].host_ns[-1] > called_ns - LATEST_S * 1e9  # what was taken before the call
    host_ns = found.host_ns
    steps_s = np.diff(host_ns) * 1e-9
    assert steps_s.min() >= 0.0
    assert steps_s.max() < 1e-3 + LATEST_S
    assert len(host_ns) == pytest.approx((host_ns[-1] - host_ns[0]) * 1e-9 * 4780.0, rel=0.03)
    high = found.power_w > 155.0
    shifts_s = np.arange(-0.01, 0.03, 0.0005)
    agreement = [float(np.mean((wave_w((host_ns - port.start_ns) * 1e-9 - shift) > 155.0) == high)) for shift in shifts_s]
    assert max(agreement) > 0.97
    assert -1e-3 < shifts_s[int(np.argmax(agreement))] < LATEST_S


@in_real_time
def test_a_hole_is_a_gap_in_the_stamps():
    with emulated_port(hole_s=(0.2, 0.3)) as port, open_pmd(port.path) as sensor:
        host_ns = read_for(sensor, 0.5).host_ns
    assert np.diff(host_ns).max() * 1e-9 == pytest.approx(0.1, abs=LATEST_S)


@in_real_time
def test_a_meter_is_taken_over_from_a_dead_session_and_left_at_its_power_on_rate():
    with emulated_port(baud=STREAM_BAUD, streaming=True) as port:
        with open_pmd(port.path) as sensor:
            assert len(read_for(sensor, 0.1).host_ns) > 100
            with pytest.raises(DeviceError, match="in use by another program"), open_pmd(port.path):
                pass
        with open_meter(port.path):
            pass
    port.meter.receive(b"\x01", 115200, monotonic_ns())
    assert port.meter.send(115200, monotonic_ns()) == b"\xee\x0a\x06"


@in_real_time
def test_a_pmd2_is_the_same_sensor():
    with emulated_port(model=PMD2) as port, open_pmd(port.path) as sensor:
        total_w = read_for(sensor, 0.3).power_w
    assert len(total_w) > 20
    assert set(np.unique(np.round(total_w))) == {60.0, 250.0}


@pytest.mark.parametrize("fault", [{"unplug_s": 0.15}, {"hole_s": (0.15, 100.0)}])
@in_real_time
def test_a_meter_that_is_lost_is_an_error_of_one_line_from_the_next_reading_on(fault):
    with emulated_port(**fault) as port, open_pmd(port.path) as sensor:
        with one_line(DeviceError, f"{port.path}.*plug it in again"):
            read_for(sensor, 20.0)
        with pytest.raises(DeviceError):
            sensor.read()


@in_real_time
def test_a_relative_of_the_meter_is_refused():
    with (
        emulated_port(model=replace(PMD_USB, product=0x17)) as port,
        pytest.raises(DeviceError, match="no answer of a PMD-USB"),
        open_pmd(port.path),
    ):
        pass


@pytest.mark.parametrize("port", ["", "no/such/port", "/dev/null", "."])
def test_what_is_no_serial_port_is_refused_in_one_line(port):
    with one_line(DeviceError, "serial port"), open_pmd(port):
        pass


class Held:
    """A port whose bytes all came while the host was held up."""

    in_waiting = 6

    def __init__(self):
        self._content = b"answer"

    def read(self, count):
        found, self._content = self._content[:count], self._content[count:]
        return found


@pytest.mark.parametrize(
    "look, found",
    [
        (lambda line: line.read_exactly(6, 0.0), b"answer"),
        (lambda line: line.read_waiting(0.0), b"answer"),
        (lambda line: line.drain(0.0), 6),
    ],
)
def test_bytes_that_are_there_are_read_however_late_the_host_comes_to_look(look, found):
    line = SerialLine(port="port", handle=Held())
    assert look(line) == found
    assert not look(line)

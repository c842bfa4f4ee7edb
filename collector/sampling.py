"""Draining sensors and states into a trace."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from collector.devices.possible_power import possible_power
from collector.devices.protocols import EnergyReading, Gpu, PowerReadings, PowerSensor, StateReadings
from collector.errors import SensorError
from estimator.vocabulary.quantities import Array, IntArray
from estimator.vocabulary.values import frozen

FIELD_PREFERENCE: Final = ("instant", "average", "usage")
"""A board's own power fields, best first.

The instant one averages over the shortest time; drivers from before 30 March 2023 have
"usage" alone, whose averaging time depends on the kind of board.
"""


SECONDS_PER_NS: Final = 1e-9

Polls = tuple[Array, Array]
"""Host times [s], ascending, and readings [W], shape (n,)."""


@frozen
class Trace:
    """Polls between two drains.

    `board` are the readings of the board's own sensor, `reference` those of an external meter on the same
    board, the sum of its rails (None without one).
    """

    states: StateReadings
    board: PowerReadings
    reference: PowerReadings | None


class Sampler:
    """Collects readings of sensors and board; `drain` returns them once."""

    def __init__(self, gpu: Gpu, sensors: Sequence[PowerSensor]) -> None:
        self._gpu = gpu
        self._board, self.field = _board_sensor(sensors)
        self._references = tuple(sensor for sensor in sensors if sensor is not self._board)

    @property
    def sensor_name(self) -> str:
        """Name of the board's own sensor."""
        return self._board.name()

    def drain(self) -> Trace:
        """Everything polled since the last call."""
        board = next(part for part in self._board.read() if part.field == self.field)
        rails = [part for sensor in self._references for part in sensor.read()]
        reference = None
        if rails:  # of one meter, which share their stamps
            total_w = np.sum([rail.power_w for rail in rails], axis=0)
            reference = PowerReadings(field="reference", host_ns=rails[0].host_ns, power_w=total_w)
        return Trace(states=self._gpu.read_states(), board=board, reference=reference)

    def energy(self) -> EnergyReading | None:
        """The board's energy counter now; None without one."""
        return self._board.read_energy()


def host_seconds(host_ns: IntArray) -> Array:
    """Host stamps in seconds; exact to the nanosecond for a hundred days of uptime."""
    return (host_ns * SECONDS_PER_NS).astype(np.float64)


def possible_polls(readings: PowerReadings) -> Polls:
    """Host times [s] and power [W] of the readings that can be power, shape (n,)."""
    kept = possible_power(readings.power_w)
    return host_seconds(readings.host_ns)[kept], readings.power_w[kept]


def host_spans(stamps_ns: Sequence[tuple[int, int]]) -> tuple[Array, Array]:
    """Starts and ends of spans of host time [s], each ascending, shape (n,)."""
    start_s, end_s = np.array(stamps_ns, dtype=np.float64).T * SECONDS_PER_NS
    return np.sort(start_s), np.sort(end_s)


def joined_readings(parts: Sequence[PowerReadings]) -> PowerReadings:
    """Readings of consecutive drains as one."""
    return PowerReadings(
        field=parts[0].field,
        host_ns=np.concatenate([part.host_ns for part in parts]),
        power_w=np.concatenate([part.power_w for part in parts]),
    )


def _board_sensor(sensors: Sequence[PowerSensor]) -> tuple[PowerSensor, str]:
    """The board's own sensor and its field.  Raises SensorError without one."""
    for field in FIELD_PREFERENCE:
        for sensor in sensors:
            if field in sensor.fields():
                return sensor, field
    raise SensorError("this board reports no power; only latency could be measured, which `collect` does not do")

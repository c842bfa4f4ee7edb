"""Draining sensors and states into a trace."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from collector.devices.possible_power import possible_power
from collector.devices.protocols import EnergyReading, Gpu, PowerReadings, PowerSensor, StateReadings
from collector.errors import SensorError
from estimator.vocabulary.quantities import Array, IntArray
from estimator.vocabulary.values import frozen

SECONDS_PER_NS: Final = 1e-9

Polls = tuple[Array, Array]
"""Host times [s], ascending, and readings [W], shape (n,)."""


@frozen
class Trace:
    """Polls between two drains.

    `board` are the readings of the board's own sensor, `reference` those of an external meter on the same board (None without one).
    """

    states: StateReadings
    board: PowerReadings
    reference: PowerReadings | None


class Sampler:
    """Collects readings of a board's sensors, its own first, and its states; `drain` returns them once.

    `field` is the power field in use, the first of the board's own sensor.
    """

    def __init__(self, gpu: Gpu, sensors: Sequence[PowerSensor]) -> None:
        """Raises SensorError for a board that reports no power."""
        self._gpu, (self._board, *self._meters) = gpu, sensors
        if not (fields := self._board.fields()):
            raise SensorError("this board reports no power; only latency could be measured, which `collect` does not do")
        self.field = fields[0]

    @property
    def sensor_name(self) -> str:
        """Name of the board's own sensor."""
        return self._board.name()

    def drain(self) -> Trace:
        """Everything polled since the last call."""
        board = self._board.read()[0]
        reference = next((part for meter in self._meters for part in meter.read()), None)
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

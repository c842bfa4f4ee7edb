"""A board that is read from its opening on, and the energy of spans of that time.

A span is evaluated when it is asked for: until then only its stamps are kept, so that it costs nothing while the program runs.
"""

import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Final

import numpy as np

from collector.bench import open_instruments
from collector.devices.protocols import Instruments, PowerReadings
from collector.errors import CollectorError, SensorError
from collector.programs.program import Program
from collector.sampling import SECONDS_PER_NS, Sampler, host_seconds, host_spans, joined_readings
from collector.sensing.calibration import SensorCalibration
from collector.sensing.catalogue import board_sensor
from collector.sensing.correct import energies_of
from collector.sensing.deconvolve import Spans
from collector.sensing.known_sensor import possible_responses
from collector.sensing.steady import update_period_s
from estimator.vocabulary.values import frozen

LEAST_LEAD_S: Final = 0.5
"""Least time of readings before and after a span: power outside it is known from there."""
KEPT_POLLS: Final = 3_000_000
"""Polls that are kept: 100 minutes at 500 Hz, some 50 MB."""
SPARSE_PERIODS: Final = 4.0
"""Stamps of windows are steps of the power if they are so many update periods apart, on average."""

Part = str | None
"""Name of the windows of a block; None is the block itself."""


@frozen
class Energy:
    """Energy of `count` spans that take `duration_s` together, with its standard error [J]."""

    count: int
    duration_s: float
    energy_j: float
    energy_std_j: float

    @property
    def power_w(self) -> float:
        """Mean power [W]; nan without time."""
        return self.energy_j / self.duration_s if self.duration_s else math.nan


class WatchedBoard:
    """A board and its readings since `open_watched`; it is closed when nothing refers to it any more."""

    def __init__(self, instruments: Instruments, sampler: Sampler, calibration: SensorCalibration) -> None:
        self._instruments, self._sampler, self._calibration = instruments, sampler, calibration
        self._programs: dict[str, Callable[[], int]] = {}
        self._lock = threading.Lock()
        self._parts: deque[PowerReadings] = deque()
        self._lead_s = max(LEAST_LEAD_S, possible_responses(calibration).reach_s + 3.0 * update_period_s(calibration))
        self._host_s = time.monotonic()
        self.simulated = instruments.simulated
        self.notes = instruments.notes
        instruments.clock.wait(self._lead_s)

    def now_ns(self, least_ns: int = 0) -> int:
        """Host time [ns].  A simulated board then has rested for as long as the program took since the last call, and until `least_ns`."""
        clock = self._instruments.clock
        if self.simulated:
            with self._lock:
                now_s = time.monotonic()
                clock.wait(max(now_s - self._host_s, (least_ns - clock.now_ns()) * SECONDS_PER_NS))
                self._host_s = now_s
        return clock.now_ns()

    def simulated_program(self, workload: str) -> None:
        """Run a workload file on a simulated board.  Raises CollectorError on a real one, and for another file."""
        if not self.simulated:
            raise CollectorError(f"board {self._instruments.word} is no simulated one: run a program of your own on it")
        if not workload.endswith(".json"):
            raise CollectorError(f"{workload}: no workload file; a simulated board runs WORKLOAD.json alone")
        with self._lock:
            if workload not in self._programs:
                self._programs[workload] = Program(command=(workload,)).ready(self._instruments)
            self._programs[workload]()
            self._host_s = time.monotonic()

    def planted_energy_j(self, start_ns: int, end_ns: int) -> float:
        """Energy of a simulated board between two host times [J]: the truth behind its readings.  nan of a real one."""
        planted = self._instruments.planted_energy_j
        return math.nan if planted is None else planted(start_ns, end_ns)

    def evaluated(self, stamps_ns: Mapping[Part, Sequence[tuple[int, int]]]) -> tuple[dict[Part, Energy], tuple[str, ...]]:
        """Energies of a block, None, and of the windows in it, and notes on the sensor; waits until the readings after it have come.

        Raises SensorError if too few readings came, or are no longer kept, DeviceError if the board failed.
        """
        spans = {name: host_spans(stamps) for name, stamps in stamps_ns.items()}
        start_s, end_s = (float(times[0]) for times in spans[None])
        stamps_s = np.unique(np.concatenate([times for span in spans.values() for times in span]))
        if len(stamps_s) * SPARSE_PERIODS * update_period_s(self._calibration) > end_s - start_s:
            stamps_s = np.array([start_s, end_s])
        polls = self._polls(start_s - self._lead_s, end_s + self._lead_s)
        found, notes = energies_of(polls, self._calibration, list(spans.values()), stamps_s.tolist())
        energies = {
            name: Energy(count=len(start), duration_s=float((end - start).sum()), energy_j=energy_j, energy_std_j=std_j)
            for (name, (start, end)), (energy_j, std_j) in zip(spans.items(), found, strict=True)
        }
        return energies, (*self.notes, *notes.values())

    def _polls(self, begin_s: float, end_s: float) -> Spans:
        """Times [s] and readings [W] from `begin_s` to `end_s`, which may still have to come."""
        clock = self._instruments.clock
        with self._lock:
            clock.wait(max(0.0, end_s - clock.now_ns() * SECONDS_PER_NS))
            self._parts.append(self._sampler.drain().board)
            while len(self._parts) > 1 and sum(len(part.host_ns) for part in self._parts) > KEPT_POLLS:
                self._parts.popleft()
            readings = joined_readings(self._parts)
        time_s = host_seconds(readings.host_ns)
        if not len(time_s) or time_s[0] > begin_s + self._lead_s:
            raise SensorError("the readings before this block are not there: the sensor gave none, or they are no longer kept")
        inside = (time_s >= begin_s) & (time_s <= end_s)
        return time_s[inside], readings.power_w[inside]


def open_watched(word: str, sensor: str, seed: int) -> WatchedBoard:
    """The board that a `--gpu` word names, with the sensor that `--sensor` names ("" for an unknown one), read from now on.

    Raises the errors of `open_instruments`, SensorError for a sensor that cannot be used.
    """
    with ExitStack() as stack:
        instruments = stack.enter_context(open_instruments(word, seed=seed))
        sampler = Sampler(instruments.gpu, instruments.sensors)
        sampler.drain()
        board = WatchedBoard(instruments, sampler, board_sensor(sensor, instruments.gpu.identity(), sampler.sensor_name, sampler.field))
        weakref.finalize(board, stack.pop_all().close)
    return board

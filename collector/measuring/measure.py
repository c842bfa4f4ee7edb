"""`measure`: time, energy and power of GPUs while a part of a Python program runs, with standard errors.

A board is read from its opening on.  A span of that time is evaluated when it is asked for: until then only its stamps are kept, so that it
costs nothing while the program runs.
"""

import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from os import PathLike, fspath
from typing import Any, Final, ParamSpec, TypeVar, cast

import numpy as np

from collector.bench import open_instruments
from collector.boards import board_words, named_boards
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


Evaluated = tuple[dict[Part, Energy], tuple[str, ...]]
"""Energies of a block, None, and of the windows in it, and notes on the sensor."""


class WatchedBoard:
    """A board and its readings since `open_watched`; it is closed when nothing refers to it any more."""

    def __init__(self, instruments: Instruments, sampler: Sampler, calibration: SensorCalibration) -> None:
        self.instruments, self._sampler, self._calibration = instruments, sampler, calibration
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
        clock = self.instruments.clock
        if self.simulated:
            with self._lock:
                now_s = time.monotonic()
                clock.wait(max(now_s - self._host_s, (least_ns - clock.now_ns()) * SECONDS_PER_NS))
                self._host_s = now_s
        return clock.now_ns()

    def simulated_program(self, workload: str) -> None:
        """Run a workload file on a simulated board.  Raises CollectorError on a real one, and for another file."""
        if not self.simulated:
            raise CollectorError(f"board {self.instruments.word} is no simulated one: run a program of your own on it")
        if not workload.endswith(".json"):
            raise CollectorError(f"{workload}: no workload file; a simulated board runs WORKLOAD.json alone")
        with self._lock:
            if workload not in self._programs:
                self._programs[workload] = Program(command=(workload,)).ready(self.instruments)
            self._programs[workload]()
            self._host_s = time.monotonic()

    def evaluated(self, stamps_ns: Mapping[Part, Sequence[tuple[int, int]]]) -> Evaluated:
        """The block and its windows; waits until the readings after it have come.

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
            for (name, (start, end)), (energy_j, std_j, _) in zip(spans.items(), found, strict=True)
        }
        return energies, (*self.notes, *notes.values())

    def _polls(self, begin_s: float, end_s: float) -> Spans:
        """Times [s] and readings [W] from `begin_s` to `end_s`, which may still have to come."""
        clock = self.instruments.clock
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


P = ParamSpec("P")
Result = TypeVar("Result")
MOST_CALLS: Final = 10_000
"""Measurements of a decorated function that are kept: those of the last calls."""


class Measurement:
    """A measured block.  Its energies are computed when they are first asked for, from readings until some 0.5 s after its end.

    Energies are those of all boards together; `boards` has each.  `simulated`: they say nothing of a real board.  Raises SensorError if
    too few readings came, CollectorError before the end of the block.
    """

    def __init__(self, boards: Mapping[str, WatchedBoard]) -> None:
        self._boards = boards
        self.simulated = any(board.simulated for board in boards.values())
        self._windows: dict[Part, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {}
        self._end: tuple[int, ...] = ()
        self._found: dict[str, Evaluated] = {}
        self._start: tuple[int, ...] = ()
        self._start = self._now()

    @contextmanager
    def window(self, name: str) -> Iterator[None]:
        """A part of the block, by name.  Windows may be nested, and overlap in tasks and threads; those of one name are added up.

        A window ends with its block at the latest.  Raises CollectorError after the block.
        """
        self._check_open()
        start = self._now()
        try:
            yield
        finally:
            self._windows.setdefault(name, []).append((start, self._end or self._now()))

    def simulated_program(self, workload: str) -> None:
        """Run a workload file on simulated boards, as `collect run -- WORKLOAD.json`: own kernels do not reach them.

        The first run of a file also prepares its kernels, which takes seconds of the board's time.

        Raises CollectorError on a real board, and the errors of `collect run` for a file that cannot be run.
        """
        self._check_open()
        for board in self._boards.values():
            board.simulated_program(workload)

    @property
    def duration_s(self) -> float:
        """Duration of the block [s]."""
        if not self._end:
            raise CollectorError("the block has not ended; read its results after it")
        return (self._end[0] - self._start[0]) * 1e-9

    @property
    def energy_j(self) -> float:
        """Energy [J]."""
        return self._total().energy_j

    @property
    def energy_std_j(self) -> float:
        """Standard error of the energy [J]."""
        return self._total().energy_std_j

    @property
    def power_w(self) -> float:
        """Mean power [W]; nan without time."""
        return self._total().power_w

    @property
    def boards(self) -> dict[str, Energy]:
        """Energy of each board, by the words of `gpu`."""
        return {word: energies[None] for word, (energies, _) in self._evaluated().items()}

    @property
    def windows(self) -> dict[str, Energy]:
        """Energy of the windows of each name, all boards together."""
        return {name: self._total(name) for name in self._windows if name is not None}

    @property
    def notes(self) -> tuple[str, ...]:
        """Limits of the result: what is not known of the sensor, other programs on the board."""
        return tuple(dict.fromkeys(note for _, notes in self._evaluated().values() for note in notes))

    def row(self) -> dict[str, float | bool | str]:
        """The results as a row of a table: `pandas.DataFrame([m.row(), …])`."""
        row: dict[str, float | bool | str] = {"boards": ",".join(self.boards), "simulated": self.simulated}
        row |= {name: float(getattr(self, name)) for name in ("duration_s", "energy_j", "energy_std_j", "power_w")}
        for name, window in self.windows.items():
            row |= {f"{name}_{key}": float(getattr(window, key)) for key in ("duration_s", "energy_j", "energy_std_j")}
        return row

    def end(self) -> None:
        """The block ends now."""
        self._end = self._now()

    def _check_open(self) -> None:
        if self._end:
            raise CollectorError("the block has ended: readings end soon after it; indent this call into the block")

    def _now(self) -> tuple[int, ...]:
        """Host time of each board [ns].  Simulated boards have clocks of their own: those ahead of the slowest one wait for it."""
        now = tuple(board.now_ns() for board in self._boards.values())
        if not self.simulated or not self._start:
            return now
        longest_ns = max(one - start for one, start in zip(now, self._start, strict=True))
        return tuple(board.now_ns(start + longest_ns) for board, start in zip(self._boards.values(), self._start, strict=True))

    def _evaluated(self) -> dict[str, Evaluated]:
        """Energies and notes of each board; the boards are not needed afterwards."""
        if self._boards and self.duration_s >= 0.0:
            parts = {**self._windows, None: [(self._start, self._end)]}
            for index, (word, board) in enumerate(self._boards.items()):
                stamps = {name: [(start[index], end[index]) for start, end in pairs] for name, pairs in parts.items()}
                self._found[word] = board.evaluated(stamps)
            self._boards = {}
        return self._found

    def _total(self, window: Part = None) -> Energy:
        """Energy of the block or of a window, all boards together; their errors are independent."""
        found = [energies[window] for energies, _ in self._evaluated().values()]
        energy_j, std_j = sum(one.energy_j for one in found), math.hypot(*(one.energy_std_j for one in found))
        return replace(found[0], energy_j=energy_j, energy_std_j=std_j)


class measure:  # noqa: N801 - reads like contextlib's
    """Measures blocks, `with measure(gpu=0) as m:`, or each call of a function, `@measure(gpu=0)`, also of an `async def`.

    `gpu` is what `--gpu` takes: 0, "0,1", "all", "sim:a100-pcie-40gb", or a list of such words; `sensor` a file of `collect sensor --out`
    or an entry of `collect sensors`; `seed` determines a simulated board.  A decorated function has its `measurements`, those of the
    last 10,000 calls.  A second use of the same object finds the boards open.  Nothing synchronises with the GPU: do it before a block
    or window ends.

    Raises CollectorError for arguments of another kind; on entry DeviceError for a board that cannot be read, SensorError for a sensor that
    cannot be used, CollectorError for an object that is entered twice at once.
    """

    def __init__(self, gpu: int | str | Sequence[int | str] = 0, *, sensor: str | PathLike[str] = "", seed: int = 0) -> None:
        words = _checked(gpu, sensor, seed)
        self._words = tuple(one for word in words for one in board_words(word))
        self._sensor, self._seed = fspath(sensor), seed
        self._boards: dict[str, WatchedBoard] = {}
        self._block: Measurement | None = None

    def __enter__(self) -> Measurement:
        """A block begins: the boards are opened, at the first one, and read."""
        if self._block is not None:
            raise CollectorError("this measure(…) is in use; take another one for a block inside or beside it, or m.window(name)")
        self._block = self._begin()
        return self._block

    def __exit__(self, *_: object) -> None:
        """The block ends, also by an error."""
        if self._block is not None:
            self._block.end()
            self._block = None

    def __call__(self, function: Callable[P, Result]) -> Callable[P, Result]:
        """The function, with every call measured.  Raises CollectorError for a generator, whose call runs nothing yet."""
        if isgeneratorfunction(function) or isasyncgenfunction(function):
            raise CollectorError("a generator runs while it is consumed: measure that loop, with measure(…) as m")
        measurements: deque[Measurement] = deque(maxlen=MOST_CALLS)

        @contextmanager
        def measured() -> Iterator[None]:
            block = self._begin()
            try:
                yield
            finally:
                block.end()
                measurements.append(block)

        @wraps(function)
        async def awaited(*arguments: P.args, **named: P.kwargs) -> Any:
            with measured():
                return await cast(Any, function)(*arguments, **named)

        @wraps(function)
        def called(*arguments: P.args, **named: P.kwargs) -> Result:
            with measured():
                return function(*arguments, **named)

        chosen = cast(Any, awaited if iscoroutinefunction(function) else called)
        chosen.measurements = measurements
        return cast(Callable[P, Result], chosen)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"measure(…) has no {name!r}: results are the block's, with measure(…) as m: … m.{name}")

    def _begin(self) -> Measurement:
        if not self._boards:
            names = named_boards(self._words)
            words = [board.key for board in names] if "all" in self._words else self._words
            self._boards = {word: open_watched(word, self._sensor, self._seed) for word in words}
        return Measurement(self._boards)


def _checked(gpu: object, sensor: object, seed: object) -> list[str]:
    """The words of `gpu`.  Raises CollectorError for arguments of another kind."""
    words = [gpu] if isinstance(gpu, int | str) else list(gpu) if isinstance(gpu, Sequence) else []
    if not words or any(isinstance(word, bool) or not isinstance(word, int | str) for word in words):
        form = (
            "@measure(gpu=0), with brackets"
            if callable(gpu)
            else "measure(gpu=0), measure(gpu='0,1') or measure(gpu=['0', 'sim:a100-pcie-40gb'])"
        )
        raise CollectorError(f"gpu = {gpu!r:.60}: write {form}")
    if not isinstance(sensor, str | PathLike):
        raise CollectorError(f"sensor = {sensor!r:.60}: a file or an entry of collect sensors is needed")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise CollectorError(f"seed = {seed!r:.60}: a whole number from 0 on is needed")
    return [str(word) for word in words]

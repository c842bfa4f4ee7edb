"""The runner's side of the hardware edge: what it is asked for, and the values that it gives back.

A runner turns an operator into one kernel with its operands in place (`prepare`) and launches it so many times (`run`).
Behind it are a device (memory, streams, graphs), a library of kernels and, where there is one, a tracer that says
which kernel a launch really ran.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from estimator.vocabulary.quantities import Array
from estimator.vocabulary.workload import Operator
from microbench.errors import LaunchError
from microbench.kernel import PreparedKernel
from microbench.sizing import graph_ladder, graph_launches, segment_launches

if TYPE_CHECKING:
    from microbench.loads.copies import CopyLoad
    from microbench.loads.generated import GeneratedLoad


PROBE_LAUNCHES: Final = 5
"""Launches from which the time of one is taken, on the device and on the host, to decide how it is launched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRecord:
    """What came of a run of `launches` back-to-back launches.

    `start_ns` and `end_ns` are host stamps: before the first launch, after the synchronisation.  `segment_s`
    is the time of one launch by the device's own timer, averaged over each of n equal segments of the run,
    gaps between launches included; shape (n,) [s].
    """

    start_ns: int
    end_ns: int
    launches: int
    segment_s: Array


class KernelRunner(Protocol):
    """Runs one launch so many times."""

    def prepare(self, operator: Operator, l2_state: str = "warm", transpose: str = "") -> PreparedKernel:
        """Choose and set up the kernel for an operator; l2_state is "warm" or "cold".

        `transpose` is the layout of a matrix product's inputs, one of `microbench.layouts.LAYOUTS`, or "" for the natural one.
        Raises RunnerError where the operator cannot run here (unsupported precision or layout, too little memory).
        """

    def prepare_generated(self, load: "GeneratedLoad | CopyLoad") -> PreparedKernel:
        """Load a generated kernel, or make room for a copy, and fill its buffers; the one before it is given back.

        Its results are checked once on this board, in a small launch before the first; `corrupted` then says what was wrong with them.

        Raises RunnerError where it cannot run here (memory elsewhere, too little of it, code that the driver refuses).
        """

    def run(self, prepared: PreparedKernel, launches: int) -> LaunchRecord:
        """Launch it `launches` times back to back and wait for the end.  Raises RunnerError if that fails."""

    def supports(self, operator: Operator, transpose: str = "") -> bool:
        """Whether `prepare` would accept the operator, in a layout of its inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedKernel:
    """One kernel as the device ran it: its name as a profiler prints it, its launch, its time [s]."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers_per_thread: int
    shared_bytes_per_block: int
    duration_s: float


class KernelTracer(Protocol):
    """Says which kernels ran."""

    def trace(self, work: Callable[[], None]) -> tuple[TracedKernel, ...]:
        """The kernels that `work` ran, in the order in which they started; `work` must wait for their end.

        Empty where nothing can be traced; `missing` then says why.
        """

    def missing(self) -> str:
        """Why nothing can be traced; "" where it can."""


Launch = Callable[[], None]
"""Puts work on the device's stream and returns at once."""


class Device(Protocol):
    """The one context on a board: its memory, its one stream, its timer.

    Methods raise DeviceMemoryError, KernelFailedError and DeviceLostError, as `errors` maps them.
    """

    def free_bytes(self) -> int:
        """Memory that new operands can take [byte]."""

    def total_bytes(self) -> int:
        """Memory of the board [byte]."""

    def trim(self) -> None:
        """Give cached memory back to the board."""

    def mark(self) -> object:
        """A point in the stream's time."""

    def elapsed_s(self, earlier: object, later: object) -> float:
        """Device time between two points that the stream has passed [s]."""

    def synchronize(self) -> None:
        """Wait until the stream has done everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostValues:
    """Operands and result of a launch on the host, as float64 arrays, for checking against a reference."""

    inputs: tuple[Array, ...]
    output: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundKernel:
    """A kernel with its operands in place.

    `launches` has an entry for each buffer set.  `capture` records what a function launches into a graph and gives back
    what launches the graph.  `host_values` reads operands and result of a buffer set back.
    """

    launches: tuple[Launch, ...]
    capture: Callable[[Launch], Launch]
    host_values: Callable[[int], HostValues]


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryKernel:
    """What a library offers for an operator, before any memory is taken.

    `working_set_bytes` of one set of operands, `scratch_bytes` once, whatever the number of sets.  `bind` takes the
    number of buffer sets and a seed, and fills the operands with random numbers.
    """

    library: str
    transpose: str
    working_set_bytes: int
    scratch_bytes: int
    bind: Callable[[int, int], BoundKernel]


class Launcher:
    """A kernel in memory, `launches` of which has an entry for each buffer set: from graphs where a launch costs the host too much.

    `capture` is a BoundKernel's, `now_ns` the host's clock.
    """

    def __init__(
        self, device: Device, launches: tuple[Launch, ...], capture: Callable[[Launch], Launch], now_ns: Callable[[], int]
    ) -> None:
        self._device = device
        self._launches = launches
        self._capture = capture
        self._now_ns = now_ns
        self._graphs: tuple[tuple[int, Launch], ...] | None = None

    def warm_up(self) -> None:
        """Launches every buffer set, and captures graphs, the largest first; none where launches are long enough for the host."""
        device, sets = self._device, len(self._launches)
        self._turns(2 * sets)()
        device.synchronize()
        before, start_ns = device.mark(), self._now_ns()
        self._turns(PROBE_LAUNCHES)()
        host_s = (self._now_ns() - start_ns) * 1e-9 / PROBE_LAUNCHES
        after = device.mark()
        device.synchronize()
        size = graph_launches(device.elapsed_s(before, after) / PROBE_LAUNCHES, host_s, sets)
        self._graphs = tuple((step, self._capture(self._turns(step))) for step in graph_ladder(size, sets))
        self._turns(sets)()  # what was captured has not run: results are to be read all the same
        device.synchronize()

    def run(self, launches: int) -> LaunchRecord:
        """So many launches from the first buffer set on, one segment after the other with nothing between them, waited for.

        A lone launch is all that runs; before several the kernel is warmed up once.  Raises LaunchError for less than one.
        """
        if launches < 1:
            raise LaunchError(f"{launches} launches cannot run; give at least 1")
        if launches > 1 and self._graphs is None:
            self.warm_up()
        counts = segment_launches(launches, 20, len(self._launches))  # parts of a run that are timed separately
        self._device.synchronize()
        start_ns = self._now_ns()
        marks = [self._device.mark()]
        for count in counts:  # each but the last is whole turns of the buffer sets
            left = count
            for size, graph in self._graphs or ():
                whole, left = divmod(left, size)
                for _ in range(whole):
                    graph()
            self._turns(left)()
            marks.append(self._device.mark())
        self._device.synchronize()
        end_ns = self._now_ns()
        seconds = np.array([self._device.elapsed_s(earlier, later) for earlier, later in itertools.pairwise(marks)])
        return LaunchRecord(start_ns=start_ns, end_ns=end_ns, launches=launches, segment_s=seconds / np.array(counts))

    def _turns(self, count: int) -> Launch:
        """`count` launches, the buffer sets in turn from the first."""

        def several() -> None:
            for i in range(count):
                self._launches[i % len(self._launches)]()

        return several

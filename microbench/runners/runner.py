"""The runner's side of the hardware edge: its protocols and values.

A runner turns an operator into one kernel with its operands in place (`prepare`) and launches it repeatedly (`run`).
It uses a device, a library of kernels and, if available, a tracer that reports the kernel of a launch.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from estimator.vocabulary.quantities import Array
from estimator.vocabulary.values import frozen
from estimator.vocabulary.workload import Operator
from microbench.kernel import PreparedKernel
from microbench.sizing import GRAPH_S, LONG_LAUNCH, graph_ladder, graph_launches, segment_launches

if TYPE_CHECKING:
    from microbench.loads.generated import Load
    from microbench.runners.cupy_device import CupyDevice


PROBE_LAUNCHES: Final = 5
"""Trial launches whose times, on the device and on the host, determine the use of graphs."""


@frozen
class LaunchRecord:
    """Times of a run of `launches` back-to-back launches.

    `start_ns` and `end_ns` are host stamps: before the first launch, after the synchronisation.  `segment_s`
    is the time of one launch by the device's own timer, averaged over each of n equal segments of the run,
    gaps between launches included; shape (n,) [s].
    """

    start_ns: int
    end_ns: int
    launches: int
    segment_s: Array


class KernelRunner(Protocol):
    """Runner that prepares kernels and launches them repeatedly."""

    def prepare(self, operator: Operator, l2_state: str = "warm", transpose: str = "") -> PreparedKernel:
        """Choose and set up the kernel for an operator; l2_state is "warm" or "cold".

        `transpose` is the layout of a matrix product's inputs, one of `microbench.layouts.LAYOUTS`, or "" for the natural one.
        Raises RunnerError if the operator cannot run here (unsupported precision or layout, too little memory).
        """

    def prepare_generated(self, load: "Load") -> PreparedKernel:
        """Load a generated kernel, or allocate a copy, and fill its buffers; the previous one is released.

        A small launch first checks the results once on this board; `corrupted` is the fault in them.

        Raises RunnerError if it cannot run here (unreachable or too little memory, code that the driver refuses).
        """

    def run(self, prepared: PreparedKernel, launches: int) -> LaunchRecord:
        """Launch it `launches` times back to back and wait for the end.  Raises RunnerError if that fails."""

    def supports(self, operator: Operator, transpose: str = "") -> bool:
        """Whether `prepare` accepts the operator in a layout of its inputs."""


@frozen
class TracedKernel:
    """One executed kernel: its name in a profiler, its launch, its time [s]."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers_per_thread: int
    shared_bytes_per_block: int
    duration_s: float


class KernelTracer(Protocol):
    """Tracer of executed kernels."""

    def trace(self, work: Callable[[], None]) -> tuple[TracedKernel, ...]:
        """The kernels that `work` runs, in the order of their start; `work` must wait for their end.

        Empty if tracing is impossible; `missing` then gives the reason.
        """

    def missing(self) -> str:
        """Reason why tracing is impossible; "" if it is possible."""


Launch = Callable[[], None]
"""Function that puts work on the device's stream and returns at once."""


@frozen
class BoundKernel:
    """A kernel with its operands in place.

    `launches` has an entry for each buffer set.  `capture` records the launches of a function into a graph and returns a
    function that launches the graph.  `arrays` gives operands and result of a buffer set on the device, for tests.
    """

    launches: tuple[Launch, ...]
    capture: Callable[[Launch], Launch]
    arrays: Callable[[int], tuple[Any, ...]]


@frozen
class LibraryKernel:
    """A library's kernel for an operator, before memory is allocated.

    `working_set_bytes` is the size of one set of operands; `scratch_bytes` is allocated once for all sets.  `bind` takes the
    number of buffer sets and a seed, and fills the operands with random numbers.
    """

    library: str
    transpose: str
    working_set_bytes: int
    scratch_bytes: int
    bind: Callable[[int, int], BoundKernel]


@dataclass(slots=True)
class Launcher:
    """A kernel in memory; `launches` has an entry for each buffer set.  Graphs launch it if single launches cost the host too much.

    `capture` is a BoundKernel's, `now_ns` the host's clock; `graphs`, the largest first, are captured before the first of several launches.
    """

    device: "CupyDevice"
    launches: tuple[Launch, ...]
    capture: Callable[[Launch], Launch]
    now_ns: Callable[[], int]
    graphs: tuple[tuple[int, Launch], ...] | None = field(init=False, default=None)

    def warm_up(self) -> None:
        """Launch every buffer set, and capture graphs, the largest first; launches as long as a graph need none."""
        device, sets = self.device, len(self.launches)
        self._turns(sets)()  # the first launch may be slow
        launch_s, host_s = self._timed(sets)
        if launch_s >= max(GRAPH_S, LONG_LAUNCH * host_s):  # a delay of the host is no long launch
            self.graphs = ()
            return
        size = graph_launches(*self._timed(PROBE_LAUNCHES), sets)
        self.graphs = tuple((step, self.capture(self._turns(step))) for step in graph_ladder(size, sets))
        self._turns(sets)()  # capturing runs nothing, but results must be readable
        device.synchronize()

    def run(self, launches: int) -> LaunchRecord:
        """Run a number of launches from the first buffer set on, segment after segment without gaps, and wait for the end.

        A single launch runs alone; before several launches the kernel is warmed up once.
        """
        if launches > 1 and self.graphs is None:
            self.warm_up()
        counts = segment_launches(launches, 20, len(self.launches))  # segments of a run with separate times
        self.device.synchronize()
        start_ns = self.now_ns()
        marks = [self.device.mark()]
        for count in counts:  # each segment but the last has whole turns of the buffer sets
            left = count
            for size, graph in self.graphs or ():
                whole, left = divmod(left, size)
                for _ in range(whole):
                    graph()
            self._turns(left)()
            marks.append(self.device.mark())
        self.device.synchronize()
        end_ns = self.now_ns()
        seconds = np.array([self.device.elapsed_s(earlier, later) for earlier, later in itertools.pairwise(marks)])
        return LaunchRecord(start_ns=start_ns, end_ns=end_ns, launches=launches, segment_s=seconds / np.array(counts))

    def _timed(self, count: int) -> tuple[float, float]:
        """Time of each of `count` launches, on the device and on the host [s]."""
        device = self.device
        device.synchronize()
        start_ns, before = self.now_ns(), device.mark()
        self._turns(count)()
        after, end_ns = device.mark(), self.now_ns()
        device.synchronize()
        return device.elapsed_s(before, after) / count, (end_ns - start_ns) * 1e-9 / count

    def _turns(self, count: int) -> Launch:
        """`count` launches, the buffer sets in turn from the first."""

        def several() -> None:
            for i in range(count):
                self.launches[i % len(self.launches)]()

        return several

"""The runner of library kernels: operands in place, graphs where launches are short, segments timed on the device."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Final

from estimator.gpu import GpuSpec
from estimator.workload import Operator
from microbench.errors import DeviceMemoryError, UnsupportedError
from microbench.kernel import PreparedKernel
from microbench.layouts import layout_of
from microbench.occupancy import resident_blocks
from microbench.runners.kernel_names import tile_from_name
from microbench.runners.runner import BoundKernel, Device, KernelTracer, Launch, LaunchRecord, LibraryKernel, TracedKernel, timed_run
from microbench.sizing import MOST_BUFFER_SETS, displacing_sets, graph_ladder, graph_launches, segment_launches

L2_STATES: Final = ("warm", "cold")

SEGMENTS: Final = 20
"""Parts of a run that are timed separately."""

WARM_UP_ROUNDS: Final = 2
"""Launches of every buffer set before anything is looked at: the first ones load code and choose algorithms."""

SECONDS_PER_NS: Final = 1e-9

PROBE_LAUNCHES: Final = 5
"""Launches from which the time of one is taken, to decide how it is launched."""

USABLE_SHARE: Final = 0.92
"""Part of the free memory that operands may take: the rest is for fragmentation and the libraries' own."""

MOST_RESIDENT: Final = 4
"""Kernels whose operands are kept at a time."""

Request = tuple[Operator, str, str]
"""What is prepared: an operator, its L2 state and the layout of its inputs ("" where it has none)."""

Errors = Callable[[str], AbstractContextManager[None]]
"""Maps the errors of the libraries within a block; the text says what was being done."""


@dataclass(slots=True, kw_only=True)
class _Loaded:
    """A kernel in memory: how it is launched, and which buffer set is next.

    `graphs` holds sizes and launches, the largest first; empty where it is launched one by one.
    """

    bound: BoundKernel
    graphs: tuple[tuple[int, Launch], ...]
    next_set: int = 0

    def enqueue(self, launches: int) -> None:
        """Puts so many launches on the stream."""
        left = launches
        if self.next_set == 0:  # graphs begin with the first set
            for size, graph in self.graphs:
                whole, left = divmod(left, size)
                for _ in range(whole):
                    graph()
        singles = self.bound.launches
        for _ in range(left):
            singles[self.next_set]()
            self.next_set = (self.next_set + 1) % len(singles)

    def rewind(self) -> None:
        """The next launch is of the first buffer set."""
        self.next_set = 0


class LibraryRunner:
    """Runs operators through libraries on one device; implements microbench.runners.runner.KernelRunner.

    `choose` gives a library's kernel for an operator in a layout, `errors` maps what libraries raise, `seed` decides the random operands.
    """

    def __init__(
        self,
        *,
        device: Device,
        choose: Callable[[Operator, str], LibraryKernel],
        errors: Errors,
        gpu: GpuSpec,
        tracer: KernelTracer,
        trim: Callable[[], None],
        now_ns: Callable[[], int] = time.monotonic_ns,
        seed: int = 0,
    ) -> None:
        self._device = device
        self._choose = choose
        self._errors = errors
        self._gpu = gpu
        self._tracer = tracer
        self._trim = trim
        self._now_ns = now_ns
        self._seed = seed
        self._host_launch_s: float | None = None
        self._prepared: dict[Request, PreparedKernel] = {}
        self._resident: dict[Request, _Loaded] = {}

    def host_launch_s(self) -> float:
        """What one launch costs the host, measured once [s]."""
        if self._host_launch_s is None:
            with self._errors("measuring what a launch costs"):
                self._host_launch_s = self._device.host_launch_s()
        return self._host_launch_s

    def supports(self, operator: Operator, transpose: str = "") -> bool:
        """Whether `prepare` would accept the operator in a layout, as far as that can be told without running it."""
        try:
            kernel = self._choose(operator, transpose)
        except UnsupportedError:
            return False
        return kernel.working_set_bytes + kernel.scratch_bytes <= USABLE_SHARE * self._device.total_bytes()

    def prepare(self, operator: Operator, l2_state: str = "warm", transpose: str = "") -> PreparedKernel:
        """The kernel for an operator with its operands in place, those of a product in a layout ("": the natural one).

        Raises UnsupportedError, DeviceMemoryError and KernelFailedError where this operator cannot run here,
        DeviceLostError where the board cannot be used any more.
        """
        if l2_state not in L2_STATES:
            raise UnsupportedError(f"L2 state {l2_state!r} is unknown; known: {', '.join(L2_STATES)}")
        key = (operator, l2_state, layout_of(operator, transpose))
        loaded = self._load(key)
        if key not in self._prepared:
            self._prepared[key] = self._describe(key, loaded)
        return self._prepared[key]

    def run(self, prepared: PreparedKernel, launches: int) -> LaunchRecord:
        """Launches a kernel back to back and waits for the end.  Raises as `prepare` does."""
        key = (prepared.operator, prepared.l2_state, prepared.transpose)
        if self._prepared.get(key) != prepared:
            raise UnsupportedError(
                f"kernel {prepared.kernel_name or prepared.operator.family} was not prepared by this runner; prepare it first"
            )
        if launches < 1:
            raise UnsupportedError(f"{launches} launches cannot run; give at least 1")
        loaded = self._load(key)
        counts = segment_launches(launches, SEGMENTS, prepared.buffer_sets)
        with self._errors(f"running {prepared.kernel_name or prepared.operator.family}"):
            loaded.rewind()
            return timed_run(self._device, self._now_ns, counts, loaded.enqueue)

    def bound(self, prepared: PreparedKernel) -> BoundKernel:
        """Operands and results of a prepared kernel, to check them."""
        return self._load((prepared.operator, prepared.l2_state, prepared.transpose)).bound

    def close(self) -> None:
        """Give all memory back."""
        self._resident.clear()
        self._trim()

    def _load(self, key: Request) -> _Loaded:
        """A kernel in memory, brought there if it is not."""
        if key in self._resident:
            self._resident[key] = self._resident.pop(key)  # the one used last is the last to go
            return self._resident[key]
        operator, l2_state, layout = key
        what = f"preparing {operator.family}.{operator.operator}"
        with self._errors(what):
            kernel = self._choose(operator, layout)
            sets = self._buffer_sets(kernel, l2_state, what)
            needed = sets * kernel.working_set_bytes + kernel.scratch_bytes
            self._make_room(needed, what)
            try:
                loaded = self._bind(kernel, sets)
            except DeviceMemoryError:
                self._resident.clear()
                self._trim()
                raise
        self._resident[key] = loaded
        return loaded

    def _bind(self, kernel: LibraryKernel, sets: int) -> _Loaded:
        """Operands, warm-up, and the way in which it is launched."""
        bound = kernel.bind(sets, self._seed)
        for _ in range(WARM_UP_ROUNDS):
            for launch in bound.launches:
                launch()
        self._device.synchronize()
        before, start_ns = self._device.mark(), self._now_ns()
        for i in range(PROBE_LAUNCHES):
            bound.launches[i % sets]()
        spent_s = (self._now_ns() - start_ns) * SECONDS_PER_NS / PROBE_LAUNCHES  # a framework's operator costs more than a launch
        after = self._device.mark()
        self._device.synchronize()
        launch_s = self._device.elapsed_s(before, after) / PROBE_LAUNCHES
        graphs = []
        for size in graph_ladder(graph_launches(launch_s, max(spent_s, self.host_launch_s()), sets), sets):
            graphs.append((size, bound.capture(_turns(bound.launches, size))))
        for launch in bound.launches:  # what was captured has not run: results are to be read all the same
            launch()
        self._device.synchronize()
        return _Loaded(bound=bound, graphs=tuple(graphs))

    def _buffer_sets(self, kernel: LibraryKernel, l2_state: str, what: str) -> int:
        """Copies of the operands.  Raises UnsupportedError where cold operands are too small to displace the L2."""
        if l2_state == "warm":
            return 1
        sets = displacing_sets(kernel.working_set_bytes, self._gpu.l2_bytes)
        if sets > MOST_BUFFER_SETS:
            raise UnsupportedError(
                f"{what} cold: operands of {kernel.working_set_bytes} byte are too small to displace the L2; measure it warm"
            )
        return sets

    def _make_room(self, needed: int, what: str) -> None:
        """Drops kernels that were not used lately until `needed` bytes are free.  Raises DeviceMemoryError where they never are."""
        while len(self._resident) >= MOST_RESIDENT:
            del self._resident[next(iter(self._resident))]
        if needed > USABLE_SHARE * self._device.free_bytes():
            self._trim()
        while needed > USABLE_SHARE * self._device.free_bytes():
            if not self._resident:
                raise DeviceMemoryError(f"{what}: needs {needed / 1e9:.1f} GB, {self._device.free_bytes() / 1e9:.1f} GB are free")
            del self._resident[next(iter(self._resident))]
            self._trim()

    def _describe(self, key: Request, loaded: _Loaded) -> PreparedKernel:
        """What ran, as the tracer saw it."""
        operator, l2_state, layout = key
        with self._errors(f"tracing {operator.family}.{operator.operator}"):
            kernel = self._choose(operator, layout)

            def once() -> None:
                loaded.bound.launches[0]()
                self._device.synchronize()

            ran = self._tracer.trace(once)
        missing = "" if ran else self._tracer.missing() or "the tracer saw no kernel"
        main = max(ran, key=lambda one: one.duration_s) if ran else None
        prepared = PreparedKernel(
            operator=operator,
            l2_state=l2_state,
            library=kernel.library,
            kernel_name=main.name if main else "",
            grid=main.grid if main else (0, 0, 0),
            block=main.block if main else (0, 0, 0),
            registers_per_thread=main.registers_per_thread if main else 0,
            shared_bytes_per_block=main.shared_bytes_per_block if main else 0,
            blocks_per_sm=self._blocks_per_sm(main) if main else 0,
            tile_m=0,
            tile_n=0,
            tile_k=0,
            stages=0,
            split_k=1,
            transpose=kernel.transpose,
            working_set_bytes=kernel.working_set_bytes,
            buffer_sets=len(loaded.bound.launches),
            untraced=missing,
        )
        return _with_tile(prepared, main) if main and operator.family == "gemm" else prepared

    def _blocks_per_sm(self, kernel: TracedKernel) -> int:
        threads = kernel.block[0] * kernel.block[1] * kernel.block[2]
        return resident_blocks(self._gpu, threads, kernel.registers_per_thread, kernel.shared_bytes_per_block)


def _with_tile(prepared: PreparedKernel, kernel: TracedKernel) -> PreparedKernel:
    """Tile, stages and split of a product, from the kernel's name and grid."""
    batch, m, n, _ = prepared.operator.shape
    tile = tile_from_name(kernel.name, batch, m, n, (float(kernel.grid[0]), float(kernel.grid[1]), float(kernel.grid[2])))
    if not tile.tile_m > 0:
        return prepared
    return replace(
        prepared,
        tile_m=int(tile.tile_m),
        tile_n=int(tile.tile_n),
        tile_k=tile.tile_k,
        stages=tile.stages,
        split_k=int(tile.split_k) if tile.split_k >= 1 else 0,
    )


def _turns(launches: tuple[Launch, ...], count: int) -> Launch:
    """`count` launches, the buffer sets in turn."""

    def several() -> None:
        for i in range(count):
            launches[i % len(launches)]()

    return several

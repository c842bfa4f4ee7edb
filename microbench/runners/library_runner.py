"""The runner on a real board: library kernels and generated ones in CuPy's context, with cuBLAS and PyTorch on its stream.

For a generated kernel, or a copy by the copy engines, it fills buffers, times launches, reads back or compares results.  Buffers are in the
board's own memory, in pinned memory of the host, or in another board's memory over the link between them.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from estimator.model.tile_names import tile_from_name
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.workload import Operator
from microbench.errors import KernelFailedError, ResultError, UnsupportedError
from microbench.kernel import Buffer, Buffers, Kernel, Launch, PreparedKernel
from microbench.layouts import layout_of
from microbench.loads.copies import CopyLoad
from microbench.loads.generated import Load
from microbench.operands import DRAWN_RECORDS, argument_value, buffer_records, contents, record_type, verify
from microbench.runners.cublas import TYPES, Cublas
from microbench.runners.cupy_device import CupyDevice, Placed
from microbench.runners.runner import BoundKernel, KernelTracer, Launcher, LaunchRecord, LibraryKernel
from microbench.runners.torch_device import TorchDevice
from microbench.runners.torch_kernels import torch_kernel
from microbench.sizing import MOST_BUFFER_SETS, displacing_sets, resident_blocks


@dataclass(frozen=True, slots=True)
class GeneratedRun:
    """A generated kernel or a copy with its buffers.  Both functions raise KernelFailedError, DeviceLostError.

    `run` launches it back to back and waits for the end.  `results` gives the written buffers after one launch, for `microbench.operands`;
    before it, the buffers must have their initial contents.  Those of a copy are compared there: ResultError for changed bytes.
    """

    run: Callable[[int], LaunchRecord]
    results: Callable[[], Buffers]


def load_generated(device: CupyDevice, kernel: Kernel, launch: Launch, cubin: bytes, now_ns: Callable[[], int]) -> GeneratedRun:
    """A generated kernel on the device with filled buffers; `cubin` is the inspected code.

    Raises UnsupportedError for buffers on another board if none is accessible, KernelFailedError if they do not fit and for
    code that the driver refuses.
    """
    with device.errors(f"loading {kernel.name}"):
        started = device.load_cubin(cubin, kernel.name)
        placed = {buffer.name: _filled(device, kernel.name, buffer, launch) for buffer in kernel.buffers}
        device.synchronize()
    arguments = [placed[name].argument if name in placed else np.uint32(argument_value(name, launch)) for name in kernel.arguments]
    run = _runs(device, kernel.name, lambda: started((launch.blocks,), (launch.threads_per_block,), arguments), now_ns)

    def results() -> Buffers:
        run(1)
        with device.errors(f"checking {kernel.name}"):
            written = [buffer for buffer in kernel.buffers if buffer.written]
            return {buffer.name: device.contents(placed[buffer.name]).view(record_type(buffer)) for buffer in written}

    return GeneratedRun(run, results)


def load_copy(device: CupyDevice, load: CopyLoad, now_ns: Callable[[], int]) -> GeneratedRun:
    """A copy with random bytes at its origin.

    Raises UnsupportedError if no other board is accessible, KernelFailedError if memory is short.
    """
    with device.errors(f"making room for {load.name}"):
        origin, target = (device.place(place, load.bytes_moved, load.name) for place in (load.origin, load.target))
        drawn = min(load.bytes_moved, DRAWN_RECORDS)
        device.fill(origin, np.random.default_rng(0).integers(0, 256, drawn, dtype=np.uint8))
        device.synchronize()
    run = _runs(device, load.name, lambda: device.copy(target, origin), now_ns)

    def results() -> Buffers:
        run(1)
        with device.errors(f"checking {load.name}"):
            sent, came = device.contents(origin), device.contents(target)
        if wrong := np.count_nonzero(sent != came):
            raise ResultError(f"{load.name}: {wrong} of {sent.size} bytes arrived changed")
        return {"target": came}

    return GeneratedRun(run, results)


def _runs(device: CupyDevice, name: str, launch: Callable[[], None], now_ns: Callable[[], int]) -> Callable[[int], LaunchRecord]:
    launcher = Launcher(device, (launch,), device.capture, now_ns)

    def run(launches: int) -> LaunchRecord:
        with device.errors(f"running {name}"):
            return launcher.run(launches)

    return run


def _filled(device: CupyDevice, who: str, buffer: Buffer, launch: Launch) -> Placed:
    """A buffer at its place with its contents; it is filled there, because chases hold addresses."""
    placed = device.place(buffer.location, buffer_records(buffer, launch) * record_type(buffer).itemsize, who)
    device.fill(placed, np.ascontiguousarray(contents(buffer, launch, placed.address)).view(np.uint8))
    return placed


USABLE_SHARE: Final = 0.92
"""Largest share of the free memory for operands; the rest is for fragmentation and the libraries."""


Request = tuple[Operator, str, str]
"""A request to prepare: an operator, its L2 state and the layout of its inputs ("" without one)."""


@dataclass(eq=False)
class LibraryRunner:
    """Runner of generated kernels, and of operators by libraries: cuBLAS for products, PyTorch for the rest, on the device of `cublas`.

    `torch` is the reason if PyTorch is unusable.  `attention` chooses PyTorch's backend, `seed` sets the operands.
    """

    gpu: GpuSpec
    cublas: Cublas
    torch: TorchDevice | str
    tracer: KernelTracer
    now_ns: Callable[[], int]
    attention: str
    seed: int
    _prepared: dict[Request, PreparedKernel] = field(init=False, default_factory=dict)
    _resident: tuple[Request, LibraryKernel, BoundKernel, Launcher] | None = field(init=False, default=None)
    _generated: tuple[PreparedKernel, GeneratedRun] | None = field(init=False, default=None)
    _complaints: dict[tuple[str, ...], str] = field(init=False, default_factory=dict)

    @property
    def device(self) -> CupyDevice:
        """The device of all libraries."""
        return self.cublas.device

    def _kernel(self, operator: Operator, transpose: str) -> LibraryKernel:
        """The kernel for an operator, a product's in a layout ("": the natural one).  Raises UnsupportedError if no library has one."""
        capability = float(self.gpu.compute_capability)
        layout_of(operator, transpose)  # an impossible layout is reported before a missing library
        if operator.family == "gemm" and operator.precision in TYPES:
            return self.cublas.kernel(operator, capability, transpose)
        if isinstance(self.torch, str):
            raise UnsupportedError(f"{operator.family}.{operator.operator} in {operator.precision}: needs PyTorch: {self.torch}")
        return torch_kernel(operator, self.torch, capability, self.attention)

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Map the errors of the libraries within a block; CuPy's are innermost, since both libraries raise RuntimeErrors."""
        with nullcontext() if isinstance(self.torch, str) else self.torch.errors(what), self.device.errors(what):
            yield

    def supports(self, operator: Operator, transpose: str = "") -> bool:
        """Whether `prepare` accepts the operator in a layout, checked without running it."""
        try:
            kernel = self._kernel(operator, transpose)
        except UnsupportedError:
            return False
        return kernel.working_set_bytes + kernel.scratch_bytes <= USABLE_SHARE * self.device.total_bytes()

    def prepare(self, operator: Operator, l2_state: str = "warm", transpose: str = "") -> PreparedKernel:
        """The kernel for an operator with its operands in place, those of a product in a layout ("": the natural one).

        Raises UnsupportedError and KernelFailedError if this operator cannot run here, DeviceLostError if the board is lost.
        """
        key = (operator, l2_state, layout_of(operator, transpose))
        kernel, bound, _ = self._load(key)
        if key not in self._prepared:
            self._prepared[key] = self._describe(operator, l2_state, kernel, bound)
        return self._prepared[key]

    def prepare_generated(self, load: Load) -> PreparedKernel:
        """A generated kernel, loaded and its buffers filled, or a copy; the memory of the previous one is freed first.

        The results are checked before, once for each kernel, code and kind of operands.  Raises the errors of `prepare`.
        """
        self._generated = None
        if isinstance(load, CopyLoad):
            loaded = load_copy(self.device, load, self.now_ns)
            complaint = self._complaint((load.name,), loaded.results)
        else:
            kernel, pattern, module = load.kernel, load.launch.pattern, load.module

            def small_launch() -> None:
                verify(kernel, pattern, self.load_generated(kernel, kernel.check_launch(pattern), module.cubin).results())

            complaint = self._complaint((kernel.name, module.digest, pattern), small_launch)
            loaded = self.load_generated(kernel, load.launch, module.cubin)
        prepared = load.prepared(complaint)
        self._generated = prepared, loaded  # its results keep the buffers
        return prepared

    def _complaint(self, key: tuple[str, ...], check: Callable[[], object]) -> str:
        """The fault in results that a check finds, remembered by key; "" for right results."""
        if key not in self._complaints:
            try:
                check()
                self._complaints[key] = ""
            except ResultError as error:
                self._complaints[key] = str(error)
        return self._complaints[key]

    def load_generated(self, kernel: Kernel, launch: Launch, cubin: bytes) -> GeneratedRun:
        """A generated kernel in the same context, its buffers filled."""
        return load_generated(self.device, kernel, launch, cubin, self.now_ns)

    def run(self, prepared: PreparedKernel, launches: int) -> LaunchRecord:
        """Launch a kernel back to back and wait for the end.  Raises the errors of `prepare`."""
        if self._generated is not None and self._generated[0] == prepared:
            return self._generated[1].run(launches)
        *_, launcher = self._load(_request(prepared))
        with self._errors(f"running {prepared.kernel_name or prepared.operator.family}"):
            return launcher.run(launches)

    def bound(self, prepared: PreparedKernel) -> BoundKernel:
        """Operands and results of a prepared kernel, for checks."""
        return self._load(_request(prepared))[1]

    def close(self) -> None:
        """Release all memory."""
        self._resident = None
        self.device.trim()
        if isinstance(self.torch, TorchDevice):
            self.torch.trim()

    def _load(self, key: Request) -> tuple[LibraryKernel, BoundKernel, Launcher]:
        """A kernel in memory, loaded and warmed up if necessary; another one is dropped before."""
        if self._resident is not None and self._resident[0] == key:
            return self._resident[1:]
        operator, l2_state, layout = key
        what = f"preparing {operator.family}.{operator.operator}"
        with self._errors(what):
            kernel = self._kernel(operator, layout)
            sets = self._buffer_sets(kernel, l2_state, what)
            self.close()
            needed, free = sets * kernel.working_set_bytes + kernel.scratch_bytes, self.device.free_bytes()
            if needed > USABLE_SHARE * free:
                raise KernelFailedError(f"{what}: needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free")
            bound = kernel.bind(sets, self.seed)
            launcher = Launcher(self.device, bound.launches, bound.capture, self.now_ns)
            launcher.warm_up()
        self._resident = key, kernel, bound, launcher
        return kernel, bound, launcher

    def _buffer_sets(self, kernel: LibraryKernel, l2_state: str, what: str) -> int:
        """Number of copies of the operands.  Raises UnsupportedError if cold operands are too small to displace the L2."""
        sets = 1 if l2_state == "warm" else displacing_sets(kernel.working_set_bytes, self.gpu.l2_bytes)
        if sets > MOST_BUFFER_SETS:
            raise UnsupportedError(
                f"{what} cold: operands of {kernel.working_set_bytes} byte are too small to displace the L2; measure it warm"
            )
        return sets

    def _describe(self, operator: Operator, l2_state: str, kernel: LibraryKernel, bound: BoundKernel) -> PreparedKernel:
        """Description of the traced kernel; of several kernels, the longest."""

        def once() -> None:
            bound.launches[0]()
            self.device.synchronize()

        with self._errors(f"tracing {operator.family}.{operator.operator}"):
            ran = self.tracer.trace(once)
        prepared = PreparedKernel(
            operator=operator,
            l2_state=l2_state,
            library=kernel.library,
            split_k=1,
            transpose=kernel.transpose,
            working_set_bytes=kernel.working_set_bytes,
            buffer_sets=len(bound.launches),
            untraced="" if ran else self.tracer.missing() or "the tracer saw no kernel",
        )
        if not ran:
            return prepared
        main = max(ran, key=lambda one: one.duration_s)
        threads = math.prod(main.block)
        traced = replace(
            prepared,
            kernel_name=main.name,
            grid=main.grid,
            block=main.block,
            registers_per_thread=main.registers_per_thread,
            shared_bytes_per_block=main.shared_bytes_per_block,
            blocks_per_sm=resident_blocks(self.gpu, threads, main.registers_per_thread, main.shared_bytes_per_block),
        )
        return _with_tile(traced) if operator.family == "gemm" else traced


def _request(prepared: PreparedKernel) -> Request:
    return prepared.operator, prepared.l2_state, prepared.transpose


def _with_tile(prepared: PreparedKernel) -> PreparedKernel:
    """Tile, stages and split of a product, from the kernel's name and grid."""
    batch, m, n, _ = prepared.operator.shape
    x, y, z = map(float, prepared.grid)
    tile = tile_from_name(prepared.kernel_name, batch, m, n, (x, y, z))
    if not tile.tile_m > 0:
        return prepared
    split_k = int(tile.split_k) if tile.split_k >= 1 else 0
    return replace(prepared, tile_m=int(tile.tile_m), tile_n=int(tile.tile_n), tile_k=tile.tile_k, stages=tile.stages, split_k=split_k)

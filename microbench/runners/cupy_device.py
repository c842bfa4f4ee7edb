"""The device through CuPy: memory, one stream, events, graphs, compiled kernels, and the mapping of errors.

Only this file imports CuPy.  cuBLAS is called in the library that CuPy loads (`library_file`), because
CuPy's own binding cannot be captured into a graph (cupy/cupy issue 6290).
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from estimator.vocabulary.quantities import Array
from microbench.errors import DeviceLostError, DeviceMemoryError, KernelFailedError, UnsupportedError
from microbench.runners.runner import Launch

OUT_OF_MEMORY: Final = frozenset({2})
"""cudaErrorMemoryAllocation.  Source for all codes: CUDA runtime API, cudaError_t; the driver's share them from 2 on."""

CONTEXT_LOST: Final = frozenset({700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721})
"""Errors of a kernel after which every further call of this process fails: illegal addresses and instructions, time-outs, assertions."""

DEVICE_LOST: Final = frozenset({4, 46, 100, 101, 214, 220, 226, 802, 803, 999})
"""Errors of the board or its driver: unavailable, uncorrectable memory or link, too old a driver, unknown."""


ALIGNED_ELEMENTS: Final = 256
"""Operands begin at a multiple of this many numbers: at least on the 256 bytes of cudaMalloc."""

CHUNK_ELEMENTS: Final = 1 << 24
"""Random numbers drawn at a time: 64 MiB of fp32."""

DTYPES: Final[dict[str, str]] = {
    "fp64": "float64",
    "fp32": "float32",
    "tf32": "float32",
    "fp16": "float16",
    "bf16": "uint16",
    "int8": "int8",
}
"""NumPy type that stores a precision; bf16 as its bits."""


def load_cupy() -> Any:
    """The CuPy module.  Raises UnsupportedError if it is missing or cannot be loaded."""
    try:
        import cupy
    except ImportError as error:
        raise UnsupportedError(
            f"CuPy cannot be loaded ({_first_line(error)}); pip install 'wattprint[cuda13]' or 'wattprint[cuda12]'"
        ) from error
    return cupy


class CupyDevice:
    """One context on one board; implements microbench.runners.runner.Device.  `open_cupy_device` makes it."""

    def __init__(self, cupy: Any, ordinal: int, stream: Any) -> None:
        self._cupy = cupy
        self.ordinal = ordinal
        self._stream = stream

    @property
    def module(self) -> Any:
        """The CuPy module."""
        return self._cupy

    @property
    def stream_pointer(self) -> int:
        """Address of the stream, for other libraries."""
        return int(self._stream.ptr)

    @contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Map CUDA's errors within a block; `what` names the operation."""
        cuda = self._cupy.cuda
        try:
            yield
        except cuda.memory.OutOfMemoryError as error:
            raise DeviceMemoryError(f"{what}: {_first_line(error)}") from error
        except (cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError) as error:
            raise cuda_failure(int(getattr(error, "status", -1)), what, _first_line(error)) from error

    def free_bytes(self, ordinal: int | None = None) -> int:
        """Memory for new operands on this board, including CuPy's reserve, or on another board [byte]."""
        with self.errors("asking for free memory"), self._cupy.cuda.Device(self.ordinal if ordinal is None else ordinal):
            reserve = self._cupy.get_default_memory_pool().free_bytes() if ordinal in (None, self.ordinal) else 0
            return int(self._cupy.cuda.runtime.memGetInfo()[0]) + int(reserve)

    def total_bytes(self) -> int:
        """Memory of the board [byte]."""
        with self.errors("asking for the size of the memory"):
            _, total = self._cupy.cuda.runtime.memGetInfo()
            return int(total)

    def trim(self) -> None:
        """Return cached memory to the board."""
        with self.errors("freeing memory"):
            self._stream.synchronize()
            self._cupy.get_default_memory_pool().free_all_blocks()

    def mark(self) -> Any:
        """A timing event on the stream."""
        event = self._cupy.cuda.Event()
        event.record(self._stream)
        return event

    def elapsed_s(self, earlier: Any, later: Any) -> float:
        """Device time between two events that have passed [s]."""
        return float(self._cupy.cuda.get_elapsed_time(earlier, later)) * 1e-3

    def synchronize(self) -> None:
        """Wait until the stream is finished."""
        self._stream.synchronize()

    def capture(self, work: Launch) -> Launch:
        """The launches of `work` as one graph."""
        self._stream.begin_capture()
        try:
            work()
        finally:
            graph = self._stream.end_capture()
        graph.upload(self._stream)
        return lambda: graph.launch(self._stream)

    def empty(self, elements: int, precision: str) -> Any:
        """Uninitialised memory for a number of elements."""
        return self._cupy.empty(elements, dtype=DTYPES[precision])

    def empty_sets(self, sets: int, elements: int, precision: str) -> list[Any]:
        """Several pieces of one allocation, each aligned for libraries."""
        stride = -(-elements // ALIGNED_ELEMENTS) * ALIGNED_ELEMENTS
        whole = self.empty(sets * stride, precision)
        return [whole[i * stride : i * stride + elements] for i in range(sets)]

    def normal_sets(self, sets: int, elements: int, precision: str, seed: int) -> list[Any]:
        """Several pieces of one allocation with standard normal random numbers."""
        pieces = self.empty_sets(sets, elements, precision)
        random = self._cupy.random.RandomState(seed)
        for target in pieces:
            for start in range(0, elements, CHUNK_ELEMENTS):
                stop = min(start + CHUNK_ELEMENTS, elements)
                drawn = random.standard_normal(stop - start, dtype="float64" if precision == "fp64" else "float32")
                if precision == "bf16":
                    drawn = ((drawn.view("uint32") + np.uint32(0x8000)) >> np.uint32(16)).astype("uint16")
                target[start:stop] = drawn
        return pieces

    def to_host(self, values: Any, precision: str) -> Array:
        """Numbers of the device as float64 on the host."""
        host = self._cupy.asnumpy(values)
        if precision == "bf16":
            host = (host.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return np.asarray(host, dtype=np.float64)

    def pinned(self, size: int, who: str) -> Any:
        """Host memory that the board accesses directly, `size` in bytes.  Raises DeviceMemoryError if the host has too little."""
        try:
            return self._cupy.cuda.alloc_pinned_memory(size)
        except self._cupy.cuda.runtime.CUDARuntimeError as error:
            if int(getattr(error, "status", -1)) in OUT_OF_MEMORY:
                raise DeviceMemoryError(f"{who}: the host has no {size / 1e9:.1f} GB of memory to pin") from error
            raise

    def pinned_view(self, memory: Any, size: int) -> NDArray[np.uint8]:
        """The bytes of pinned memory, readable and writable."""
        return np.frombuffer(memory, dtype=np.uint8, count=size)

    def peer(self) -> int | None:
        """The first other board whose memory this one can access directly, with access enabled; None without one."""
        runtime = self._cupy.cuda.runtime
        with self.errors("looking for another GPU"):
            for other in range(int(runtime.getDeviceCount())):
                if other == self.ordinal or not runtime.deviceCanAccessPeer(self.ordinal, other):
                    continue
                try:
                    runtime.deviceEnablePeerAccess(other)
                except runtime.CUDARuntimeError as error:
                    if int(getattr(error, "status", -1)) != 704:  # cudaErrorPeerAccessAlreadyEnabled
                        raise
                return other
        return None

    def empty_on(self, ordinal: int, size: int) -> Any:
        """Uninitialised bytes on a board."""
        with self._cupy.cuda.Device(ordinal):
            return self.empty(size, "int8")

    def fill_on(self, ordinal: int, target: Any, values: NDArray[Any]) -> None:
        """Copy host memory into memory of a board, of the same type and length."""
        with self._cupy.cuda.Device(ordinal):
            target.set(values)
            self._cupy.cuda.runtime.deviceSynchronize()

    def copy(self, target: int, target_ordinal: int, origin: int, origin_ordinal: int, size: int) -> None:
        """Put a copy between two addresses on the stream; an ordinal below 0 is the host's."""
        runtime, stream = self._cupy.cuda.runtime, self.stream_pointer
        if target_ordinal >= 0 and origin_ordinal >= 0 and target_ordinal != origin_ordinal:
            runtime.memcpyPeerAsync(target, target_ordinal, origin, origin_ordinal, size, stream)
        else:
            runtime.memcpyAsync(target, origin, size, 4, stream)  # cudaMemcpyDefault: addresses determine the places of both ends

    def raw_to_host(self, values: Any) -> NDArray[Any]:
        """A copy of device memory on the host, without conversion."""
        return np.asarray(self._cupy.asnumpy(values))

    def library_file(self, stem: str) -> Path:
        """The file of a CUDA library that CuPy has loaded ("libcublas.so").  Raises UnsupportedError if it has none."""
        with self.errors("loading cuBLAS"):
            self._cupy.cuda.device.get_cublas_handle()
        for line in Path("/proc/self/maps").read_text().splitlines():
            path = Path(line.split(maxsplit=5)[-1]) if "/" in line else Path()
            if path.name.startswith(stem):
                return path
        raise UnsupportedError(f"CuPy has loaded no {stem}; install the CUDA libraries (pip install 'cupy-cuda13x[ctk]')")

    def load_cubin(self, cubin: bytes, entry: str) -> "LoadedCubin":
        """An entry of compiled machine code."""
        with self.errors(f"loading {entry}"), tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin)
            file.flush()
            kernel = self._cupy.RawModule(path=file.name).get_function(entry)
            return LoadedCubin(
                launch=lambda grid, block, arguments: kernel(tuple(grid), tuple(block), tuple(arguments)),
                registers_per_thread=int(kernel.num_regs),
                shared_bytes_per_block=int(kernel.shared_size_bytes),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCubin:
    """Machine code on the device: `launch(grid, block, arguments)`, with its resources on an SM."""

    launch: Callable[[Sequence[int], Sequence[int], Sequence[Any]], None]
    registers_per_thread: int
    shared_bytes_per_block: int


@contextmanager
def open_cupy_device(pci_address: str, cupy: Any = None) -> Iterator[CupyDevice]:
    """The context on the board at a PCI address, current for this thread; its memory is released at the end.

    `cupy` is the module (None: import it).  Raises UnsupportedError without CuPy, DeviceLostError if the board does not answer.
    """
    module = load_cupy() if cupy is None else cupy
    runtime = module.cuda.runtime
    try:
        ordinal = int(runtime.deviceGetByPCIBusId(short_pci_address(pci_address)))
    except runtime.CUDARuntimeError as error:
        raise DeviceLostError(
            f"CUDA sees no board at {pci_address} ({_first_line(error)}); check CUDA_VISIBLE_DEVICES and the driver"
        ) from error
    try:
        with module.cuda.Device(ordinal):
            stream = module.cuda.Stream(non_blocking=True)
            with stream:
                yield CupyDevice(module, ordinal, stream)
            module.get_default_memory_pool().free_all_blocks()
    except (runtime.CUDARuntimeError, module.cuda.driver.CUDADriverError) as error:
        raise cuda_failure(int(getattr(error, "status", -1)), f"board {pci_address}", _first_line(error)) from error


def short_pci_address(pci_address: str) -> str:
    """A PCI address with a domain of four digits, as CUDA prints it; NVML writes eight."""
    domain, _, rest = pci_address.partition(":")
    return f"{domain[-4:]}:{rest}" if len(domain) > 4 and not domain[:-4].strip("0") else pci_address


def cuda_failure(status: int, what: str, message: str) -> DeviceMemoryError | KernelFailedError | DeviceLostError:
    """The error for a CUDA status."""
    if status in OUT_OF_MEMORY:
        return DeviceMemoryError(f"{what}: {message}")
    if status in CONTEXT_LOST:
        return DeviceLostError(f"{what}: {message}; this process cannot use the board any more")
    if status in DEVICE_LOST:
        return DeviceLostError(f"{what}: {message}; check the board with nvidia-smi")
    return KernelFailedError(f"{what}: {message}")


def _first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" =\t")]
    return lines[0] if lines else type(error).__name__

"""The device through CuPy: memory, one stream, events, graphs, compiled kernels, and the mapping of errors.

Only this file imports CuPy.  cuBLAS is called in the library that CuPy loads (`cublas_file`), because
CuPy's own binding cannot be captured into a graph (cupy/cupy issue 6290).
"""

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from estimator.vocabulary.values import frozen
from microbench.errors import DeviceLostError, KernelFailedError, UnsupportedError
from microbench.runners.runner import Launch

LOST: Final = frozenset({4, 46, 100, 101, 214, 220, 226, 802, 803, 999, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721})
"""Errors after which every further call of this process fails: of the board or its driver (unavailable, uncorrectable memory or link, too
old a driver, unknown), and from 700 on of a kernel (illegal addresses and instructions, time-outs, assertions).
Source: CUDA runtime API, cudaError_t; the driver's codes are the same."""

ALIGNED_ELEMENTS: Final = 256
"""Operands begin at a multiple of this many numbers: at least on the 256 bytes of cudaMalloc."""

CHUNK_ELEMENTS: Final = 1 << 24
"""Random numbers drawn at a time: 64 MiB of fp32."""

DTYPES: Final = {
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
            f"CuPy cannot be loaded ({first_line(error)}); pip install 'wattprint[cuda13]' or 'wattprint[cuda12]'"
        ) from error
    return cupy


@frozen
class Placed:
    """Bytes of the host (`ordinal` -1) or of a board; `argument` is the launch argument of their address, `memory` holds them."""

    ordinal: int
    address: int
    argument: Any
    memory: Any


@dataclass(frozen=True, slots=True)
class CupyDevice:
    """One context on one board, its memory, stream and timer; `open_cupy_device` makes it.

    Methods raise KernelFailedError and DeviceLostError, as `errors` maps them.
    """

    cupy: Any
    ordinal: int
    stream: Any

    @property
    def stream_pointer(self) -> int:
        """Address of the stream, for other libraries."""
        return int(self.stream.ptr)

    def errors(self, what: str) -> AbstractContextManager[None]:
        """Map CUDA's errors within a block; `what` names the operation."""
        return cuda_errors(self.cupy, what)

    def free_bytes(self, ordinal: int | None = None) -> int:
        """Memory for new operands on this board, including CuPy's reserve, or on another board [byte]."""
        with self.errors("asking for free memory"), self.cupy.cuda.Device(self.ordinal if ordinal is None else ordinal):
            reserve = self.cupy.get_default_memory_pool().free_bytes() if ordinal in (None, self.ordinal) else 0
            return int(self.cupy.cuda.runtime.memGetInfo()[0]) + int(reserve)

    def total_bytes(self) -> int:
        """Memory of the board [byte]."""
        with self.errors("asking for the size of the memory"):
            _, total = self.cupy.cuda.runtime.memGetInfo()
            return int(total)

    def trim(self) -> None:
        """Return cached memory to the board."""
        with self.errors("freeing memory"):
            self.stream.synchronize()
            self.cupy.get_default_memory_pool().free_all_blocks()

    def mark(self) -> Any:
        """A timing event on the stream."""
        event = self.cupy.cuda.Event()
        event.record(self.stream)
        return event

    def elapsed_s(self, earlier: Any, later: Any) -> float:
        """Device time between two events that have passed [s]."""
        return float(self.cupy.cuda.get_elapsed_time(earlier, later)) * 1e-3

    def synchronize(self) -> None:
        """Wait until the stream is finished."""
        self.stream.synchronize()

    def capture(self, work: Launch) -> Launch:
        """The launches of `work` as one graph."""
        self.stream.begin_capture()
        try:
            work()
        finally:
            graph = self.stream.end_capture()
        graph.upload(self.stream)
        return lambda: graph.launch(self.stream)

    def empty(self, elements: int, precision: str) -> Any:
        """Uninitialised memory for a number of elements."""
        return self.cupy.empty(elements, dtype=DTYPES[precision])

    def empty_sets(self, sets: int, shape: Sequence[int], precision: str) -> list[Any]:
        """Several arrays of a shape in one allocation, each aligned for libraries."""
        elements = math.prod(shape)
        stride = -(-elements // ALIGNED_ELEMENTS) * ALIGNED_ELEMENTS
        whole = self.empty(sets * stride, precision)
        return [whole[i * stride : i * stride + elements].reshape(shape) for i in range(sets)]

    def normal_sets(self, sets: int, shape: Sequence[int], precision: str, seed: int) -> list[Any]:
        """Several arrays of a shape in one allocation with standard normal random numbers."""
        arrays = self.empty_sets(sets, shape, precision)
        random = self.cupy.random.RandomState(seed)
        for array in arrays:
            target = array.reshape(-1)
            for start in range(0, target.size, CHUNK_ELEMENTS):
                stop = min(start + CHUNK_ELEMENTS, target.size)
                drawn = random.standard_normal(stop - start, dtype="float64" if precision == "fp64" else "float32")
                if precision == "bf16":
                    drawn = ((drawn.view("uint32") + np.uint32(0x8000)) >> np.uint32(16)).astype("uint16")
                target[start:stop] = drawn
        return arrays

    def place(self, where: str, size: int, who: str) -> Placed:
        """`size` bytes at "device", "peer" (another board) or "host" (pinned); `who` is their user, for messages.

        Raises UnsupportedError if no other board is accessible, KernelFailedError if there is too little.
        """
        if where == "host":
            with self.errors(f"{who}: pinning {size / 1e9:.1f} GB of the host's memory"):
                pinned = self.cupy.cuda.alloc_pinned_memory(size)
            address = int(pinned.ptr)
            return Placed(ordinal=-1, address=address, argument=np.uint64(address), memory=np.frombuffer(pinned, np.uint8, size))
        ordinal = self.ordinal if where == "device" else self._peer()
        if ordinal is None:
            raise UnsupportedError(f"{who}: needs the memory of another GPU; this board reaches none (NVLink or PCIe peer access)")
        free = self.free_bytes(ordinal)
        if size > free:
            raise KernelFailedError(f"{who}: needs {size / 1e9:.1f} GB, {free / 1e9:.1f} GB are free; take a smaller footprint")
        with self.cupy.cuda.Device(ordinal):
            array = self.cupy.empty(size, dtype="uint8")
        address = int(array.data.ptr)
        return Placed(ordinal=ordinal, address=address, argument=array if where == "device" else np.uint64(address), memory=array)

    def _peer(self) -> int | None:
        """The first other board whose memory this one can access directly, with access enabled; None without one."""
        runtime = self.cupy.cuda.runtime
        for other in range(int(runtime.getDeviceCount())):
            if other == self.ordinal or not runtime.deviceCanAccessPeer(self.ordinal, other):
                continue
            try:
                runtime.deviceEnablePeerAccess(other)
            except runtime.CUDARuntimeError as error:
                if _status(error) != 704:  # cudaErrorPeerAccessAlreadyEnabled
                    raise
            return other
        return None

    def fill(self, placed: Placed, values: NDArray[np.uint8]) -> None:
        """Write bytes, shape (n,), from the host; where there is more room, they are repeated there, without the host."""
        memory, done = placed.memory, values.size
        if placed.ordinal < 0:
            memory[:] = np.resize(values, memory.size)
            return
        with self.cupy.cuda.Device(placed.ordinal):
            memory[:done].set(values)
            while done < memory.size:
                step = min(done, memory.size - done)
                memory[done : done + step] = memory[:step]
                done += step
            self.cupy.cuda.runtime.deviceSynchronize()

    def contents(self, placed: Placed) -> NDArray[np.uint8]:
        """A copy of the bytes on the host, shape (n,)."""
        return np.array(placed.memory if placed.ordinal < 0 else self.cupy.asnumpy(placed.memory))

    def copy(self, target: Placed, origin: Placed) -> None:
        """Put a copy of all bytes of `origin` on the stream."""
        runtime, size = self.cupy.cuda.runtime, int(origin.memory.size)
        if min(target.ordinal, origin.ordinal) >= 0 and target.ordinal != origin.ordinal:
            runtime.memcpyPeerAsync(target.address, target.ordinal, origin.address, origin.ordinal, size, self.stream_pointer)
        else:  # cudaMemcpyDefault: addresses determine the places of both ends
            runtime.memcpyAsync(target.address, origin.address, size, 4, self.stream_pointer)

    def cublas_file(self) -> Path:
        """The file of cuBLAS that CuPy has loaded.  Raises UnsupportedError if it has none."""
        with self.errors("loading cuBLAS"):
            self.cupy.cuda.device.get_cublas_handle()
        for line in Path("/proc/self/maps").read_text().splitlines():
            path = Path(line.split(maxsplit=5)[-1]) if "/" in line else Path()
            if path.name.startswith("libcublas.so"):
                return path
        raise UnsupportedError("CuPy has loaded no libcublas.so; install the CUDA libraries (pip install 'cupy-cuda13x[ctk]')")

    def load_cubin(self, cubin: bytes, entry: str) -> Callable[[Sequence[int], Sequence[int], Sequence[Any]], None]:
        """An entry of compiled machine code: a function of grid, block and arguments that launches it."""
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin)
            file.flush()
            kernel = self.cupy.RawModule(path=file.name).get_function(entry)
        return lambda grid, block, arguments: kernel(tuple(grid), tuple(block), tuple(arguments))


@contextmanager
def open_cupy_device(pci_address: str, cupy: Any) -> Iterator[CupyDevice]:
    """The context on the board at a PCI address, current for this thread; its memory is released at the end.

    `cupy` is the module (None: import it).  Raises UnsupportedError without CuPy, DeviceLostError if the board does not answer.
    """
    module = load_cupy() if cupy is None else cupy
    runtime = module.cuda.runtime
    try:
        ordinal = int(runtime.deviceGetByPCIBusId(short_pci_address(pci_address)))
    except runtime.CUDARuntimeError as error:
        raise DeviceLostError(
            f"CUDA sees no board at {pci_address} ({first_line(error)}); check CUDA_VISIBLE_DEVICES and the driver"
        ) from error
    with cuda_errors(module, f"board {pci_address}"), module.cuda.Device(ordinal):
        stream = module.cuda.Stream(non_blocking=True)
        with stream:
            yield CupyDevice(module, ordinal, stream)
        module.get_default_memory_pool().free_all_blocks()


def short_pci_address(pci_address: str) -> str:
    """A PCI address with a domain of four digits, as CUDA prints it; NVML writes eight."""
    domain, _, rest = pci_address.partition(":")
    return f"{domain[-4:]}:{rest}" if len(domain) > 4 and not domain[:-4].strip("0") else pci_address


@contextmanager
def cuda_errors(cupy: Any, what: str) -> Iterator[None]:
    """Map CuPy's errors within a block by their CUDA status."""
    cuda = cupy.cuda
    try:
        yield
    except (cuda.memory.OutOfMemoryError, cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError) as error:
        raise device_failure(_status(error) in LOST, f"{what}: {first_line(error)}") from error


def device_failure(lost: bool, text: str) -> KernelFailedError | DeviceLostError:
    """The error of a device that is lost, or of a kernel alone."""
    if lost:
        return DeviceLostError(f"{text}; this process cannot use the board any more, nvidia-smi shows its state")
    return KernelFailedError(text)


def _status(error: BaseException) -> int:
    """The CUDA status of an error of CuPy."""
    return int(getattr(error, "status", -1))


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" =\t")]
    return lines[0] if lines else type(error).__name__

"""Generated kernels and copies by the copy engines on a real board: fills buffers, times launches, reads back or compares results.

Buffers are in the board's own memory, in pinned memory of the host, or in another board's memory over the link between them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from microbench.errors import DeviceMemoryError, UnsupportedError
from microbench.kernel import Buffer, Buffers, HostLoad, Kernel, Launch
from microbench.loads.launch import check_iterations
from microbench.operands import argument_value, buffer_bytes, buffer_records, contents, record_type
from microbench.runners.cupy_device import CupyDevice, LoadedCubin
from microbench.runners.runner import Launcher, LaunchRecord

CHECKED_BYTES: Final = 1 << 20
"""Bytes at the start and at the end of a copy that are compared with the origin: 1 MiB each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Bytes at a place ("device", "peer" or "host"); `argument` is the launch argument of their address, `kept` keeps them alive."""

    place: str
    ordinal: int
    address: int
    bytes: int
    argument: Any
    kept: Any


class GeneratedRun:
    """A generated kernel with its buffers on the device; `load_generated` makes it."""

    def __init__(self, device: CupyDevice, kernel: Kernel, launcher: Launcher, code: LoadedCubin, placed: dict[str, Placed]) -> None:
        self._device = device
        self._kernel = kernel
        self._launcher = launcher
        self._placed = placed
        self.registers_per_thread = code.registers_per_thread
        self.shared_bytes_per_block = code.shared_bytes_per_block

    def run(self, launches: int) -> LaunchRecord:
        """Launch it back to back and wait for the end.  Raises LaunchError, KernelFailedError, DeviceLostError."""
        with self._device.errors(f"running {self._kernel.name}"):
            return self._launcher.run(launches)

    def results(self) -> Buffers:
        """Written buffers after one launch, for `microbench.check`; before it, the buffers must have their initial contents."""
        with self._device.errors(f"checking {self._kernel.name}"):
            self._launcher.run(1)
            return {
                buffer.name: contents_of(self._device, self._placed[buffer.name]).view(record_type(buffer))
                for buffer in self._kernel.buffers
                if buffer.written
            }


def load_generated(device: CupyDevice, kernel: Kernel, launch: Launch, cubin: bytes, now_ns: Callable[[], int]) -> GeneratedRun:
    """A generated kernel on the device with filled buffers; `cubin` is the inspected code.

    Raises UnsupportedError for buffers on another board if none is accessible, DeviceMemoryError if they do not fit,
    KernelFailedError for code that the driver refuses, LaunchError for turns of its loop that its counter does not hold.
    """
    check_iterations(kernel.name, launch.iterations)  # a loop with 0 turns would run 2**32 turns
    needed, free = buffer_bytes(kernel, launch, "device"), device.free_bytes()
    if needed > free:
        raise DeviceMemoryError(f"{kernel.name}: needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free; take a smaller footprint")
    with device.errors(f"loading {kernel.name}"):
        code = device.load_cubin(cubin, kernel.name)
        placed = {buffer.name: _filled(device, kernel.name, buffer, launch) for buffer in kernel.buffers}
        device.synchronize()
    arguments = [placed[name].argument if name in placed else np.uint32(argument_value(name, launch)) for name in kernel.arguments]
    launcher = Launcher(device, (lambda: code.launch(launch.grid, launch.block, arguments),), device.capture, now_ns)
    return GeneratedRun(device, kernel, launcher, code, placed)


class CopyRun:
    """A copy by the copy engines with its two buffers; `load_copy` makes it."""

    def __init__(self, device: CupyDevice, load: HostLoad, origin: Placed, target: Placed, now_ns: Callable[[], int]) -> None:
        self._device = device
        self._load = load
        self._origin = origin
        self._target = target
        self._launcher = Launcher(device, (self._copy,), device.capture, now_ns)

    def run(self, launches: int) -> LaunchRecord:
        """Copy back to back and wait for the end.  Raises LaunchError, KernelFailedError, DeviceLostError."""
        with self._device.errors(f"running {self._load.name}"):
            return self._launcher.run(launches)

    def complaint(self) -> str:
        """The fault in the copied bytes; "" if they equal the origin."""
        with self._device.errors(f"checking {self._load.name}"):
            self._copy()
            self._device.synchronize()
            sent, came = contents_of(self._device, self._origin), contents_of(self._device, self._target)
        ends = np.unique(np.r_[: min(CHECKED_BYTES, sent.size), max(0, sent.size - CHECKED_BYTES) : sent.size])
        wrong = int((sent[ends] != came[ends]).sum())
        return f"{self._load.name}: {wrong} of {ends.size} bytes compared arrived changed" if wrong else ""

    def _copy(self) -> None:
        self._device.copy(self._target.address, self._target.ordinal, self._origin.address, self._origin.ordinal, self._origin.bytes)


def load_copy(device: CupyDevice, load: HostLoad, now_ns: Callable[[], int], seed: int = 0) -> CopyRun:
    """A copy with random bytes at its origin.

    Raises UnsupportedError if no other board is accessible, DeviceMemoryError if memory is short.
    """
    with device.errors(f"making room for {load.name}"):
        origin, target = (place_bytes(device, place, load.bytes_moved, load.name) for place in (load.origin, load.target))
        fill(device, origin, np.random.default_rng(seed).integers(0, 256, load.bytes_moved, dtype=np.uint8))
        device.synchronize()
    return CopyRun(device, load, origin, target, now_ns)


def place_bytes(device: CupyDevice, place: str, size: int, who: str) -> Placed:
    """Memory at a place; `who` is its user, for messages.

    Raises UnsupportedError if no other board is accessible, DeviceMemoryError if there is too little.
    """
    if place == "host":
        pinned = device.pinned(size, who)
        address = int(pinned.ptr)
        return Placed(place=place, ordinal=-1, address=address, bytes=size, argument=np.uint64(address), kept=pinned)
    ordinal = device.ordinal if place == "device" else device.peer()
    if ordinal is None:
        raise UnsupportedError(f"{who}: needs the memory of another GPU; this board reaches none (NVLink or PCIe peer access)")
    free = device.free_bytes(ordinal)
    if size > free:
        raise DeviceMemoryError(f"{who}: needs {size / 1e9:.1f} GB, {free / 1e9:.1f} GB are free; take a smaller footprint")
    array = device.empty_on(ordinal, size)
    address = int(array.data.ptr)
    argument = array if place == "device" else np.uint64(address)
    return Placed(place=place, ordinal=ordinal, address=address, bytes=size, argument=argument, kept=array)


def fill(device: CupyDevice, placed: Placed, values: NDArray[Any]) -> None:
    """Write bytes, shape (n,), from the host."""
    if placed.place == "host":
        device.pinned_view(placed.kept, placed.bytes)[:] = values.view(np.uint8)
    else:
        device.fill_on(placed.ordinal, placed.kept, values.view(np.int8))


def contents_of(device: CupyDevice, placed: Placed) -> NDArray[np.uint8]:
    """A copy of the bytes on the host, shape (n,)."""
    if placed.place == "host":
        return np.array(device.pinned_view(placed.kept, placed.bytes))
    return np.array(device.raw_to_host(placed.kept)).view(np.uint8)


def _filled(device: CupyDevice, who: str, buffer: Buffer, launch: Launch) -> Placed:
    """A buffer at its place with its contents; it is filled there, because chases hold addresses."""
    placed = place_bytes(device, buffer.location, buffer_records(buffer, launch) * record_type(buffer).itemsize, who)
    fill(device, placed, np.ascontiguousarray(contents(buffer, launch, placed.address)).view(np.int8))
    return placed

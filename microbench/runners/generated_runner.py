"""Generated kernels on a real board: machine code as it was inspected, buffers filled, launches timed, results read back."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from microbench.errors import DeviceMemoryError, LaunchError
from microbench.kernel import Argument, Buffer, Buffers, Kernel, Launch
from microbench.loads.launch import check_iterations
from microbench.operands import argument_value, buffer_bytes, buffer_records, contents, record_type
from microbench.runners.cupy_device import CupyDevice, LoadedCubin
from microbench.runners.memory_places import Placed, contents_of, fill, place_bytes
from microbench.runners.runner import LaunchRecord, timed_run
from microbench.sizing import graph_launches, segment_launches

SEGMENTS: Final = 20
"""Parts of a run that are timed separately."""

PROBE_LAUNCHES: Final = 3


class GeneratedRun:
    """A generated kernel with its buffers on the device; `load_generated` makes it."""

    def __init__(
        self, device: CupyDevice, kernel: Kernel, launch: Launch, code: LoadedCubin, placed: Mapping[str, Placed], now_ns: Callable[[], int]
    ) -> None:
        self._device = device
        self._kernel = kernel
        self._launch = launch
        self._code = code
        self._placed = placed
        self._now_ns = now_ns

    @property
    def registers_per_thread(self) -> int:
        """Registers of a thread, as the driver loaded the code."""
        return self._code.registers_per_thread

    @property
    def shared_bytes_per_block(self) -> int:
        """Shared memory of a block [byte]."""
        return self._code.shared_bytes_per_block

    def run(self, launches: int, iterations: int | None = None, host_launch_s: float = 0.0) -> LaunchRecord:
        """Launches it back to back and waits for the end; `iterations` of its loop in each (None: the launch's own).

        Launches that are short against `host_launch_s` go through a graph.  Raises LaunchError, KernelFailedError, DeviceLostError.
        """
        if launches < 1:
            raise LaunchError(f"{launches} launches of {self._kernel.name} cannot run; give at least 1")
        turns = self._launch.iterations if iterations is None else iterations
        with self._device.errors(f"running {self._kernel.name}"):
            arguments = self._arguments(turns)

            def once() -> None:
                self._code.launch(self._launch.grid, self._launch.block, arguments)

            size = graph_launches(self._probed_s(once), host_launch_s, 1) if launches > 1 else 1  # a lone launch is all that may run

            def several() -> None:
                for _ in range(size):
                    once()

            graph = self._device.capture(several) if 1 < size <= launches else None

            def enqueue(count: int) -> None:
                graphs = count // size if graph is not None else 0
                for _ in range(graphs):
                    if graph is not None:
                        graph()
                for _ in range(count - graphs * size):
                    once()

            return timed_run(self._device, self._now_ns, segment_launches(launches, SEGMENTS), enqueue)

    def results(self, iterations: int | None = None) -> Buffers:
        """What one launch leaves in its written buffers, for `microbench.check`; the buffers must be as they were filled."""
        with self._device.errors(f"checking {self._kernel.name}"):
            arguments = self._arguments(self._launch.iterations if iterations is None else iterations)
            self._code.launch(self._launch.grid, self._launch.block, arguments)
            self._device.synchronize()
            return {
                buffer.name: contents_of(self._device, self._placed[buffer.name]).view(record_type(buffer))
                for buffer in self._kernel.buffers
                if buffer.written
            }

    def _probed_s(self, once: Callable[[], None]) -> float:
        """Time of a launch, after one that loads the code [s]."""
        once()
        before = self._device.mark()
        for _ in range(PROBE_LAUNCHES):
            once()
        after = self._device.mark()
        self._device.synchronize()
        return self._device.elapsed_s(before, after) / PROBE_LAUNCHES

    def _arguments(self, iterations: int) -> tuple[Any, ...]:
        check_iterations(self._kernel.name, iterations)  # a loop told to turn 0 times would turn 2**32 times
        launch = replace(self._launch, iterations=iterations)
        return tuple(self._argument(argument, launch) for argument in self._kernel.arguments)

    def _argument(self, argument: Argument, launch: Launch) -> Any:
        """A parameter as CuPy passes it: an array or its address, or 32 bits."""
        if argument.pointer:
            return self._placed[argument.pointer].argument
        value = argument_value(argument, launch)
        if not 0 <= value < 2**32:
            raise LaunchError(f"{self._kernel.name}: {argument.scalar or 'parameter'} = {value} does not fit 32 bits")
        return np.uint32(value)


def load_generated(device: CupyDevice, kernel: Kernel, launch: Launch, cubin: bytes, now_ns: Callable[[], int]) -> GeneratedRun:
    """A generated kernel on the device, its buffers filled; `cubin` is the very code that was inspected.

    Raises UnsupportedError for buffers on another board where none can be reached, DeviceMemoryError where they do not fit,
    KernelFailedError for code that the driver refuses.
    """
    needed, free = buffer_bytes(kernel, launch, "device"), device.free_bytes()
    if needed > free:
        raise DeviceMemoryError(f"{kernel.name}: needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free; take a smaller footprint")
    with device.errors(f"loading {kernel.name}"):
        code = device.load_cubin(cubin, kernel.name)
        placed = {buffer.name: _filled(device, kernel.name, buffer, launch) for buffer in kernel.buffers}
        device.synchronize()
    return GeneratedRun(device, kernel, launch, code, placed, now_ns)


def _filled(device: CupyDevice, who: str, buffer: Buffer, launch: Launch) -> Placed:
    """A buffer where it belongs; chases hold addresses, so that it is filled where it lies."""
    placed = place_bytes(device, buffer.location, buffer_records(buffer, launch) * record_type(buffer).itemsize, who)
    fill(device, placed, np.ascontiguousarray(contents(buffer, launch, placed.address)).view(np.int8))
    return placed

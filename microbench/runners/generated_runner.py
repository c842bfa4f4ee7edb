"""Generated kernels and copies by the copy engines on a real board: fills buffers, times launches, reads back or compares results.

Buffers are in the board's own memory, in pinned memory of the host, or in another board's memory over the link between them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from microbench.errors import ResultError
from microbench.kernel import Buffer, Buffers, Kernel, Launch
from microbench.loads.copies import CopyLoad
from microbench.operands import DRAWN_RECORDS, argument_value, buffer_records, contents, record_type
from microbench.runners.cupy_device import CupyDevice, Placed
from microbench.runners.runner import Launcher, LaunchRecord

CHECKED_BYTES: Final = 1 << 20
"""Bytes at the start and at the end of a copy that are compared with the origin: 1 MiB each."""


@dataclass(frozen=True, slots=True)
class GeneratedRun:
    """A generated kernel or a copy with its buffers.  Both functions raise LaunchError, KernelFailedError, DeviceLostError.

    `run` launches it back to back and waits for the end.  `results` gives the written buffers after one launch, for `microbench.check`;
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
    run = _runs(device, kernel.name, lambda: started(launch.grid, launch.block, arguments), now_ns)

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
        ends = np.unique(np.r_[: min(CHECKED_BYTES, sent.size), max(0, sent.size - CHECKED_BYTES) : sent.size])
        if wrong := int((sent[ends] != came[ends]).sum()):
            raise ResultError(f"{load.name}: {wrong} of {ends.size} bytes compared arrived changed")
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

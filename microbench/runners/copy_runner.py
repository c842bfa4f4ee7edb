"""Copies by the copy engines on a real board: memory at both ends, copies timed, what arrived compared with what was sent."""

from collections.abc import Callable
from typing import Final

import numpy as np

from microbench.errors import LaunchError
from microbench.kernel import HostLoad
from microbench.runners.cupy_device import CupyDevice
from microbench.runners.memory_places import Place, Placed, contents_of, fill, place_bytes
from microbench.runners.runner import LaunchRecord, timed_run
from microbench.sizing import segment_launches

SEGMENTS: Final = 20
"""Parts of a run that are timed separately."""

CHECKED_BYTES: Final = 1 << 20
"""Bytes at the start and at the end of a copy that are compared with what was sent: 1 MiB each."""


class CopyRun:
    """A copy with its two buffers; `load_copy` makes it."""

    def __init__(self, device: CupyDevice, load: HostLoad, origin: Placed, target: Placed, now_ns: Callable[[], int]) -> None:
        self._device = device
        self._load = load
        self._origin = origin
        self._target = target
        self._now_ns = now_ns

    def run(self, launches: int) -> LaunchRecord:
        """Copies back to back and waits for the end.  Raises LaunchError, KernelFailedError, DeviceLostError."""
        if launches < 1:
            raise LaunchError(f"{launches} copies cannot run; give at least 1")

        def enqueue(count: int) -> None:
            for _ in range(count):
                self._copy()

        with self._device.errors(f"running {self._load.name}"):
            self._copy()  # the first one sets up the path
            self._device.synchronize()
            return timed_run(self._device, self._now_ns, segment_launches(launches, SEGMENTS), enqueue)

    def complaint(self) -> str:
        """What is wrong with what arrives; "" where it is what was sent."""
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

    Raises UnsupportedError where no other board can be reached, DeviceMemoryError where memory is short.
    """
    with device.errors(f"making room for {load.name}"):
        origin = place_bytes(device, _place(load.origin), load.bytes_moved, load.name)
        target = place_bytes(device, _place(load.target), load.bytes_moved, load.name)
        fill(device, origin, np.random.default_rng(seed).integers(0, 256, load.bytes_moved, dtype=np.uint8))
        device.synchronize()
    return CopyRun(device, load, origin, target, now_ns)


def _place(name: str) -> Place:
    match name:
        case "host":
            return "host"
        case "peer":
            return "peer"
        case _:
            return "device"

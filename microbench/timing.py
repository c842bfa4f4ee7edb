"""Timing a run: segments between points of the device's own time, host stamps around the whole."""

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from microbench.runner import Device, LaunchRecord


def timed_run(device: Device, now_ns: Callable[[], int], counts: Sequence[int], enqueue: Callable[[int], None]) -> LaunchRecord:
    """Launches `counts` one segment after the other, with nothing between them, and waits for the end.

    `enqueue` puts so many launches on the device's stream; the device is idle before the first.
    """
    device.synchronize()
    start_ns = now_ns()
    marks = [device.mark()]
    for count in counts:
        enqueue(count)
        marks.append(device.mark())
    device.synchronize()
    end_ns = now_ns()
    seconds = np.array([device.elapsed_s(earlier, later) for earlier, later in itertools.pairwise(marks)], dtype=np.float64)
    return LaunchRecord(start_ns=start_ns, end_ns=end_ns, launches=sum(counts), segment_s=seconds / np.array(counts))

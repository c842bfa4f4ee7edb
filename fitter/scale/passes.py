"""Passes over partitions: every partition by whichever worker is free, results added in the order of the partitions."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

from fitter.scale.partitions import Partition

Result = TypeVar("Result")


class Workers(Protocol):
    """Where partitions are read: threads of this process, or the workers of a cluster."""

    def results(self, task: Callable[[Partition], Result], partitions: Sequence[Partition]) -> Iterator[Result]:
        """The task's result for every partition, in their order."""


class LocalWorkers:
    """Threads of this process: reading and summing leave Python's lock to the others."""

    def __init__(self, count: int) -> None:
        self.count = max(count, 1)

    def results(self, task: Callable[[Partition], Result], partitions: Sequence[Partition]) -> Iterator[Result]:
        """As `Workers`; few results wait for their turn at any time, which bounds the memory."""
        if self.count == 1 or len(partitions) < 2:
            yield from map(task, partitions)
            return
        waiting: deque[Future[Result]] = deque()
        with ThreadPoolExecutor(self.count) as pool:
            try:
                for partition in partitions:
                    waiting.append(pool.submit(task, partition))
                    if len(waiting) > 2 * self.count:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()


def run_pass(
    workers: Workers,
    task: Callable[[Partition], Result],
    partitions: Sequence[Partition],
    merge: Callable[[Result, Result], Result],
    progress: Callable[[str], None] = lambda text: None,
    label: str = "reading",
) -> Result:
    """The results of all partitions, added one after the other from the first to the last."""
    total = None
    for done, result in enumerate(workers.results(task, partitions), start=1):
        total = result if total is None else merge(total, result)
        progress(f"{label}: partition {done:,} of {len(partitions):,}")
    if total is None:
        raise ValueError("no partition to read")
    return total

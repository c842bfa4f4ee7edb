"""Workers of a Dask cluster; the only file that imports `distributed`.

Tasks are pure: Dask repeats the task of a lost worker elsewhere, with the same result.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from typing import Any, Final, TypeVar

from distributed import Client, KilledWorker
from distributed.client import FutureCancelledError
from distributed.comm.core import CommClosedError

from fitter.errors import ClusterError
from fitter.rows.partitions import Partition

Result = TypeVar("Result")

DISTRIBUTION: Final = "wattprint"


def in_order(client: Any, task: Callable[[Partition], Result], partitions: Sequence[Partition]) -> Iterator[Result]:
    """The task's result for every partition, in their order, from the workers of a connected cluster.

    Raises ClusterError if a task fails repeatedly, or the scheduler is lost.
    """
    waiting: deque[Any] = deque()
    # Partitions submitted for each thread of the cluster beyond those whose result was taken: bounds what waits in memory.
    ahead = 4 * max(sum(client.nthreads().values()), 1)
    try:
        for partition in partitions:
            # How often a task that failed for want of its worker or store is tried again.
            waiting.append(client.submit(task, partition, pure=False, retries=3))
            if len(waiting) >= ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except KilledWorker as error:
        raise ClusterError(f"workers of the cluster died over and over on one partition ({_line(error)}); give them more memory") from error
    except (CommClosedError, FutureCancelledError, TimeoutError) as error:
        raise ClusterError(f"the cluster was lost ({_line(error)}); fit again") from error
    finally:
        for future in waiting:
            future.cancel()


@contextmanager
def open_cluster(address: str, connect_s: float = 10.0) -> Iterator[Callable[..., Iterator[Any]]]:
    """`in_order` of the cluster whose scheduler has this address, such as tcp://10.0.0.1:8786.

    Raises ClusterError if no scheduler answers, it has no workers, or these run another version of wattprint.
    """
    connect: Any = Client  # its package is partly typed
    try:
        client = connect(address, timeout=connect_s, set_as_default=False)
    except (OSError, TimeoutError, ValueError, ImportError) as error:
        raise ClusterError(f"--scheduler {address}: no Dask scheduler answers there ({_line(error)})") from error
    with client:
        try:
            client.wait_for_workers(1, timeout=connect_s)
            found = client.run(version, DISTRIBUTION, on_error="return")
        except (OSError, TimeoutError) as error:
            raise ClusterError(f"--scheduler {address}: the scheduler has no workers; start some with `dask worker {address}`") from error
        check_versions(found, version(DISTRIBUTION), address)
        yield partial(in_order, client)


def check_versions(found: Mapping[str, object], own: str, address: str) -> None:
    """Raise ClusterError for workers with another version.

    found: version by worker, or the exception if wattprint is not installed there.
    """
    for worker, theirs in sorted(found.items()):
        if isinstance(theirs, Exception):
            raise ClusterError(
                f"--scheduler {address}: worker {worker} has no wattprint ({_line(theirs)}); install wattprint[cluster] {own} there"
            )
        if theirs != own:
            raise ClusterError(f"--scheduler {address}: worker {worker} has wattprint {theirs}, this is {own}; install the same on both")


def _line(error: BaseException) -> str:
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return text[:200]

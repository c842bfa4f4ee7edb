"""A worker that is killed in the middle of a pass changes nothing but the time."""

import logging
import os
import signal
from functools import partial
from pathlib import Path

from distributed import Client, LocalCluster

from fitter.rows.partitions import open_partitioned
from fitter.scale.cluster import DaskWorkers
from fitter.scale.kernel_sample import KernelSample, sample_partition
from fitter.scale.streamed import LocalWorkers
from tests.fitter.scale.generated import write_parts
from tests.fitter.scale.test_kernel_sample import TASK, contents, kernel_table

REPEATS = 8
"""Passes over the five partitions: more tasks than are under way at any time."""


def said(sample: KernelSample) -> str:
    """All that a sample says."""
    return repr((contents(sample.rows), sample.read, sample.used, sample.rejected))


def test_what_a_killed_worker_had_is_done_by_another(tmp_path: Path) -> None:
    parts = open_partitioned(write_parts(kernel_table(1000), tmp_path, [100, 180, 400, 800])).partitions() * REPEATS
    task = partial(sample_partition, task=TASK)
    expected = [said(result) for result in LocalWorkers(1).results(task, parts)]
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address="127.0.0.1:0",
            host="127.0.0.1",
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster, set_as_default=False) as client,  # type: ignore[no-untyped-call]
    ):
        results = DaskWorkers(client).results(task, parts)
        found = [said(next(results))]
        os.kill(min(client.run(os.getpid).values()), signal.SIGKILL)
        found += [said(result) for result in results]
    assert found == expected

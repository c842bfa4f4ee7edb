"""A worker that is killed in the middle of a pass changes nothing but the time."""

import logging
import os
import signal
from functools import partial
from pathlib import Path

from distributed import Client, LocalCluster

from fitter.cluster import DaskWorkers
from fitter.scale.design_table import DesignPass, design_pass
from fitter.scale.partitions import open_partitioned
from fitter.scale.passes import LocalWorkers
from tests.fitter.scale.generated import PHASES, design_arrow, design_columns, write_parts

REPEATS = 8
"""Passes over the five partitions: more tasks than are under way at any time."""


def test_what_a_killed_worker_had_is_done_by_another(tmp_path: Path) -> None:
    parts = open_partitioned(write_parts(design_arrow(*design_columns(5000)), tmp_path, [500, 900, 2000, 4000])).partitions() * REPEATS
    task = partial(design_pass, task=DesignPass(phases=PHASES, weighted=False, share=0.2, seed=0))
    expected = [result.sums.high.tobytes() for result in LocalWorkers(1).results(task, parts)]
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
        found = [next(results).sums.high.tobytes()]
        os.kill(min(client.run(os.getpid).values()), signal.SIGKILL)
        found += [result.sums.high.tobytes() for result in results]
    assert found == expected

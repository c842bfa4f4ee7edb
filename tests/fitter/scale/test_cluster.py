"""A Dask cluster gives what one machine gives, to the bit; what is wrong with it is said in one line."""

import logging
import os
import signal

import pytest
from distributed import Client, LocalCluster

from collector.errors import DatasetError
from fitter.errors import ClusterError
from fitter.rows.partitions import open_partitioned, read_batches
from fitter.scale.cluster import check_versions, in_order, open_cluster
from fitter.scale.streamed import sample_of
from tests.fitter.scale.test_kernel_sample import TASK, kernel_table, said, write_parts


def started(workers, *, processes=False):
    """A cluster on the loopback."""
    return LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        processes=processes,
        dashboard_address="127.0.0.1:0",
        host="127.0.0.1",
        protocol="tcp",
        silence_logs=logging.CRITICAL,
    )


@pytest.fixture
def folder(tmp_path):
    """A kernel table in five files."""
    return write_parts(kernel_table(1000), tmp_path / "k", [100, 180, 400, 800])


def rows_of(partition):
    """Rows of a partition, read to its end."""
    return sum(batch.num_rows for batch in read_batches(partition, ["latency_s"]))


def test_a_cluster_gives_the_sample_of_one_machine_in_the_order_of_the_partitions(folder):
    parts = open_partitioned(folder).parts
    with started(2) as cluster, open_cluster(cluster.scheduler_address) as results:
        assert list(results(rows_of, parts)) == [100, 80, 220, 400, 200]
        assert said(sample_of(parts, TASK, results)) == said(sample_of(parts, TASK))
        (folder / "part-002.parquet").write_bytes(b"PAR1")
        with pytest.raises(DatasetError, match="part-002.parquet: truncated"):
            list(results(rows_of, parts))


def test_the_work_of_a_killed_worker_is_done_by_another():
    task = lambda number: sum(range(300_000 + number))  # noqa: E731 - pickled as it is: workers import nothing of ours
    with started(2, processes=True) as own, Client(own, set_as_default=False) as client:
        results = in_order(client, task, range(40))  # more tasks than are under way at any time
        found = [next(results)]
        os.kill(min(client.run(os.getpid).values()), signal.SIGKILL)
        assert [*found, *results] == [*map(task, range(40))]


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "foo://127.0.0.1:1", "127.0.0.1:port"])
def test_an_address_without_a_scheduler_is_refused(address):
    with pytest.raises(ClusterError, match=f"--scheduler {address}: no Dask scheduler answers there"), open_cluster(address, connect_s=0.2):
        pass


def test_workers_of_another_version_and_a_scheduler_without_workers_are_refused():
    check_versions({"tcp://w1": "1.2.3"}, "1.2.3", "tcp://s")
    with pytest.raises(ClusterError, match=r"worker tcp://w2 has wattprint 1.2.2, this is 1.2.3"):
        check_versions({"tcp://w1": "1.2.3", "tcp://w2": "1.2.2"}, "1.2.3", "tcp://s")
    with pytest.raises(ClusterError, match=r"worker tcp://w1 has no wattprint"):
        check_versions({"tcp://w1": ModuleNotFoundError("wattprint")}, "1.2.3", "tcp://s")
    with (
        started(0) as found,
        pytest.raises(ClusterError, match="the scheduler has no workers"),
        open_cluster(found.scheduler_address, connect_s=0.5),
    ):
        pass

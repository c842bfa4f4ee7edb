"""A Dask cluster gives what one machine gives, to the bit; what is wrong with it is said in one line."""

import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from distributed import LocalCluster

from collector.errors import DatasetError
from fitter.errors import ClusterError
from fitter.rows.partitions import Partition, open_partitioned, read_batches
from fitter.scale.cluster import check_versions, open_cluster
from fitter.scale.kernel_sample import merge_samples, sample_partition
from fitter.scale.streamed import run_pass
from tests.fitter.scale.generated import write_parts
from tests.fitter.scale.test_kernel_sample import TASK, contents, kernel_table, same, sampled


def started(workers: int) -> Any:
    """A cluster of this process, on the loopback."""
    return LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        processes=False,
        dashboard_address="127.0.0.1:0",
        host="127.0.0.1",
        protocol="tcp",
        silence_logs=logging.CRITICAL,
    )


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two workers."""
    with started(2) as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A kernel table in five files."""
    return write_parts(kernel_table(1000), tmp_path / "k", [100, 180, 400, 800])


def rows_of(partition: Partition) -> int:
    """Rows of a partition, read to its end."""
    return sum(batch.num_rows for batch in read_batches(partition, ["latency_s"]))


def test_a_cluster_gives_the_sample_of_one_machine(cluster: Any, folder: Path) -> None:
    local = sampled(folder)
    with open_cluster(cluster.scheduler_address) as workers:
        parts = open_partitioned(folder).partitions()
        remote = run_pass(workers, partial(sample_partition, task=TASK), parts, partial(merge_samples, TASK))
    assert same(contents(remote.rows), contents(local.rows))
    assert (remote.read, remote.used, remote.rejected) == (local.read, local.used, local.rejected)


def test_results_come_in_the_order_of_the_partitions(cluster: Any, folder: Path) -> None:
    parts = open_partitioned(folder).partitions()
    with open_cluster(cluster.scheduler_address) as workers:
        assert list(workers.results(rows_of, parts)) == [100, 80, 220, 400, 200]


def test_a_damaged_file_is_named_by_the_worker_that_read_it(cluster: Any, folder: Path) -> None:
    table = open_partitioned(folder)
    (folder / "part-002.parquet").write_bytes(b"PAR1")
    with open_cluster(cluster.scheduler_address) as workers, pytest.raises(DatasetError, match="part-002.parquet: truncated"):
        list(workers.results(rows_of, table.partitions()))


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "foo://127.0.0.1:1", "127.0.0.1:port"])
def test_an_address_without_a_scheduler_is_refused(address: str) -> None:
    with pytest.raises(ClusterError, match=f"--scheduler {address}: no Dask scheduler answers there"), open_cluster(address, connect_s=0.2):
        pass


def test_workers_of_another_version_are_refused_by_name() -> None:
    check_versions({"tcp://w1": "1.2.3"}, "1.2.3", "tcp://s")
    with pytest.raises(ClusterError, match=r"worker tcp://w2 has wattprint 1.2.2, this is 1.2.3"):
        check_versions({"tcp://w1": "1.2.3", "tcp://w2": "1.2.2"}, "1.2.3", "tcp://s")
    with pytest.raises(ClusterError, match=r"worker tcp://w1 has no wattprint"):
        check_versions({"tcp://w1": ModuleNotFoundError("wattprint")}, "1.2.3", "tcp://s")


def test_a_scheduler_without_workers_is_refused() -> None:
    with (
        started(0) as found,
        pytest.raises(ClusterError, match="the scheduler has no workers"),
        open_cluster(found.scheduler_address, connect_s=0.5),
    ):
        pass

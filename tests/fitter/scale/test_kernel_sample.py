"""Kernels read in pieces, here or on a Dask cluster: all are screened and counted, and the sample does not depend on how they are cut."""

import itertools
import logging
import os
import signal
from dataclasses import fields, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client, LocalCluster

from collector.errors import DatasetError
from estimator import load_gpu
from fitter.cli import main
from fitter.errors import ClusterError, InputError
from fitter.rows.partitions import open_partitioned, read_batches
from fitter.rows.rejected import count_reasons
from fitter.rows.selection import read_selection
from fitter.scale.cluster import check_versions, in_order, open_cluster
from fitter.scale.streamed import KernelSample, SampleTask, is_streamed, pruned_rows, read_streamed, row_hashes, sample_of

TASK = SampleTask(collected=None, gpu=None, seed=0)


def kernel_table(rows):
    """Matrix products and additions, each a few times, some of them impossible."""
    rng = np.random.default_rng(0)
    shape = 64 * rng.integers(2, 14, (rows, 3))
    product = rng.random(rows) < 0.6
    time_s = np.where(product, 2.0 * shape.prod(axis=1) / 1e14, 6.0 * shape[:, 0] * shape[:, 1] / 1e12) + 8e-6
    time_s *= np.exp(0.05 * rng.standard_normal(rows))
    time_s[::97] = np.nan
    time_s[5::101] = 1e-9
    return pa.table(
        {
            "family": np.where(product, "gemm", "elementwise").tolist(),
            "operator": np.where(product, "linear", "add").tolist(),
            "gpu": ["a100-pcie-40gb"] * rows,
            "precision": np.where(rng.random(rows) < 0.02, "fp7", "bf16").tolist(),
            **{name: np.where(product, size, np.nan) for name, size in zip("mnk", shape.T, strict=True)},
            **{name: np.where(product, np.nan, size) for name, size in zip(("rows", "dim"), shape.T, strict=False)},
            "latency_s": time_s,
            "sm_clock_mhz": rng.choice([900.0, 1200.0, 1410.0], rows),
        }
    )


def write_parts(table, folder, cuts, row_group=1000):
    """The table cut at these rows into files."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (start, stop) in enumerate(itertools.pairwise([0, *cuts, table.num_rows])):
        pq.write_table(table.slice(start, stop - start), folder / f"part-{number:03d}.parquet", row_group_size=row_group)
    return folder


def sampled(folder, task=TASK):
    """The sample of a folder."""
    return sample_of(open_partitioned(folder).parts, task)


def said(sample):
    """All of a sample except where its rows were read; nan equals nan."""
    columns = [np.asarray(getattr(sample.rows, f.name), dtype=object).tolist() for f in fields(sample.rows) if f.name not in PLACES]
    return repr((columns, sample.read, sample.used, count_reasons(sample.rejected.values())))


PLACES = ("sources", "source_index", "row")


@pytest.mark.parametrize("limits", [(4000, 24), (30, 2)])
def test_the_sample_does_not_depend_on_files_row_groups_or_order(tmp_path, limits):
    task = SampleTask(collected=None, gpu=None, seed=3, section_kernels=limits[0], kernel_rows=limits[1])
    table = kernel_table(1500)
    whole = sampled(write_parts(table, tmp_path / "whole", []), task)
    cut = sampled(write_parts(table, tmp_path / "cut", [100, 101, 900], row_group=70), task)
    mixed = table.take(pa.array(np.random.default_rng(1).permutation(1500)))
    moved = sampled(write_parts(mixed, tmp_path / "moved", [700]), task)
    assert said(whole) == said(cut) == said(moved)


def test_counts_and_rows_are_those_of_reading_in_memory(tmp_path):
    table = kernel_table(1200)
    pq.write_table(table, tmp_path / "k.parquet")
    selection = read_selection([tmp_path / "k.parquet"])
    found = sampled(write_parts(table, tmp_path / "k", [400, 800]))
    assert count_reasons(found.rejected.values()) == count_reasons(selection.rejected)
    assert set(count_reasons(found.rejected.values())) == {"BAD_LATENCY", "ABOVE_ROOF", "UNKNOWN_PRECISION"}
    again = KernelSample(rows=pruned_rows(selection.kernels, TASK), read=found.read, used=found.used, rejected=found.rejected)
    assert said(replace(found, rows=found.rows.in_collection("k.parquet"))) == said(again)
    assert sorted(row_hashes(found.rows, 0).tolist()) == sorted(row_hashes(selection.kernels, 0).tolist())


def test_limits_hold_and_another_seed_chooses_others(tmp_path):
    folder = write_parts(kernel_table(2000), tmp_path, [500])
    tasks = [SampleTask(collected=None, gpu=None, seed=seed, section_kernels=20, kernel_rows=1) for seed in (0, 1)]
    chosen = [rows for task in tasks if (rows := sampled(folder, task).rows) is not None]
    assert [len(rows) for rows in chosen] == [len(rows.operators) for rows in chosen] == [40, 40]
    assert set(chosen[0].operators) != set(chosen[1].operators)


def test_doubled_rows_count_once_and_rows_of_other_gpus_are_counted(tmp_path):
    table = kernel_table(300)
    once = sampled(write_parts(table, tmp_path / "once", [])).rows
    twice = sampled(write_parts(pa.concat_tables([table, table]), tmp_path / "twice", [300])).rows
    assert once.operators == twice.operators
    np.testing.assert_array_equal(once.latency_s, twice.latency_s)
    other = table.set_column(2, "gpu", pa.array(["h100-sxm"] * 300))
    folder = write_parts(pa.concat_tables([table, other]), tmp_path / "two", [300])
    found = sampled(folder, SampleTask(collected=None, gpu=load_gpu("a100-pcie-40gb"), seed=0))
    assert set(found.rows.row_gpus) == {"a100-pcie-40gb"}
    assert found.rejected[("OTHER_GPU", False)].count > 200


def test_a_row_is_named_by_its_place_in_its_file(tmp_path):
    table = kernel_table(400)
    rows = sampled(write_parts(table, tmp_path, [150], row_group=40)).rows
    latency = table.column("latency_s").to_numpy()
    first = np.array([{"part-000.parquet": 0, "part-001.parquet": 150}[name] for name in rows.sources])
    np.testing.assert_array_equal(latency[first[rows.source_index] + rows.row - 1], rows.latency_s)


# Files of a data set --------------------------------------------------------------------------------------------------


def test_a_folder_holds_every_row_once_in_order_beside_files_of_other_programs(tmp_path):
    table = kernel_table(300)
    write_parts(table, tmp_path, [10, 250], row_group=30)
    for name in ("_SUCCESS", "notes.txt"):
        (tmp_path / name).write_text("x")
    for name in (".cache", "_delta_log"):
        write_parts(table, tmp_path / name, [])
    found = open_partitioned(tmp_path)
    assert (sum(part.rows for part in found.parts), len(found.schemas)) == (300, 3)
    batches = [batch for part in found.parts for batch in read_batches(part, table.column_names)]
    assert pa.Table.from_batches(batches).to_pandas().equals(table.to_pandas())


def test_the_digest_changes_with_a_value_and_not_with_the_folder(tmp_path):
    table = kernel_table(300)
    other = table.set_column(9, "latency_s", pa.array(1.5 * table.column("latency_s").to_numpy()))
    one, two, three = (
        open_partitioned(write_parts(own, tmp_path / name, [])).sha256 for own, name in ((table, "a"), (table, "b"), (other, "c"))
    )
    assert one == two != three


def test_damage_within_a_file_is_found_when_it_is_read(tmp_path):
    path = write_parts(kernel_table(300), tmp_path, []) / "part-000.parquet"
    content = bytearray(path.read_bytes())
    content[4:2000] = b"\xff" * 1996
    path.write_bytes(content)
    (only,) = open_partitioned(tmp_path).parts
    with pytest.raises(DatasetError, match=r"part-000.parquet: truncated, damaged or no Parquet file"):
        list(read_batches(only, ["family", "operator"]))


def test_copies_of_a_row_are_refused_before_they_are_read(tmp_path):
    path = tmp_path / "copies.parquet"
    pq.write_table(kernel_table(1).take(pa.array(np.zeros(1_000_001, dtype=np.int64))), path, compression="zstd")
    with pytest.raises(InputError, match=r"copies\.parquet: 1,000,001 rows in [0-9,]+ bytes are copies of few"):
        open_partitioned(path)


@pytest.mark.parametrize("name", ["nowhere", "bare", "empty"])
def test_a_folder_without_rows_is_refused(tmp_path, name):
    (tmp_path / "bare").mkdir()
    write_parts(kernel_table(3).slice(0, 0), tmp_path / "empty", [])
    with pytest.raises(InputError, match="no rows"):
        open_partitioned(tmp_path / name)


# The selection --------------------------------------------------------------------------------------------------------------


def test_a_selection_read_in_pieces_counts_all_rows_and_says_so(tmp_path):
    folder = write_parts(kernel_table(130), tmp_path / "k", [40, 100])
    selection = read_streamed([str(folder)], None, 0, None, lambda text: None)
    (record,) = selection.datasets
    assert selection.row_count == 130 == record.used + sum(record.rejected.values())
    assert set(count_reasons(selection.rejected)) == {"ABOVE_ROOF", "BAD_LATENCY", "UNKNOWN_PRECISION"}
    assert any("130 rows of 3 files streamed in 3 partitions" in note for note in selection.notes)
    (folder / "t.csv.gz").touch()
    with pytest.raises(InputError, match="t.csv.gz lies beside data"):
        read_streamed([str(folder)], None, 0, None, lambda text: None)


def test_more_rows_than_memory_holds_and_a_cluster_are_read_in_pieces(tmp_path, capsys):
    few, many, text = tmp_path / "few.parquet", tmp_path / "many.parquet", tmp_path / "t.csv"
    pq.write_table(kernel_table(3), few)
    pq.write_table(pa.table({"latency_s": np.arange(500_001.0)}), many)
    text.write_text("a,b\n1,2\n")
    assert [is_streamed([str(few), str(path)], None) for path in (few, many, text)] == [False, True, False]
    assert main([str(few), "--scheduler", "foo://127.0.0.1:9", "-o", str(tmp_path / "b.json")]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("fit: --scheduler foo://127.0.0.1:9: no Dask scheduler answers there")


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

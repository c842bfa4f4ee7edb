"""Kernels read in pieces: all rows are screened and counted, and the sample does not depend on how they are cut."""

from dataclasses import fields
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from estimator.vocabulary.specifications import load_gpu
from fitter.rows.columns import KernelRows
from fitter.rows.partitions import open_partitioned
from fitter.rows.rejected import count_reasons
from fitter.rows.selection import read_selection
from fitter.scale.kernel_sample import KernelSample, SampleTask, merge_samples, pruned_rows, row_hashes, sample_partition
from fitter.scale.streamed import LocalWorkers, run_pass
from tests.fitter.scale.generated import write_parts

TASK = SampleTask(collected=None, gpu=None, seed=0)


def kernel_table(rows: int, seed: int = 0) -> pa.Table:
    """Matrix products and additions, each a few times, some of them impossible."""
    rng = np.random.default_rng(seed)
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
            "m": np.where(product, shape[:, 0], np.nan),
            "n": np.where(product, shape[:, 1], np.nan),
            "k": np.where(product, shape[:, 2], np.nan),
            "rows": np.where(product, np.nan, shape[:, 0]),
            "dim": np.where(product, np.nan, shape[:, 1]),
            "latency_s": time_s,
            "sm_clock_mhz": rng.choice([900.0, 1200.0, 1410.0], rows),
        }
    )


def sampled(folder: Path, task: SampleTask = TASK, workers: int = 1) -> KernelSample:
    """The sample of a folder."""
    parts = open_partitioned(folder).partitions()
    return run_pass(LocalWorkers(workers), partial(sample_partition, task=task), parts, partial(merge_samples, task))


def contents(rows: KernelRows | None) -> list[object]:
    """All that a sample says but where its rows were read."""
    assert rows is not None
    places = ("sources", "source_index", "row")
    return [
        np.asarray(getattr(rows, f.name)).tolist() if f.name != "operators" else rows.operators
        for f in fields(rows)
        if f.name not in places
    ]


def same(left: list[object], right: list[object]) -> bool:
    """Equality in which nan equals nan."""
    return repr(left) == repr(right)


@pytest.mark.parametrize("limits", [(4000, 24), (30, 2)])
def test_the_sample_does_not_depend_on_files_row_groups_or_workers(tmp_path: Path, limits: tuple[int, int]) -> None:
    task = SampleTask(collected=None, gpu=None, seed=3, section_kernels=limits[0], kernel_rows=limits[1])
    table = kernel_table(1500)
    whole = sampled(write_parts(table, tmp_path / "whole", []), task)
    cut = sampled(write_parts(table, tmp_path / "cut", [100, 101, 900], row_group=70), task, workers=2)
    mixed = table.take(pa.array(np.random.default_rng(1).permutation(1500)))
    moved = sampled(write_parts(mixed, tmp_path / "moved", [700]), task)
    assert same(contents(whole.rows), contents(cut.rows))
    assert same(contents(whole.rows), contents(moved.rows))
    for other in (cut, moved):
        assert (other.read, other.used) == (whole.read, whole.used) == (1500, whole.used)
        assert count_reasons(other.rejected.values()) == count_reasons(whole.rejected.values())


def test_counts_and_rows_are_those_of_reading_in_memory(tmp_path: Path) -> None:
    table = kernel_table(1200)
    pq.write_table(table, tmp_path / "k.parquet")
    selection = read_selection([tmp_path / "k.parquet"])
    found = sampled(write_parts(table, tmp_path / "k", [400, 800]))
    assert selection.kernels is not None
    assert found.rows is not None
    assert count_reasons(found.rejected.values()) == count_reasons(selection.rejected)
    assert set(count_reasons(found.rejected.values())) == {"BAD_LATENCY", "ABOVE_ROOF", "UNKNOWN_PRECISION"}
    assert same(contents(found.rows), contents(pruned_rows(selection.kernels, TASK)))
    assert sorted(row_hashes(found.rows, 0).tolist()) == sorted(row_hashes(selection.kernels, 0).tolist())


def test_limits_hold_and_another_seed_chooses_others(tmp_path: Path) -> None:
    folder = write_parts(kernel_table(2000), tmp_path, [500])
    tasks = [SampleTask(collected=None, gpu=None, seed=seed, section_kernels=20, kernel_rows=1) for seed in (0, 1)]
    one, other = (sampled(folder, task).rows for task in tasks)
    assert one is not None
    assert other is not None
    for rows in (one, other):
        assert len(rows) == len(rows.operators) == 40
    assert set(one.operators) != set(other.operators)


def test_a_row_given_twice_counts_once(tmp_path: Path) -> None:
    table = kernel_table(300)
    once = sampled(write_parts(table, tmp_path / "once", []))
    twice = sampled(write_parts(pa.concat_tables([table, table]), tmp_path / "twice", [300]))
    assert same(contents(once.rows), contents(twice.rows))


def test_rows_of_other_gpus_are_counted(tmp_path: Path) -> None:
    table = kernel_table(200)
    other = table.set_column(2, "gpu", pa.array(["h100-sxm"] * 200))
    folder = write_parts(pa.concat_tables([table, other]), tmp_path, [200])
    found = sampled(folder, SampleTask(collected=None, gpu=load_gpu("a100-pcie-40gb"), seed=0))
    assert found.rows is not None
    assert found.rows.gpus == ("a100-pcie-40gb",)
    assert found.rejected[("OTHER_GPU", False)].count > 100


def test_a_row_is_named_by_its_place_in_its_file(tmp_path: Path) -> None:
    table = kernel_table(400)
    found = sampled(write_parts(table, tmp_path, [150], row_group=40))
    rows = found.rows
    assert rows is not None
    latency = np.array([value.as_py() for value in table.column("latency_s")])
    first = {"part-000.parquet": 0, "part-001.parquet": 150}
    for source, row, value in zip(rows.source_index, rows.row, rows.latency_s, strict=True):
        assert latency[first[rows.sources[source]] + row - 1] == value

"""Speed and memory of reading kernel rows in pieces: screening, counting and sampling, alone and on Dask workers.

Rows are generated: matrix products, every row with another shape.  Every method runs in its own process, one after the other; its
rate is also given relative to the rate of only reading the same columns, which other load on the machine affects equally.

    python benchmarks/fit_scale.py                                 200,000 rows in a folder that is removed
    python benchmarks/fit_scale.py --rows 1e7 --folder /scratch    fifty times as many, in a folder that stays
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fitter.rows.partitions import Partition, open_partitioned, read_batches
from fitter.scale.streamed import Results, SampleTask, sample_of

FILE_ROWS: Final = 50_000
TASK: Final = SampleTask(collected=None, gpu=None, seed=0)
WAYS: Final = ("read", "alone", "Dask, 1 worker", "Dask, 2 workers")


def main() -> None:
    """Generate rows, run every method in a child process, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, default=2e5)
    parser.add_argument("--folder", type=Path, help="scratch folder; data made there stay and are used again")
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=WAYS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(run(given.child, given.folder)))
        return
    folder = given.folder or Path(tempfile.mkdtemp(prefix="fit-scale-"))
    try:
        report(kernel_rows(folder, int(given.rows)), given.ways)
    finally:
        if given.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


def report(data: Path, ways: list[str]) -> None:
    """All figures of one size."""
    print(f"kernel rows that need screening and equations; load {os.getloadavg()[0]:.1f}")
    print(f"{'':18}{'rows':>12}{'seconds':>9}{'CPU s':>8}{'thousand rows/s':>17}{'of read':>9}{'peak MB':>9}")
    read_s = child("read", data)["seconds"]
    for way in ways:
        one = child(way, data)
        rate, share = one["rows"] / one["seconds"] / 1e3, read_s / one["seconds"]
        print(f"{way:18}{one['rows']:12,}{one['seconds']:9.2f}{one['cpu_s']:8.2f}{rate:17,.0f}{share:9.3f}{one['peak_mb']:9.0f}")


def child(way: str, data: Path) -> dict[str, Any]:
    """Run one method in its own process; returns its time and its peak memory."""
    command = [sys.executable, str(Path(__file__).resolve()), "--child", way, "--folder", str(data)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{way}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'killed'}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def run(way: str, data: Path) -> dict[str, Any]:
    """Work of a child process; imports and the start of a cluster are not timed."""
    parts = open_partitioned(data).parts

    def timed(results: Results) -> dict[str, Any]:
        start, spent = time.perf_counter(), time.process_time()
        rows = sum(map(read_alone, parts)) if way == "read" else sample_of(parts, TASK, results).read
        seconds, cpu = time.perf_counter() - start, time.process_time() - spent
        peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1e3
        return {"rows": rows, "seconds": seconds, "cpu_s": cpu, "peak_mb": peak}

    if not way.startswith("Dask"):
        return timed(map)
    from distributed import Client, LocalCluster

    from fitter.scale.cluster import in_order

    count = 2 if "2" in way else 1

    with (
        LocalCluster(n_workers=count, threads_per_worker=1, processes=True, dashboard_address=None, memory_limit=None) as cluster,
        Client(cluster) as client,
    ):
        list(in_order(client, read_alone, parts[:1] * count))  # workers import what they need
        return timed(partial(in_order, client))


def read_alone(partition: Partition) -> int:
    """Number of rows, read batch by batch without further work: the upper limit of the rate."""
    return sum(batch.num_rows for batch in read_batches(partition, ["m", "n", "k", "latency_s", "sm_clock_mhz"]))


def kernel_rows(folder: Path, rows: int) -> Path:
    """A generated kernel table of `rows` rows: matrix products of different shapes."""
    out = folder / f"kernels-{rows}"
    if out.exists():
        return out
    draft = folder / f".kernels-{rows}"
    draft.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(2)
    for number, first in enumerate(range(0, rows, FILE_ROWS)):
        count = min(FILE_ROWS, rows - first)
        m, n, k = (8 * rng.integers(1, 1025, count) for _ in range(3))
        time_s = (2.0 * m * n * k / 2e14 + 2.0 * (m * k + k * n + m * n) / 1.2e12) * 1.3 + 5e-6
        text = {"family": "gemm", "operator": "linear", "gpu": "a100-pcie-40gb", "precision": "bf16"}
        numbers = {"m": m, "n": n, "k": k, "latency_s": time_s, "sm_clock_mhz": np.full(count, 1410.0)}
        pq.write_table(pa.table({name: [value] * count for name, value in text.items()} | numbers), draft / f"part-{number:05d}.parquet")
    draft.rename(out)
    return out


if __name__ == "__main__":
    main()

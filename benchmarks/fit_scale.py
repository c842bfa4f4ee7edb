"""Speed and memory of a streamed fit, beside the same fit with pandas and scipy, with scikit-learn, and beside reading alone.

Rows are generated: a design table of 500 groups (`group`, `latency_s` and four ideal times), and a kernel table whose rows need
the equations.  Every way runs in a process of its own, one after the other; its rate is also given as a share of the rate at
which the same columns are only read, which another load on the machine moves alike.  A tenth of the rows is fitted as well:
time should be linear in rows.

    python benchmarks/fit_scale.py                                 10^7 rows in a folder that is removed
    python benchmarks/fit_scale.py --rows 1e8 --folder /scratch    the full figure, 4.3 GB on disk
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
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

GROUPS: Final = 500
FILE_ROWS: Final = 8_000_000
ROW_GROUP: Final = 1_000_000
COLUMNS: Final = ("math_s", "l2_s", "dram_s", "epilogue_s")
TYPICAL_S: Final = (3e-5, 1e-5, 2e-5, 5e-6)
SCATTER: Final = 0.03
BYTES_PER_ROW: Final = 44
SPARE: Final = 1.3
"""Free space asked for over what the rows take."""

KERNEL_ROWS: Final = 200_000
PEER_ROWS: Final = 10_000_000
"""pandas holds all rows in memory, and more than once: it gets at most so many."""

WAYS: Final = (
    "read",
    "streamed, 1 thread",
    "streamed, 2 threads",
    "Dask, 1 worker",
    "Dask, 2 workers",
    "robust, 2 threads",
    "pandas + scipy",
    "scikit-learn",
)


def main() -> None:
    """Generate, run every way in a child, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, default=1e7)
    parser.add_argument("--folder", type=Path, help="scratch folder; data made there stay and are used again")
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=WAYS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(run(given.child, given.folder)))
        return
    rows = int(given.rows)
    kept = given.folder is not None
    folder = given.folder or Path(tempfile.mkdtemp(prefix="fit-scale-"))
    try:
        report(folder, rows, given.ways)
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)


def report(folder: Path, rows: int, ways: list[str]) -> None:
    """All figures of one size."""
    whole, tenth = design_table(folder, rows), design_table(folder, rows // 10)
    peers = whole if rows <= PEER_ROWS else design_table(folder, PEER_ROWS)
    print(
        f"design table, {rows:,} rows of {GROUPS} groups, {len(COLUMNS)} ideal times and a fixed cost each; load {os.getloadavg()[0]:.1f}"
    )
    print(
        f"{'':24}{'rows':>13}{'seconds':>9}{'CPU s':>8}{'M rows/s':>10}{'of read':>9}{'peak MB':>9}{'largest error of a coefficient':>33}"
    )
    read: dict[Path, float] = {}
    found: dict[str, dict[str, Any]] = {}
    for way in ways:
        data = peers if way in ("pandas + scipy", "scikit-learn") else whole
        if data not in read:
            read[data] = child("read", data)["seconds"]
        found[way] = child(way, data)
        print(line(way, found[way], read[data]))
    small = child("streamed, 2 threads", tenth)
    print(line("  a tenth of the rows", small, child("read", tenth)["seconds"]))
    if "streamed, 2 threads" in found:
        growth = found["streamed, 2 threads"]["seconds"] / small["seconds"] / 10.0
        print(f"time for ten times the rows over ten times the time: {growth:.2f}")
    if {"Dask, 1 worker", "Dask, 2 workers"} <= found.keys():
        print(f"two Dask workers over one: {found['Dask, 1 worker']['seconds'] / found['Dask, 2 workers']['seconds']:.2f}")
    kernels = child("kernel rows", kernel_rows(folder))
    print(f"kernel rows that need screening and equations, one thread: {kernels['rows'] / kernels['seconds'] / 1e3:,.0f} thousand rows/s")


def line(way: str, one: dict[str, Any], read_s: float) -> str:
    """One row of the table."""
    error = "" if one["error"] is None else f"{one['error']:33.2%}"
    rate = one["rows"] / one["seconds"] / 1e6
    share = read_s / one["seconds"]
    return f"{way:24}{one['rows']:13,}{one['seconds']:9.2f}{one['cpu_s']:8.2f}{rate:10.2f}{share:9.2f}{one['peak_mb']:9.0f}{error}"


def child(way: str, data: Path) -> dict[str, Any]:
    """Run one way in a process of its own: what it took and its peak memory."""
    command = [sys.executable, str(Path(__file__).resolve()), "--child", way, "--folder", str(data)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{way}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'killed'}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def run(way: str, data: Path) -> dict[str, Any]:
    """What a child does; imports are not timed."""
    from fitter.scale.partitions import open_partitioned

    work = {"read": read_alone, "pandas + scipy": with_pandas, "scikit-learn": with_sklearn, "kernel rows": sample_kernels}.get(way)
    table = open_partitioned(data)
    truth = np.load(truth_of(data)) if truth_of(data).exists() else None
    if work is None:
        seconds, cpu, values = streamed(way, data)
    else:
        for name in ("pandas", "scipy.optimize", "sklearn.linear_model"):
            import_module(name)
        start, spent = time.perf_counter(), time.process_time()
        values = work(data)
        seconds, cpu = time.perf_counter() - start, time.process_time() - spent
    error = None if values is None or truth is None else float(np.abs(values / truth - 1.0).max())
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1e3
    return {"rows": table.rows, "seconds": seconds, "cpu_s": cpu, "peak_mb": peak, "error": error}


def read_alone(data: Path) -> None:
    """The wall: the same columns, batch by batch, and nothing done with them."""
    from fitter.scale.partitions import open_partitioned, read_batches

    for partition in open_partitioned(data).partitions():
        for _ in read_batches(partition, ["group", "latency_s", *COLUMNS], texts=("group",)):
            pass


def streamed(way: str, data: Path) -> tuple[float, float, np.ndarray]:
    """The fit of `wattprint`, on threads or on a local cluster that is up before the clock starts."""
    from fitter.scale.design_fit import fit_design
    from fitter.scale.partitions import open_partitioned
    from fitter.scale.passes import LocalWorkers

    table = open_partitioned(data)
    count = 2 if "2" in way else 1
    passes = 3 if way.startswith("robust") else 0

    def timed(workers: Any) -> tuple[float, float, np.ndarray]:
        start, spent = time.perf_counter(), time.process_time()
        fit = fit_design(table, workers, gpu_name="a100-pcie-40gb", robust_passes=passes)
        seconds, cpu = time.perf_counter() - start, time.process_time() - spent
        order = [fit.phases.index(name.removesuffix("_s")) for name in COLUMNS]
        return seconds, cpu, np.array([fit.groups[name].values[order] for name in group_names()])

    if not way.startswith("Dask"):
        return timed(LocalWorkers(count))
    from distributed import Client, LocalCluster

    from fitter.cluster import DaskWorkers

    with (
        LocalCluster(n_workers=count, threads_per_worker=1, processes=True, dashboard_address=None, memory_limit=None) as cluster,
        Client(cluster) as client,
    ):
        warm = open_partitioned(data).partitions()[:1]
        list(DaskWorkers(client).results(_touch, warm * count))
        return timed(DaskWorkers(client))


def _touch(partition: Any) -> int:
    """Makes a worker import what it needs."""
    from fitter.scale import design_fit

    return len(design_fit.__name__) + partition.rows


def with_pandas(data: Path) -> np.ndarray:
    """What one would write in a notebook: groupby, and non-negative least squares of each group."""
    import pandas as pd
    from scipy.optimize import nnls

    frame = pd.read_parquet(data, columns=["group", "latency_s", *COLUMNS])
    found = {}
    for name, own in frame.groupby("group", observed=True):
        target = own["latency_s"].to_numpy()
        design = np.column_stack([own[list(COLUMNS)].to_numpy(), np.full(len(own), 1e-6)]) / target[:, None]
        found[name] = nnls(design, np.ones(len(own)))[0][:-1]
    return np.array([found[name] for name in group_names()])


def with_sklearn(data: Path) -> np.ndarray:
    """The same with scikit-learn's linear regression."""
    import pandas as pd
    from sklearn.linear_model import LinearRegression

    frame = pd.read_parquet(data, columns=["group", "latency_s", *COLUMNS])
    found = {}
    for name, own in frame.groupby("group", observed=True):
        model = LinearRegression(positive=True)
        model.fit(own[list(COLUMNS)].to_numpy(), own["latency_s"].to_numpy(), sample_weight=own["latency_s"].to_numpy() ** -2.0)
        found[name] = model.coef_
    return np.array([found[name] for name in group_names()])


def sample_kernels(data: Path) -> None:
    """Kernel rows screened, counted and sampled."""
    from fitter.scale.kernel_sample import SampleTask, sample_partition
    from fitter.scale.partitions import open_partitioned

    for partition in open_partitioned(data).partitions():
        sample_partition(partition, SampleTask(source="kernels", collected=None, gpu=None, seed=0))


def group_names() -> list[str]:
    """Names of all groups."""
    return [f"gemm.linear.bf16.g{i:03d}" for i in range(GROUPS)]


def design_table(folder: Path, rows: int) -> Path:
    """A generated design table of so many rows; made once for each size."""
    out = folder / f"design-{rows}"
    if truth_of(out).exists():
        return out
    out.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(out).free < SPARE * BYTES_PER_ROW * rows:
        raise SystemExit(f"{folder}: {rows:,} rows need {SPARE * BYTES_PER_ROW * rows / 1e9:.1f} GB; name another folder with --folder")
    rng = np.random.default_rng(1)
    truth = rng.uniform(0.8, 2.0, (GROUPS, len(COLUMNS)))
    fixed_s = rng.uniform(1e-6, 4e-6, GROUPS)
    names = pa.array(group_names())
    for number, first in enumerate(range(0, rows, FILE_ROWS)):
        schema = pa.schema(
            [("group", pa.dictionary(pa.int32(), pa.string())), ("latency_s", pa.float64()), *((c, pa.float64()) for c in COLUMNS)]
        )
        with pq.ParquetWriter(out / f"part-{number:05d}.parquet", schema, use_dictionary=["group"]) as writer:
            for start in range(first, min(first + FILE_ROWS, rows), ROW_GROUP):
                count = min(ROW_GROUP, rows - start)
                group = rng.integers(0, GROUPS, count)
                ideal = np.exp(rng.standard_normal((count, len(COLUMNS)))) * np.array(TYPICAL_S)
                time_s = ((ideal * truth[group]).sum(axis=1) + fixed_s[group]) * np.exp(SCATTER * rng.standard_normal(count))
                codes = pa.DictionaryArray.from_arrays(pa.array(group.astype(np.int32)), names)
                writer.write_table(pa.table([codes, time_s, *ideal.T], schema=schema))
    np.save(truth_of(out), truth)
    return out


def truth_of(data: Path) -> Path:
    """Where the coefficients of a generated table lie: beside it, written last."""
    return data.with_name(f"{data.name}.truth.npy")


def kernel_rows(folder: Path) -> Path:
    """A generated kernel table: matrix products and element-wise kernels, every row another shape."""
    out = folder / "kernels"
    out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(2)
    m, n, k = (64 * rng.integers(1, 129, KERNEL_ROWS) for _ in range(3))
    flop_s, byte_s = 2e14, 1.2e12
    time_s = (2.0 * m * n * k / flop_s + 2.0 * (m * k + k * n + m * n) / byte_s) * 1.3 + 5e-6
    table = pa.table(
        {
            "family": ["gemm"] * KERNEL_ROWS, "operator": ["linear"] * KERNEL_ROWS, "gpu": ["a100-pcie-40gb"] * KERNEL_ROWS,
            "precision": ["bf16"] * KERNEL_ROWS, "m": m, "n": n, "k": k, "latency_s": time_s, "sm_clock_mhz": np.full(KERNEL_ROWS, 1410.0),
        }
    )  # fmt: skip
    pq.write_table(table, out / "part-0.parquet")
    return out


if __name__ == "__main__":
    main()

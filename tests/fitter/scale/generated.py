"""Design tables that known coefficients would give."""

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from estimator.quantities import Array

PHASES = ("math_s", "l2_s", "dram_s")
TYPICAL_S = (3e-5, 1e-5, 2e-5)
GROUPS = ("gemm.linear.bf16", "softmax.softmax.fp16", "elementwise.add.fp32.odd")
TRUTH = np.array([[1.1, 0.7, 1.3], [1.4, 0.9, 1.1], [0.9, 1.2, 1.6]])
FIXED_S = np.array([2e-6, 3e-6, 1.5e-6])


def design_columns(rows: int, *, seed: int = 0, scatter: float = 0.03) -> tuple[Array, Array, Array]:
    """Group numbers, ideal times (rows, 3) and measured times of random kernels [s]."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, len(GROUPS), rows)
    ideal = np.exp(rng.standard_normal((rows, len(PHASES)))) * np.array(TYPICAL_S)
    time_s = ((ideal * TRUTH[group]).sum(axis=1) + FIXED_S[group]) * np.exp(scatter * rng.standard_normal(rows))
    return group, ideal, time_s


def design_arrow(group: Array, ideal: Array, time_s: Array) -> pa.Table:
    """These columns as a table."""
    names = [GROUPS[i] for i in group]
    return pa.table({"group": names, "latency_s": time_s, **{name: ideal[:, i] for i, name in enumerate(PHASES)}})


def write_parts(table: pa.Table, folder: Path, cuts: list[int], row_group: int = 1000) -> Path:
    """The table cut at these rows into files."""
    folder.mkdir(parents=True, exist_ok=True)
    edges = [0, *cuts, table.num_rows]
    for number, (start, stop) in enumerate(itertools.pairwise(edges)):
        pq.write_table(table.slice(start, stop - start), folder / f"part-{number:03d}.parquet", row_group_size=row_group)
    return folder

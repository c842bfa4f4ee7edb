"""Tables in several files."""

import itertools
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def write_parts(table: pa.Table, folder: Path, cuts: list[int], row_group: int = 1000) -> Path:
    """The table cut at these rows into files."""
    folder.mkdir(parents=True, exist_ok=True)
    edges = [0, *cuts, table.num_rows]
    for number, (start, stop) in enumerate(itertools.pairwise(edges)):
        pq.write_table(table.slice(start, stop - start), folder / f"part-{number:03d}.parquet", row_group_size=row_group)
    return folder

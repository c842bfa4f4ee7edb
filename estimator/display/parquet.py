"""Sweeps as Parquet files; the only file of this package that uses pyarrow."""

from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from estimator.errors import EstimatorError
from estimator.whole_file import open_whole

COUNTS: Final = ("batch", "sequence")
"""Columns of whole numbers, null where unknown."""


def write_parquet(path: Path, pieces: Iterable[Mapping[str, Any]]) -> None:
    """Write pieces of a table, each a mapping from column to values of one length, whole or not at all.

    Raises EstimatorError where pyarrow is not installed and where the file cannot be written.
    """
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise EstimatorError("Parquet needs pyarrow; install wattprint[fit]: pip install 'wattprint[fit]', or write .csv") from None
    writer = None
    with open_whole(path) as stream:
        for piece in pieces:
            whole = {name: arrow.array(piece[name], arrow.int64()) for name in COUNTS if name in piece}  # null in all of a piece, too
            table = arrow.table({**piece, **whole})
            writer = writer or parquet.ParquetWriter(stream, table.schema, write_page_checksum=True)
            writer.write_table(table)
        if writer is not None:
            writer.close()

"""Sweeps as Parquet files; the only file of this package that uses pyarrow."""

from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from estimator.errors import EstimatorError
from estimator.whole_file import open_whole


def write_parquet(path: Path, pieces: Iterable[Mapping[str, Any]]) -> None:
    """Write pieces of a table, each a mapping from column to values of one length, whole or not at all.

    Raises EstimatorError where pyarrow is not installed and where the file cannot be written.
    """
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise EstimatorError("Parquet needs pyarrow; install wattprint[fit]: pip install 'wattprint[fit]', or write .csv") from None
    writer = None
    try:
        with open_whole(path) as stream:
            for piece in pieces:
                table = arrow.table(dict(piece))
                writer = writer or parquet.ParquetWriter(stream, table.schema, write_page_checksum=True)
                writer.write_table(table)
            if writer is not None:
                writer.close()
    except OSError as error:
        raise EstimatorError(f"{path}: cannot be written ({error.strerror or error}); name another --out") from error

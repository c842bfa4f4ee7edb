"""Kernel datasets in other formats."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from collector.dataset.reader import read_kernel_dataset
from collector.dataset.schema import METADATA_KEY, encode_metadata
from collector.dataset.writer import write_parquet
from estimator.whole_file import open_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A file that was written and its rows."""

    path: Path
    rows: int


def export_dataset(dataset: Path, kind: str, output: Path) -> Exported:
    """Write a dataset as "csv" (flags joined by ";") or as one "parquet" file.

    Texts in CSV hold no control characters, which a terminal would obey: each is written as "?".
    Raises DatasetError where the dataset cannot be read, UnwrittenError where the file cannot be written.
    """
    content = read_kernel_dataset(dataset)
    if kind == "parquet":
        write_parquet(content.table.replace_schema_metadata({METADATA_KEY: encode_metadata(content.metadata)}), output)
    else:
        with open_whole(output) as stream:
            pcsv.write_csv(_as_text(content.table), stream)
    return Exported(path=output, rows=content.table.num_rows)


def _as_text(table: pa.Table) -> pa.Table:
    """The table with its flags joined and every text printable."""
    flags = pa.array([";".join(row or ()) for row in table.column("flags").to_pylist()], pa.string())
    table = table.set_column(table.schema.get_field_index("flags"), "flags", flags)
    for index, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            table = table.set_column(index, field.name, pc.replace_substring_regex(table.column(index), r"\pC", "?"))
    return table

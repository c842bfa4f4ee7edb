"""Kernel datasets in other formats."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pcsv

from collector.dataset.reader import read_kernel_dataset
from collector.dataset.schema import METADATA_KEY, encode_metadata
from collector.dataset.writer import check_writable, write_parquet
from collector.errors import DatasetError
from estimator.whole_file import write_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A file that was written and its rows."""

    path: Path
    rows: int


def export_dataset(dataset: Path, kind: str, output: Path | None) -> Exported:
    """Write a dataset as "csv" (flags joined by ";") or as one "parquet" file.

    Without `output` the dataset's own name with the format's suffix, never the dataset itself.  Raises DatasetError.
    """
    content = read_kernel_dataset(dataset)
    path = output if output is not None else dataset.with_suffix(f".{kind}")
    if path.exists() and dataset.exists() and path.samefile(dataset):
        raise DatasetError(f"{path} is the dataset itself; name another file with --out")
    check_writable(path)
    if kind == "parquet":
        write_parquet(content.table.replace_schema_metadata({METADATA_KEY: encode_metadata(content.metadata)}), path)
    else:
        flags = pa.array([";".join(row or ()) for row in content.table.column("flags").to_pylist()], pa.string())
        table = content.table.set_column(content.table.schema.get_field_index("flags"), "flags", flags)
        sink = pa.BufferOutputStream()
        pcsv.write_csv(table, sink)
        try:
            write_whole(path, sink.getvalue().to_pybytes())
        except OSError as error:
            raise DatasetError(f"{path}: cannot be written ({error.strerror}); name another place") from error
    return Exported(path=path, rows=content.table.num_rows)

"""What `--fresh` may replace: a kernel dataset, whole or damaged, and nothing else that happens to bear its name."""

from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from collector.dataset.schema import METADATA_KEY
from collector.errors import DatasetError

PARQUET_MAGIC: Final = b"PAR1"
"""First four bytes of every Parquet file."""


def check_replaceable(output: Path) -> None:
    """Raises DatasetError for a file that is no kernel dataset; a damaged Parquet file, which cannot tell, may be replaced."""
    if not output.is_file():
        return
    try:
        with output.open("rb") as stream:
            head = stream.read(len(PARQUET_MAGIC))
        if head and head != PARQUET_MAGIC:
            raise DatasetError(_refusal(output))
        if head and METADATA_KEY not in (pq.read_schema(output).metadata or {}):
            raise DatasetError(_refusal(output))
    except pa.ArrowException:
        return
    except OSError as error:
        if error.strerror is None:  # Arrow's way to say that a file is damaged
            return
        raise DatasetError(f"{output}: cannot be read ({error.strerror}); name another file with --out") from error


def _refusal(output: Path) -> str:
    return f"{output}: is no kernel dataset, and --fresh replaces nothing else; remove it, or name another file with --out"

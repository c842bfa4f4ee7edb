"""What `--fresh` may replace: a kernel dataset, whole or damaged, and nothing else that happens to bear its name."""

from pathlib import Path
from typing import Final

from collector.dataset.parquet import read_footer
from collector.dataset.schema import METADATA_KEY
from collector.errors import DatasetError
from estimator.regular_files import open_regular

PARQUET_MAGIC: Final = b"PAR1"
"""First four bytes of every Parquet file."""


def check_replaceable(output: Path) -> None:
    """Raises DatasetError for a file that is no kernel dataset; a damaged Parquet file, which cannot tell, may be replaced."""
    if not output.is_file():
        return
    try:
        with open_regular(output) as stream:
            head = stream.read(len(PARQUET_MAGIC))
    except OSError as error:
        raise DatasetError(f"{output}: cannot be read ({error.strerror}); name another file with --out") from error
    if head and head != PARQUET_MAGIC:
        raise DatasetError(_refusal(output))
    try:
        foreign = head and METADATA_KEY not in (read_footer(output)[0].metadata or {})
    except DatasetError:  # damaged
        return
    if foreign:
        raise DatasetError(_refusal(output))


def _refusal(output: Path) -> str:
    return f"{output}: is no kernel dataset, and --fresh replaces nothing else; remove it, or name another file with --out"

"""Columns of a CSV or Parquet file as arrays of numbers, stamps or texts."""

import csv
from collections.abc import Sequence
from dataclasses import field
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from collector.dataset.parquet import all_batches, open_parquet, parquet_errors
from collector.errors import SensorError
from estimator.vocabulary.documents import LARGEST
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.regular_files import read_regular
from estimator.vocabulary.values import frozen

MOST_BYTES: Final = 1 << 29
"""Largest size of a file: ten million rows, a day of polls 10 ms apart."""
LONGEST_HEADER: Final = 1 << 15
LONGEST_SHOWN, MOST_NAMES = 80, 12
"""Greatest numbers of characters of a line and of column names in a message."""
US_PER_S: Final = 1e6
UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")
"""Byte order marks of a log that PowerShell redirected; every other file counts as UTF-8."""
NUMBER: Final = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?$"
STAMP: Final = r"^\d{4}[/-]\d{2}[/-]\d{2}[ T]\d{2}:\d{2}:\d{2}([.]\d{1,6})?$"
NOTHING: Final = pa.scalar(None, pa.string())


@frozen
class LogFile:
    """A file with columns: `names` from its header, stripped; its bytes.

    `parquet` is true for a Parquet file.  `cut`: the last line of a text has no end, so that its last figure may be cut.
    """

    path: Path
    names: tuple[str, ...]
    content: bytes = field(repr=False)
    parquet: bool = False
    cut: bool = False

    def place(self, name: str, names: Sequence[str]) -> int:
        """Position of a column's name among `names`.  Raises SensorError if it is missing or occurs twice."""
        if names.count(name) != 1:
            said = f"{names.count(name)} columns are named {name}; keep one" if name in names else f"no column {name!r}"
            raise SensorError(f"{self.path}: {said}; its columns: {shown_names(names)}")
        return names.index(name)


@frozen
class Columns:
    """The wanted columns as Arrow arrays; lines with another number of cells are `stray`, and left out."""

    arrays: tuple[Any, ...]
    stray: Sequence[str] = ()


def open_log(path: Path) -> LogFile:
    """Columns of a file.  Raises SensorError for one that cannot be read, is empty or has no header."""
    try:
        content = read_regular(path, MOST_BYTES)
    except OSError as error:
        raise SensorError(f"{path}: cannot be read ({error.strerror})") from error
    if not content.strip():
        raise SensorError(f"{path}: is empty")
    if content.startswith(b"PAR1"):
        with parquet_errors(path):
            names = tuple(open_parquet(BytesIO(content), path).schema_arrow.names)
        return LogFile(path=path, names=names, content=content, parquet=True)
    if content.startswith(UTF_16):
        content = content.decode("utf-16", "replace").encode()
    first = content.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n")[:LONGEST_HEADER].decode(errors="replace")
    header = next(iter(first.splitlines()), "")
    try:
        names = tuple(name.strip() for name in next(csv.reader([header], skipinitialspace=True), []))
    except csv.Error as error:
        raise SensorError(f"{path}: its first line is no header ({error})") from error
    if len(header) == LONGEST_HEADER or "\x00" in header:
        raise SensorError(f"{path}: no CSV file: its first line is no header")
    return LogFile(path=path, names=names, content=content, cut=content.rstrip(b"\x00")[-1:] not in (b"\n", b"\r"))


def shown_names(names: Sequence[str]) -> str:
    """The first names of columns as part of a message, unprintable characters escaped."""
    plain = (name if name.isprintable() and "\ufffd" not in name else ascii(name)[1:-1] for name in names[:MOST_NAMES])
    return ", ".join(name[:LONGEST_SHOWN] for name in plain) or "none"


def read_columns(log: LogFile, wanted: Sequence[int], *, whole: bool = True) -> Columns:
    """The wanted columns (by position), texts for CSV.  With `whole` a possibly cut last line is left out.  Raises SensorError."""
    try:
        if log.parquet:
            names = [log.names[index] for index in wanted]
            empty = pa.record_batch([pa.array([], pa.float64())] * len(names), names)
            table = pa.Table.from_batches(all_batches(BytesIO(log.content), log.path, names) or [empty])
            return Columns(arrays=tuple(column.combine_chunks() for column in table.columns))
        return _text_columns(log, wanted, whole)
    except (pa.ArrowException, UnicodeError) as error:
        raise SensorError(f"{log.path}: cannot be read ({' '.join(str(error).split())[:200]})") from error


def _text_columns(log: LogFile, wanted: Sequence[int], whole: bool) -> Columns:
    """Cells of a text file."""
    stray: list[str] = []
    content = log.content
    if log.cut and whole:
        content = content[: max(content.rfind(b"\n"), content.rfind(b"\r")) + 1]

    def skipped(row: Any) -> str:
        stray.append(row.text.strip()[:LONGEST_SHOWN])
        return "skip"

    names = [str(index) for index in range(len(log.names))]
    chosen = [names[index] for index in wanted]
    read = pa_csv.ReadOptions(use_threads=False, column_names=names, skip_rows=1, encoding="latin-1")  # damaged text must not stop a reader
    parse = pa_csv.ParseOptions(invalid_row_handler=skipped)
    convert = pa_csv.ConvertOptions(include_columns=chosen, column_types=dict.fromkeys(chosen, pa.string()), strings_can_be_null=False)
    try:
        table = pa_csv.read_csv(BytesIO(content), read_options=read, parse_options=parse, convert_options=convert)
    except pa.ArrowInvalid as error:
        if "Empty CSV" not in str(error):
            raise
        return Columns(arrays=tuple(pa.array([], pa.string()) for _ in wanted))
    return Columns(arrays=tuple(pc.utf8_trim_whitespace(column.combine_chunks()) for column in table.columns), stray=stray)


def numbers(column: Any, unit: str = "") -> Array:
    """A column as numbers, shape (n,): texts with or without a trailing `unit`; nan for all else."""
    if is_text(column):
        bare = pc.utf8_rtrim(pc.utf8_trim_whitespace(column), f" {unit}")
        figures = pc.if_else(pc.match_substring_regex(bare, NUMBER), bare, NOTHING).cast(pa.float64())
    else:
        try:
            figures = column.cast(pa.float64(), safe=False)
        except pa.ArrowException:
            figures = pa.nulls(len(column), pa.float64())
    found = _filled(figures)
    found[np.abs(found) > LARGEST] = np.nan
    return found


def stamps_s(column: Any) -> Array:
    """Stamps `2024/03/10 09:00:00.123` as seconds since 1970, as if they were universal time, shape (n,); nan for other cells."""
    if not is_text(column):
        return np.full(len(column), np.nan)
    text = pc.utf8_trim_whitespace(column)
    text = pc.replace_substring(pc.if_else(pc.match_substring_regex(text, STAMP), text, NOTHING), "/", "-")
    try:
        return _filled(pc.divide(text.cast(pa.timestamp("us")).cast(pa.int64()).cast(pa.float64()), US_PER_S))
    except pa.ArrowInvalid:  # an impossible day or hour
        return np.full(len(column), np.nan)


def texts(column: Any) -> Any:
    """A column as text, stripped."""
    return pc.utf8_trim_whitespace(column.cast(pa.string(), safe=False))


def is_text(column: Any) -> bool:
    """Whether cells are text."""
    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


def _filled(column: Any) -> Array:
    """Figures as float64, nan for missing ones."""
    return np.array(pc.fill_null(column, float("nan")).to_numpy(zero_copy_only=False), dtype=np.float64)

"""Columns of a CSV or Parquet file as they stand, a piece at a time: memory stays bounded whatever the file holds."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from collector.dataset.parquet import open_parquet, parquet_errors, read_batches
from collector.errors import SensorError
from estimator.documents import LARGEST
from estimator.regular_files import open_regular, read_regular, special_kind

HEADER_BYTES: Final = 1 << 16
"""A header longer than this is none."""
BLOCK_BYTES: Final = 1 << 20
"""Bytes of text that are parsed at once."""
US_PER_S: Final = 1e6
LONGEST_SHOWN: Final = 80
"""Characters of a line that are quoted."""
MOST_NAMES: Final = 12
"""Columns that are named in a message."""
BATCH_ROWS: Final = 1 << 16
MAX_ROWS: Final = 20_000_000
"""Rows that are kept of one file: 55 hours of polls 10 ms apart."""
MOST_PIPE_BYTES: Final = 1 << 28
"""Bytes that are kept of a pipe."""
UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")
"""Beginnings of what PowerShell makes of a redirected log; everything else is taken for UTF-8."""
PACKED: Final = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"PK\x03\x04", b"\x28\xb5\x2f\xfd")
"""Beginnings of packed files: gzip, bzip2, xz, zip, zstd."""
ANY_BYTE: Final = "latin-1"
"""Cells are read with an encoding that knows every byte: figures are ASCII, and damaged text must not stop a reader."""
NUMBER: Final = r"^\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?\s*[A-Za-z%]{0,3}\s*$"
QUICK_UNIT: Final = " W"
"""Unit of power, which is cut off without a search."""
UNIT: Final = r"\s*[A-Za-z%]{1,3}$"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """A file with columns: `names` as its header has them, stripped; `encoding` None for Parquet.

    `complete` is false where a text does not end with its last line's end: that line may be cut, `last` is what there is of it.
    `content` is what came through a pipe; None for a file that is read from its path.
    """

    path: Path
    names: tuple[str, ...]
    encoding: str | None
    complete: bool
    last: bytes = b""
    content: bytes | None = field(default=None, repr=False)

    @property
    def cut_row(self) -> bool:
        """Whether the last line may be cut and still has the cells of a row."""
        return not self.complete and self.last.count(b",") == len(self.names) - 1

    def remark(self) -> tuple[str, ...]:
        """What is to be said of the end: nothing where the file and its last line end."""
        return () if self.complete else ("the last line has no end and was left out: its last figure may be cut",)

    def stream(self) -> BinaryIO:
        """Its bytes from the beginning.  Raises OSError."""
        return open_regular(self.path) if self.content is None else BytesIO(self.content)


@dataclass(slots=True, kw_only=True)
class StrayLines:
    """Lines of a text that are no row, counted while it is read: how many, and the first of them.

    `cells` are the first row's, of the columns that were wanted.
    """

    count: int = 0
    first: str = ""
    cells: tuple[str, ...] = ()

    def remark(self) -> tuple[str, ...]:
        """What is to be said of them: nothing where there are none."""
        return (f"{self.count} line(s) are no row of the table and were left out, the first: {self.first!r}",) if self.count else ()


def open_log(path: Path) -> LogFile:
    """What columns a file has.  Raises SensorError for one that cannot be read, is empty or has no header."""
    try:
        content = read_regular(path, MOST_PIPE_BYTES) if special_kind(path) else None
        with open_regular(path) if content is None else BytesIO(content) as stream:
            head = stream.read(HEADER_BYTES)
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - HEADER_BYTES))
            tail = stream.read(HEADER_BYTES)
    except OSError as error:
        raise SensorError(f"{path}: cannot be read ({error.strerror})") from error
    if head.startswith(PACKED):
        raise SensorError(f"{path}: is packed; unpack it first")
    if not head.strip():
        raise SensorError(f"{path}: is empty")
    if head.startswith(b"PAR1"):
        with parquet_errors(path), open_regular(path) if content is None else BytesIO(content) as stream:
            names = tuple(open_parquet(stream, path).schema_arrow.names)
        return LogFile(path=path, names=names, encoding=None, complete=True, content=content)
    encoding = "utf-16" if head.startswith(UTF_16) else "utf-8"
    first = next(iter(head.decode("utf-16" if encoding == "utf-16" else "utf-8-sig", "replace").splitlines()), "")
    if len(first) >= HEADER_BYTES // 2 or "\x00" in first:
        raise SensorError(f"{path}: no CSV file: its first line is no header")
    try:
        names = tuple(name.strip() for name in next(csv.reader([first], skipinitialspace=True), []))
    except csv.Error as error:
        raise SensorError(f"{path}: its first line is no header ({error})") from error
    complete = tail.rstrip(b"\x00")[-1:] in (b"\n", b"\r")
    last = b"" if complete else tail.splitlines()[-1].strip()
    return LogFile(path=path, names=names, encoding=encoding, complete=complete, last=last, content=content)


def shown_names(names: Sequence[str]) -> str:
    """The first names of columns as part of a message: figures of damaged files escaped, each cut to a line's length."""
    plain_text = (name if name.isprintable() and "\ufffd" not in name else ascii(name)[1:-1] for name in names[:MOST_NAMES])
    return ", ".join(name[:LONGEST_SHOWN] for name in plain_text) or "none"


def read_columns(log: LogFile, wanted: Sequence[int], stray: StrayLines | None = None) -> Iterator[list[Any]]:
    """The wanted columns (by position), piece by piece: a list of Arrow arrays each, text for CSV.

    Lines with another number of cells are left out, and counted in `stray`, but for a last one that is cut.  Raises SensorError.
    """
    rows, stray = 0, stray if stray is not None else StrayLines()
    try:
        for batch in _batches(log, wanted, stray):
            rows += batch.num_rows
            if not stray.cells and batch.num_rows:
                stray.cells = tuple(str(batch.column(place)[0]).strip() for place in range(batch.num_columns))
            if rows > MAX_ROWS:
                raise SensorError(f"{log.path}: has more than {MAX_ROWS} rows; cut out the part that holds the run")
            yield [batch.column(index) for index in range(batch.num_columns)]
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise SensorError(f"{log.path}: cannot be read ({_line(error)})") from error


def _batches(log: LogFile, wanted: Sequence[int], stray: StrayLines) -> Iterator[Any]:
    if log.encoding is None:
        with log.stream() as stream:
            yield from read_batches(stream, log.path, [log.names[index] for index in wanted])
        return
    names = [str(index) for index in range(len(log.names))]
    chosen = [names[index] for index in wanted]

    def skipped(row: Any) -> str:
        text = row.text.strip()
        if text.encode(errors="replace") != log.last:
            stray.first = stray.first or text[:LONGEST_SHOWN]
            stray.count += 1
        return "skip"

    encoding = ANY_BYTE if log.encoding == "utf-8" else log.encoding
    read = pa_csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES, column_names=names, skip_rows=1, encoding=encoding)
    parse = pa_csv.ParseOptions(invalid_row_handler=skipped)
    convert = pa_csv.ConvertOptions(include_columns=chosen, column_types=dict.fromkeys(chosen, pa.string()), strings_can_be_null=False)
    with log.stream() as stream:
        try:
            reader = pa_csv.open_csv(stream, read_options=read, parse_options=parse, convert_options=convert)
        except pa.ArrowInvalid as error:
            if "Empty CSV" in str(error):
                return
            raise
        with reader:
            yield from reader


def numbers(column: Any) -> Any:
    """A column as float64 numpy array: numbers with or without a unit behind them, seconds of Arrow's times.

    nan for all else, and for numbers that no quantity has in any unit.
    """
    figures = np.array(_figures(column), dtype=np.float64)
    figures[np.abs(figures) > LARGEST] = np.nan
    return figures


def _figures(column: Any) -> Any:
    """The same with numbers of any size."""
    column = plain(column)
    if pa.types.is_floating(column.type) or pa.types.is_integer(column.type) or pa.types.is_decimal(column.type):
        return column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    if pa.types.is_timestamp(column.type) or pa.types.is_duration(column.type) or pa.types.is_time(column.type):
        return _seconds(column)
    if not is_text(column):
        return pa.nulls(len(column), pa.float64()).to_numpy(zero_copy_only=False)
    trimmed = pc.utf8_trim_whitespace(column)
    try:
        return pc.utf8_rtrim(trimmed, QUICK_UNIT).cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:  # another unit, or a cell that is no number
        pass
    bare = pc.replace_substring_regex(trimmed, UNIT, "")
    kept = pc.if_else(pc.match_substring_regex(column, NUMBER), bare, pa.scalar(None, pa.string()))
    return kept.cast(pa.float64()).to_numpy(zero_copy_only=False)


def plain(column: Any) -> Any:
    """A column without Arrow's dictionaries, views and bytes: of the values themselves."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    binary = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    if not binary and not (pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type)):
        return column
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:  # bytes that are no text
        return pa.nulls(len(column), pa.string())


def is_text(column: Any) -> bool:
    """Whether cells are text."""
    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


def _seconds(column: Any) -> Any:
    """Arrow's stamps (since 1970), durations and times of day [s]; nan where there is none."""
    for kind, target in ((pa.types.is_timestamp, pa.timestamp("us")), (pa.types.is_duration, pa.duration("us"))):
        if kind(column.type):
            column = column.cast(target, safe=False)
    if pa.types.is_time(column.type):
        column = column.cast(pa.time64("us"), safe=False)
    micro = column.cast(pa.int64())
    values = pc.fill_null(micro, 0).to_numpy(zero_copy_only=False) / US_PER_S
    values[pc.is_null(micro).to_numpy(zero_copy_only=False)] = float("nan")
    return values


def _line(error: BaseException) -> str:
    """An error of another library as a part of one line."""
    return " ".join(str(error).split())[:200]

"""Opening tables: CSV or Parquet, as columns of text and numbers, whatever their author put into them.

Nothing in a file is trusted: its kind is found from its first bytes, texts are cut to a length that a name can have,
numbers that are none become nan and are remembered, metadata are never executed.
"""

import csv
import hashlib
import sys
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa

from collector.dataset import file_digest as digest_of_file
from collector.dataset.parquet import MOST_BYTES, MOST_COLUMNS, decoded_bytes, read_columns, read_footer
from collector.errors import DatasetError
from estimator.documents import LARGEST
from estimator.quantities import Array, BoolArray
from estimator.regular_files import open_regular, read_regular
from fitter.errors import InputError
from fitter.rows.partitions import is_remote, open_partitioned

PARQUET_MAGIC: Final = b"PAR1"
"""First and last four bytes of every Parquet file."""

HEAD_BYTES: Final = 1 << 16
"""Enough of a file to tell text from binary and to hold a header [byte]."""

MOST_CSV_BYTES: Final = 256 << 20
"""Longer texts are no table that a person wrote; Parquet holds more [byte]."""

LONGEST_TEXT: Final = 4096
"""The longest text that a cell may hold [character]; mangled C++ kernel names stay well below."""

BLANK_CODES: Final = frozenset({"nan", "none", "null", "na", "n/a", ""})
"""Spellings of "nothing here"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table as it was found: `frame` with a column per header, `path` and `sha256` of the file, `rows` of it.

    Text columns hold str (missing: ""), number columns float; a CSV's columns are all text.
    Numbers that no quantity has in any unit count as none.
    """

    path: Path
    sha256: str
    frame: pd.DataFrame

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.path.name

    def __len__(self) -> int:
        return len(self.frame)

    def __contains__(self, column: object) -> bool:
        return column in self.frame.columns

    def texts(self, column: str) -> list[str]:
        """A column as text without outer blanks; "" where it is missing or says so."""
        if column not in self.frame.columns:
            return [""] * len(self.frame)
        values = (_text(value) for value in self.frame[column].tolist())
        return ["" if value.lower() in BLANK_CODES else value for value in values]

    def numbers(self, column: str) -> Array:
        """A column as numbers; nan where it is missing or no number."""
        return self._parsed(column)[0]

    def garbled(self, column: str) -> BoolArray:
        """Cells of a number column that hold something, but no finite number."""
        return self._parsed(column)[1]

    def oversized(self) -> BoolArray:
        """Rows with a cell longer than LONGEST_TEXT."""
        found = np.zeros(len(self.frame), dtype=np.bool_)
        for column in self.frame.columns:
            if not pd.api.types.is_numeric_dtype(self.frame[column].dtype):
                found |= [isinstance(value, str) and len(value) > LONGEST_TEXT for value in self.frame[column].tolist()]
        return found

    def repeated(self) -> BoolArray:
        """Rows that equal an earlier one in every column."""
        return np.asarray(self.frame.duplicated(keep="first"), dtype=np.bool_)

    def _parsed(self, column: str) -> tuple[Array, BoolArray]:
        if column not in self.frame.columns:
            return np.full(len(self.frame), np.nan), np.zeros(len(self.frame), dtype=np.bool_)
        series = self.frame[column]
        if pd.api.types.is_numeric_dtype(series.dtype) and not pd.api.types.is_bool_dtype(series.dtype):
            values = np.array(series.to_numpy(dtype=np.float64, na_value=np.nan))
            something = ~np.asarray(series.isna(), dtype=np.bool_)
        else:
            texts = [_text(value) for value in series.tolist()]
            values = np.array([_number(text) for text in texts], dtype=np.float64)
            something = np.array([text != "" for text in texts], dtype=np.bool_)
        with np.errstate(invalid="ignore"):
            size = np.abs(values)
            values[~((size >= 1.0 / LARGEST) & (size <= LARGEST)) & (size != 0.0)] = np.nan
        return values, something & np.isnan(values)


def open_table(path: Path, columns: frozenset[str]) -> Table:
    """The table in a CSV or Parquet file; of a Parquet file only `columns` (and those it lacks are not missed).

    Raises InputError or DatasetError for a file that is missing, empty, neither CSV nor Parquet, truncated, too large, or without a header.
    """
    head = read_head(path)
    frame = _read_parquet(path, columns) if head.startswith(PARQUET_MAGIC) else _read_csv(path, head)
    if not len(frame):
        raise InputError(f"{path}: holds no rows")
    return Table(path=path, sha256=file_digest(path), frame=frame)


def read_header(path: Path) -> tuple[str, ...]:
    """Column names of a CSV or Parquet file.  Raises InputError as `open_table`."""
    head = read_head(path)
    if head.startswith(PARQUET_MAGIC):
        return tuple(read_footer(path)[0].names)
    return _csv_header(path, head)


def _refuse_repeated(path: Path, names: tuple[str, ...]) -> None:
    repeated = next((name for name in sorted(names) if names.count(name) > 1), None)
    if repeated is not None:
        raise InputError(f"{path}: column {repeated[:LONGEST_SHOWN]!r} stands twice in the header")


LONGEST_SHOWN: Final = 100
"""Characters of a name that a message repeats."""


def parquet_columns(address: str) -> frozenset[str]:
    """Columns of a Parquet file, of the first file of a folder or an object store, and of its hive folders; none for anything else.

    Raises InputError for an object store that does not answer; what is wrong with a local file is left to its reader.
    """
    path = Path(address)
    try:
        if is_remote(address):
            return open_partitioned(address, first_only=True).columns
        if path.is_dir():
            return open_partitioned(address, first_only=True).columns if any(path.rglob("*.parquet")) else frozenset()
        parquet = path.is_file() and read_head(path).startswith(PARQUET_MAGIC)
        return frozenset(read_header(path)) if parquet else frozenset()
    except (InputError, DatasetError, OSError):
        if is_remote(address):
            raise
        return frozenset()


def fits_memory(address: str, most_rows: int) -> bool:
    """Whether a Parquet file or folder is read at once, by its footers; True for anything else, and for what is refused."""
    path = Path(address)
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path] if path.is_file() else []
    try:
        footers = [read_footer(file) for file in files if read_head(file).startswith(PARQUET_MAGIC)]
    except (InputError, DatasetError):
        return True
    size = sum(decoded_bytes(metadata, schema, schema.names) for schema, metadata in footers)
    return size <= MOST_BYTES and sum(metadata.num_rows for _, metadata in footers) <= most_rows


def read_head(path: Path) -> bytes:
    """The first bytes of a file.  Raises InputError where it is missing, unreadable or empty."""
    try:
        with open_regular(path) as stream:
            head = stream.read(HEAD_BYTES)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error
    if not head.strip():
        raise InputError(f"{path}: the file is empty")
    return head


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal; of a folder: of the digests of its files in order of their names."""
    if not path.is_dir():
        return digest_of_file(path)
    digest = hashlib.sha256()
    for part in sorted(item for item in path.rglob("*") if item.is_file()):
        digest.update(f"{part.relative_to(path).as_posix()}\0{digest_of_file(part)}\n".encode())
    return digest.hexdigest()


def _read_parquet(path: Path, columns: frozenset[str]) -> pd.DataFrame:
    schema = read_footer(path)[0]
    for name in columns & set(schema.names):
        field = schema.field(name)
        if pa.types.is_nested(field.type):
            raise InputError(f"{path}: column {name!r} holds {field.type}; expected plain numbers or text")
        _check_unit(path, field)
    frame: pd.DataFrame = read_columns(path, columns).replace_schema_metadata(None).to_pandas(ignore_metadata=True)
    return frame


def _check_unit(path: Path, field: pa.Field) -> None:
    """A unit that a column states about itself must be the one that its name ends with."""
    stated = (field.metadata or {}).get(b"unit", b"").decode("utf-8", errors="replace").strip()
    ending = next((ending for ending in UNITS if field.name.endswith(ending) and field.name not in COUNTS), "")
    expected = UNITS.get(ending)
    if stated and expected is not None and stated.lower().lstrip("°") not in expected:
        raise InputError(f"{path}: column {field.name!r} states the unit {stated[:40]!r}; it must be {expected[0]}")


UNITS: Final = {"_mhz": ("MHz", "mhz"), "_s": ("s", "s"), "_w": ("W", "w"), "_j": ("J", "j"), "_c": ("°C", "c", "degree celsius")}
"""Endings of column names, and how their unit is written, first as people do."""

COUNTS: Final = frozenset({"kernel_w"})
"""Columns whose names end as if they had a unit: the width of a convolution's kernel."""

OTHER_ENCODINGS: Final = {b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
"""First bytes of texts in other encodings than UTF-8."""

OTHER_SEPARATORS: Final = {";": "semicolons", "\t": "tabs", "|": "bars"}


def _csv_header(path: Path, head: bytes) -> tuple[str, ...]:
    """Names in the first line of a CSV file, checked to be names."""
    encoding = next((name for mark, name in OTHER_ENCODINGS.items() if head.startswith(mark)), None)
    if encoding is not None:
        raise InputError(f"{path}: {encoding} text; save it as UTF-8")
    if b"\0" in head:
        raise InputError(f"{path}: neither CSV nor Parquet (binary content)")
    try:
        line = head.decode("utf-8-sig", errors="strict" if len(head) < HEAD_BYTES else "ignore").lstrip().splitlines()[0]
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start}); neither CSV nor Parquet") from error
    names = tuple(name.strip() for name in next(csv.reader([line])))
    separator = next((word for sign, word in OTHER_SEPARATORS.items() if len(names) < 3 <= line.count(sign) + 1), None)
    if separator is not None:
        raise InputError(f"{path}: its fields stand between {separator}; write a table with commas between them and points in its numbers")
    if len(names) > MOST_COLUMNS or any(len(name) > LONGEST_TEXT for name in names):
        raise InputError(f"{path}: the first line is not a header of column names")
    _refuse_repeated(path, names)
    return names


def _read_csv(path: Path, head: bytes) -> pd.DataFrame:
    names = _csv_header(path, head)
    csv.field_size_limit(sys.maxsize)
    try:
        frame = pd.read_csv(
            BytesIO(read_regular(path, MOST_CSV_BYTES)),
            dtype=str,
            keep_default_na=False,
            na_filter=False,
            skipinitialspace=True,
            encoding="utf-8-sig",
            low_memory=False,
        )
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); write it as Parquet") from error
    except (pd.errors.ParserError, pd.errors.EmptyDataError, ValueError, OverflowError) as error:
        raise InputError(f"{path}: not a well-formed CSV table ({_first_line(error)})") from error
    if len(frame.columns) != len(names) or not isinstance(frame.index, pd.RangeIndex):  # fields beyond the header would be an index
        raise InputError(f"{path}: rows have another number of fields than the header's {len(names)} columns")
    frame.columns = pd.Index(names)
    return frame


def _text(value: Any) -> str:
    if value is None or (isinstance(value, float) and np.isnan(value)) or value is pd.NA:
        return ""
    return str(value).strip()


def _number(text: str) -> float:
    if len(text) > LONGEST_TEXT or "_" in text:
        return float("nan")
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _first_line(error: BaseException) -> str:
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return text[:200]

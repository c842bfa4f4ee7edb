"""Reading tables: CSV, plain or packed by gzip, or Parquet with any content, as columns of text and numbers.

Files are not trusted: the first bytes determine the kind, texts have a largest length,
invalid numbers become nan and are marked, metadata are never executed.
"""

import csv
import gzip
import hashlib
import zlib
from dataclasses import replace
from errno import EBADMSG, EFBIG
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from collector.dataset.parquet import MOST_COLUMNS, read_columns, read_footer
from estimator.vocabulary.documents import LARGEST
from estimator.vocabulary.quantities import Array, BoolArray, IntArray
from estimator.vocabulary.regular_files import MOST_DATA_BYTES, open_regular, read_regular
from estimator.vocabulary.values import frozen
from fitter.errors import InputError

PARQUET_MAGIC: Final = b"PAR1"
"""First and last four bytes of every Parquet file."""

GZIP_MAGIC: Final = b"\x1f\x8b"
"""First bytes of a table that gzip packed; it is read like the table inside."""

HEAD_BYTES: Final = 1 << 16
"""Bytes at the start of a file that show whether it is text, and contain the header."""

LONGEST_TEXT: Final = 4096
"""The longest text that a cell may hold [byte]; mangled C++ kernel names stay well below."""

TEXTS: Final = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)

FLAGS_BETWEEN: Final = ";"
"""Separator of the texts of a list in one text, such as the flags of a row, as in a data set exported to CSV."""

BLANKS: Final = frozenset({"nan", "none", "null", "na", "n/a", ""})
"""Spellings of a missing value."""


@frozen
class Table:
    """A table as read from its file.

    path, sha256   of the file
    frame          a column per header, texts as categories
    row            the rows' numbers in the file, shape (n,)
    damaged        rows with a text longer than LONGEST_TEXT, which is left out of `frame`, or cut before their last field, shape (n,)

    Numbers that are implausible in every unit count as missing.
    """

    path: Path
    sha256: str
    frame: pd.DataFrame
    row: IntArray
    damaged: BoolArray

    @staticmethod
    def of(content: pd.DataFrame | pa.Table, path: Path, sha256: str = "", first: int = 0) -> "Table":
        """A table that begins after `first` rows of its file; metadata of an Arrow table are ignored."""
        plain = pa.Table.from_pandas(content, preserve_index=False) if isinstance(content, pd.DataFrame) else content
        plain = plain.replace_schema_metadata(None)
        damaged = np.zeros(len(plain), dtype=np.bool_)
        for place, field in enumerate(plain.schema):
            column = plain.column(place)
            if pa.types.is_list(field.type):
                column = pc.binary_join(column.combine_chunks().cast(pa.list_(pa.string())), FLAGS_BETWEEN)
            if any(kind(column.type) for kind in TEXTS):
                beyond = pc.fill_null(pc.greater(pc.binary_length(column), LONGEST_TEXT), False)
                damaged |= np.asarray(beyond)
                plain = plain.set_column(place, field.name, pc.if_else(beyond, None, column).dictionary_encode())
        row = np.arange(first + 1, first + 1 + len(plain), dtype=np.int64)
        return Table(path=path, sha256=sha256, frame=plain.to_pandas(ignore_metadata=True), row=row, damaged=damaged)

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.path.name

    def __len__(self) -> int:
        return len(self.frame)

    def __contains__(self, column: object) -> bool:
        return column in self.frame.columns

    def select(self, rows: BoolArray) -> "Table":
        """Some of the rows."""
        return replace(self, frame=self.frame[rows], row=self.row[rows], damaged=self.damaged[rows])

    def coded(self, column: str) -> tuple[IntArray, list[str]]:
        """Unique texts of a column without outer blanks, and the index of each row's text: -1, for "", if it is missing."""
        if column not in self.frame.columns:
            return np.full(len(self.frame), -1, dtype=np.int64), [""]
        found = self.frame[column].astype("category").cat
        texts = [str(value).strip() for value in found.categories]
        return np.asarray(found.codes, dtype=np.int64), [*("" if text.lower() in BLANKS else text for text in texts), ""]

    def texts(self, column: str) -> list[str]:
        """A column as text; "" for missing values."""
        codes, texts = self.coded(column)
        return [texts[code] for code in codes.tolist()]

    def marked(self, word: str, column: str = "flags") -> BoolArray:
        """Rows with a word in a column of words, shape (n,): by default the flags of `collect`."""
        codes, texts = self.coded(column)
        return np.array([word in text.split(FLAGS_BETWEEN) for text in texts], dtype=np.bool_)[codes]

    def numbers(self, column: str) -> Array:
        """A column as numbers; nan for missing values and for other text."""
        return self._parsed(column)[0]

    def garbled(self, column: str) -> BoolArray:
        """Mask of the cells of a number column with content that is not a finite number."""
        return self._parsed(column)[1]

    def products(self, name: str) -> Array:
        """Product of the columns NAME_x, NAME_y and NAME_z, shape (n,)."""
        result: Array = np.stack([self.numbers(f"{name}_{axis}") for axis in "xyz"]).prod(axis=0)
        return result

    def _parsed(self, column: str) -> tuple[Array, BoolArray]:
        if column in self and pd.api.types.is_numeric_dtype(self.frame[column].dtype):
            something = self.frame[column].notna().to_numpy(dtype=np.bool_)
            values = np.array(self.frame[column].to_numpy(dtype=np.float64, na_value=np.nan))
        else:
            codes, texts = self.coded(column)
            something = np.array([text != "" for text in texts])[codes]
            values = np.array(pd.to_numeric(pd.Series(texts, dtype=object), errors="coerce"), dtype=np.float64)[codes]
        size = np.abs(values)
        values[~((size >= 1.0 / LARGEST) & (size <= LARGEST)) & (size != 0.0)] = np.nan
        return values, something & np.isnan(values)


def open_table(path: Path, columns: frozenset[str]) -> Table:
    """The table in a CSV or Parquet file; from a Parquet file only `columns`, which may be missing.

    Raises InputError or DatasetError for a file that is missing, empty, neither CSV nor Parquet, truncated, too large, or without a header.
    """
    head = read_head(path)
    content, cut = (read_columns(path, columns), False) if head.startswith(PARQUET_MAGIC) else _read_csv(path, head)
    if not len(content):
        raise InputError(f"{path}: holds no rows")
    table = Table.of(content, path, file_digest(path))
    table.damaged[-1] |= cut
    return table


def read_header(path: Path) -> tuple[str, ...]:
    """Column names of a CSV or Parquet file.  Raises InputError as `open_table`."""
    head = read_head(path)
    return tuple(read_footer(path)[0].names) if head.startswith(PARQUET_MAGIC) else _csv_header(path, head)


def read_head(path: Path) -> bytes:
    """The first bytes of a file.  Raises InputError if it is missing, unreadable or empty."""
    try:
        with open_regular(path) as stream:
            head = _unpacked(stream.read(HEAD_BYTES), HEAD_BYTES)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error
    if not head.strip():
        raise InputError(f"{path}: the file is empty")
    return head


def _unpacked(content: bytes, most_bytes: int) -> bytes:
    """The first `most_bytes` of what gzip packed; other content as it is.  Raises OSError if damaged."""
    if not content.startswith(GZIP_MAGIC):
        return content
    try:
        return gzip.GzipFile(fileobj=BytesIO(content)).read(most_bytes)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise OSError(EBADMSG, "damaged or cut: gzip cannot unpack it") from error


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal; for a folder, of the digests of its files in order of their names."""
    if path.is_dir():
        parts = sorted(item for item in path.rglob("*") if item.is_file())
        listed = "".join(f"{part.relative_to(path).as_posix()}\0{file_digest(part)}\n" for part in parts)
        return hashlib.sha256(listed.encode()).hexdigest()
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]


def _csv_header(path: Path, head: bytes) -> tuple[str, ...]:
    """Column names in the first line of a CSV file; raises InputError for other content."""
    try:
        line = head.decode("utf-8-sig", errors="strict" if len(head) < HEAD_BYTES else "ignore").lstrip().splitlines()[0]
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start}), nor Parquet") from error
    if "\0" in line:
        raise InputError(f"{path}: neither CSV nor Parquet (binary content)")
    names = tuple(name.strip() for name in next(csv.reader([line])))
    twice = next((name for name in sorted(names) if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{path}: column {twice[:100]!r} stands twice in the header")
    if len(names) > MOST_COLUMNS or any(len(name) > LONGEST_TEXT for name in names):
        raise InputError(f"{path}: the first line is not a header of column names")
    return names


def _read_csv(path: Path, head: bytes) -> tuple[pd.DataFrame, bool]:
    """A CSV table, and whether its file ends within the last row, which is then blank."""
    names = _csv_header(path, head)
    options: dict[str, Any] = {"dtype": str, "keep_default_na": False, "na_filter": False, "skipinitialspace": True, "low_memory": False}
    try:
        content = _unpacked(read_regular(path, MOST_DATA_BYTES), MOST_DATA_BYTES + 1)
        if len(content) > MOST_DATA_BYTES:
            raise OSError(EFBIG, f"holds more than {MOST_DATA_BYTES >> 20} MiB")
        start = max(content.rfind(b"\n"), content.rfind(b"\r")) + 1
        if cut := _ends_within(content[start:].decode("utf-8", errors="replace"), len(names)):
            content = content[:start] + b"," * (len(names) - 1)
        frame: pd.DataFrame = pd.read_csv(BytesIO(content), encoding="utf-8-sig", **options)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); write it as Parquet") from error
    except (pd.errors.ParserError, pd.errors.EmptyDataError, ValueError, OverflowError) as error:
        raise InputError(f"{path}: not a well-formed CSV table ({' '.join(str(error).split())[:200]})") from error
    if len(frame.columns) != len(names) or not isinstance(frame.index, pd.RangeIndex):  # fields beyond the header become an index
        raise InputError(f"{path}: rows have another number of fields than the header's {len(names)} columns")
    frame.columns = pd.Index(names)
    return frame, cut


def _ends_within(line: str, fields: int) -> bool:
    """Whether the text after a file's last end of a line is a row without its last fields; a cut number cannot be seen."""
    try:
        return bool(line.strip()) and len(next(csv.reader([line], strict=True))) < fields
    except csv.Error:  # a quote without its end
        return True

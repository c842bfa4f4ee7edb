"""Schema of a kernel dataset: a row for each kernel configuration, clock and trial.

`columns.toml` declares every column once: name, type, unit and meaning.  The file contains units and meanings, too.  A null
means "not known" or "does not apply"; no number ever stands for that.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Annotated, Any, Final, NotRequired, TypedDict

import numpy as np
import pyarrow as pa

from collector.errors import DatasetError
from estimator.vocabulary.reader import FaultError, Span, Words, read, read_file
from estimator.vocabulary.values import frozen
from estimator.vocabulary.workload import FAMILY_FIELDS, TABLED, Operator

SCHEMA_VERSION: Final = "1.2"
"""Version of the columns and of the file metadata; the minor number grows when a column is added."""

METADATA_KEY: Final = b"wattprint"
"""Key of the file metadata, a JSON object."""

Row = dict[str, Any]
"""One measured kernel: values by column name; a missing value is null."""

Metadata = dict[str, Any]
"""Metadata of a file: a JSON object."""

Number = Annotated[float, Span(-inf, inf, nan=True)]
TYPES: Final[dict[str, tuple[pa.DataType, Any]]] = {
    "text": (pa.string(), str),
    "number": (pa.float64(), Number),
    "count": (pa.int64(), int),
    "truth": (pa.bool_(), bool),
    "texts": (pa.list_(pa.string()), tuple[str, ...]),
}
"""Types of columns: Arrow's, and the reader's."""


@frozen
class Column:
    """A column: its type, unit ("1" for pure numbers, "" for texts) and meaning; see columns.toml."""

    name: str
    kind: Annotated[str, Words(tuple(TYPES))]
    unit: str = ""
    meaning: str
    required: bool = False
    outcome: bool = False

    @property
    def type(self) -> pa.DataType:
        """The Arrow type."""
        return TYPES[self.kind][0]


@dataclass(frozen=True, slots=True)
class _Declared:
    column: tuple[Column, ...]
    flags: Mapping[str, str]


_DECLARED: Final = read_file(_Declared, Path(__file__).parent / "columns.toml", "declaration of columns", DatasetError)

KERNEL_COLUMNS: Final = {column.name: column for column in _DECLARED.column}
"""Columns of a kernel dataset, in file order."""

FLAGS: Final = _DECLARED.flags
"""Doubts that a row can carry."""

SHAPE_COLUMNS: Final = tuple(dict.fromkeys(name for family, names in FAMILY_FIELDS.items() if family not in TABLED for name in names))
"""Shape fields of all families; the columns of a family are null in the rows of other families."""

IDENTITY_COLUMNS: Final = tuple(name for name, column in KERNEL_COLUMNS.items() if not column.outcome)
"""Columns that identify a measurement: rows equal in them measured the same kernel on the same board with the same settings."""

UNUSABLE: Final = frozenset({"latency_absurd", "power_absurd", "power_missing", "sensor_stuck", "result_wrong"})
"""Flags whose rows have no valid time or power, or not of this kernel."""

_ROW: Final[Any] = TypedDict(  # type: ignore[misc]
    "_ROW",
    {
        name: TYPES[column.kind][1] if column.required else NotRequired[TYPES[column.kind][1] | None]
        for name, column in KERNEL_COLUMNS.items()
    },
)

_PARTS: Final[Any] = {
    **dict.fromkeys(("gpu", "sensor", "drift", "campaign", "versions", "key"), Mapping[str, Any] | None),
    "rejected": Mapping[str, int] | None,
    **dict.fromkeys(("idle", "voltage"), tuple[Mapping[str, float | None], ...] | None),
}
"""Parts of a file's metadata that this program reads."""


def kernel_schema(metadata: Metadata) -> pa.Schema:
    """The Arrow schema of a kernel dataset with its file metadata.  Raises DatasetError for metadata that JSON cannot hold."""
    fields = [
        pa.field(name, column.type, nullable=not column.required, metadata={"unit": column.unit, "meaning": column.meaning})
        for name, column in KERNEL_COLUMNS.items()
    ]
    return pa.schema(fields, metadata={METADATA_KEY: encode_metadata(metadata)})


def encode_metadata(metadata: Metadata) -> bytes:
    """File metadata as JSON text, the schema version added.  Raises DatasetError for values that JSON cannot hold."""
    try:
        text = json.dumps({**metadata, "schema_version": SCHEMA_VERSION}, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise DatasetError(f"dataset metadata cannot be written as JSON: {error}") from error
    return text.encode()


def decode_metadata(content: bytes, where: str) -> Metadata:
    """File metadata of a dataset.  Raises DatasetError, naming `where`, for anything but a JSON object of this kind."""
    try:
        metadata: Metadata = json.loads(content)
        for name, kind in _PARTS.items():
            read(kind, metadata.get(name), name)
    except (ValueError, AttributeError, RecursionError) as error:
        raise DatasetError(f"{where}: its metadata are damaged ({error}); collect it again") from error
    return metadata


def checked_row(row: Row) -> Row:
    """A row with plain Python values.

    Raises DatasetError for a column that is not in the schema, a required value that is missing and a value of another type.
    """
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in row.items()}
    try:
        found: Row = read(_ROW, plain)
    except FaultError as error:
        raise DatasetError(f"row {row.get('row_id')!r}: does not fit the kernel dataset: {error}") from error
    return found


def operator_columns(operator: Operator) -> Row:
    """The columns that identify the operator."""
    return {
        "family": operator.family,
        "operator": operator.operator,
        "precision": operator.precision,
        "precision_out": operator.precision_out or None,
        "precision_kv": operator.precision_kv or None,
        "cuda_cores": operator.cuda_cores,
        **{name: int(value) for name, value in operator.named_shape().items()},
    }


def repeated_rows(table: pa.Table, spoilt: frozenset[str]) -> list[list[int]]:
    """Row numbers of repeated measurements of the same kernel with the same settings, group by group, without rows with a spoilt flag."""
    sound = [spoilt.isdisjoint(flags or ()) for flags in table.column("flags").to_pylist()]
    rows = table.select(list(IDENTITY_COLUMNS)).append_column("row", pa.array(range(table.num_rows))).filter(pa.array(sound, pa.bool_()))
    groups: list[list[int]] = rows.group_by(list(IDENTITY_COLUMNS), use_threads=False).aggregate([("row", "list")])["row_list"].to_pylist()
    return groups


def flag_counts(flags: Iterable[Sequence[str] | None]) -> dict[str, int]:
    """Number of rows with each flag, most frequent first."""
    return dict(Counter(sorted(flag for row in flags for flag in row or ())).most_common())

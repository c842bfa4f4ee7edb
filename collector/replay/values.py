"""Values that cross the hardware edge as plain JSON data, and back.

Columns of whole numbers are stored as their first value and differences; columns of numbers as the shortest
texts that give them back to the bit.
"""

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

import numpy as np

from collector.devices.protocols import (
    EnergyReading,
    GpuIdentity,
    GpuState,
    LaunchRecord,
    PowerReadings,
    PreparedKernel,
    StateReadings,
)
from collector.errors import BoardLostError, ClockError, DeviceError, RunnerError
from estimator.workload import Operator
from microbench.loads.copies import CopyLoad
from microbench.loads.generated import GeneratedLoad

FORMAT: Final = "wattprint-recording"
FORMAT_VERSION: Final = 2
CRC_CHARACTERS: Final = 8

VALUES: Final[dict[str, type]] = {
    value.__name__: value
    for value in (EnergyReading, GpuIdentity, GpuState, LaunchRecord, Operator, PowerReadings, PreparedKernel, StateReadings)
}
"""Dataclasses that are stored by the names of their fields."""

ERRORS: Final[dict[str, type[DeviceError]]] = {error.__name__: error for error in (RunnerError, ClockError, BoardLostError, DeviceError)}
"""Errors of the edge, the most special first."""

STAYING: Final = frozenset({"growth"})
"""Fields that say nothing to hardware: how an operator would grow with its workload."""


def sealed(line: Mapping[str, Any]) -> str:
    """A line of a recording: the CRC-32 of its text, and the text."""
    text = json.dumps(line, separators=(",", ":"), allow_nan=False)
    return f"{zlib.crc32(text.encode()):08x} {text}\n"


def unsealed(line: str) -> Any:
    """The JSON value in a line of a recording.  Raises ValueError for a line that was edited or damaged."""
    crc, text = line[:CRC_CHARACTERS], line[CRC_CHARACTERS + 1 :].removesuffix("\n")
    if crc != f"{zlib.crc32(text.encode()):08x}":
        raise ValueError("its CRC is another's: it was edited, or is no line of a recording")
    return json.loads(text)


def plain(value: Any) -> Any:
    """A value as JSON data.  Raises TypeError for one that does not cross the edge."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"number": repr(value)}
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, GeneratedLoad | CopyLoad):  # what tells it from others, not its machine code
        return plain(value.told())
    if isinstance(value, np.ndarray):
        return _plain_column(value)
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if is_dataclass(value) and type(value).__name__ in VALUES:
        crossing = (item.name for item in fields(value) if item.name not in STAYING)
        return {"value": type(value).__name__, **{name: plain(getattr(value, name)) for name in crossing}}
    raise TypeError(f"a {type(value).__name__} does not cross the hardware edge")


def restored(data: Any) -> Any:
    """The value behind `plain` data; lists become tuples.  Raises ValueError, TypeError, KeyError for anything else."""
    if isinstance(data, list):
        return tuple(restored(item) for item in data)
    if not isinstance(data, Mapping):
        return data
    if "number" in data:
        return float(data["number"])
    if "whole" in data:
        steps = np.array(data["whole"], dtype=np.int64)
        return np.cumsum(steps, dtype=np.int64)
    if "column" in data:
        return np.array([float(item) for item in data["column"]], dtype=np.float64)
    kind = VALUES[data["value"]]
    return kind(**{key: restored(item) for key, item in data.items() if key != "value"})


def plain_error(error: DeviceError) -> dict[str, str]:
    """An error of the edge as JSON data."""
    name = next(name for name, kind in ERRORS.items() if isinstance(error, kind))
    return {"error": name, "message": str(error)}


def restored_error(data: Mapping[str, str]) -> DeviceError:
    """The error behind `plain_error` data.  Raises KeyError for an unknown one."""
    return ERRORS[data["error"]](data["message"])


def _plain_column(column: np.ndarray[Any, Any]) -> dict[str, Any]:
    if column.ndim != 1:
        raise TypeError(f"a column has one dimension, got {column.ndim}")
    if np.issubdtype(column.dtype, np.integer):
        return {"whole": np.diff(column, prepend=0).tolist()}
    return {"column": [item if math.isfinite(item) else repr(item) for item in column.astype(np.float64).tolist()]}

"""NVML's field values (nvmlFieldValue_t) as numbers, many polls at once."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from collector.devices.nvml_library import VALUE_NOT_AVAILABLE
from estimator.quantities import Array

FIELD_VALUE_BYTES: Final = 40
"""Size of nvmlFieldValue_t (nvml.h): field, scope and two times take its first 24 bytes."""

LAYOUT: Final = np.dtype(
    {"names": ["type", "answer", "bits"], "formats": ["=u4", "=u4", "=u8"], "offsets": [24, 28, 32], "itemsize": FIELD_VALUE_BYTES}
)
"""The value's type (nvmlValueType_t), the answer's code (nvmlReturn_t), and the union that holds the value."""

NUMBER_TYPES: Final = {0: "=f8", 1: "=u4", 2: "=u8", 3: "=u8", 4: "=i8", 5: "=i4", 6: "=u2"}
"""What the union holds by the value's type: double, unsigned int, unsigned long, unsigned and signed long long, int,
unsigned short.  Drivers differ in the type of the same field."""


def field_numbers(polls: Sequence[bytes], fields: int) -> Array:
    """Numbers of arrays of so many field values, one array a poll, each in its field's own unit; shape (polls, fields).

    NaN where the driver gave no value, or one of a type that is not known.
    """
    content = b"".join(polls)
    records = np.frombuffer(content, LAYOUT).reshape(len(polls), fields)
    numbers = np.full(records.shape, np.nan)
    for kind in np.unique(records["type"]).tolist():
        layout = NUMBER_TYPES.get(kind)
        if layout is None:
            continue
        union = np.dtype({"names": ["value"], "formats": [layout], "offsets": [32], "itemsize": FIELD_VALUE_BYTES})
        found = np.frombuffer(content, union).reshape(records.shape)["value"].astype(np.float64)
        numbers = np.where(records["type"] == kind, found, numbers)
    return np.where((records["answer"] == 0) & (numbers != VALUE_NOT_AVAILABLE), numbers, np.nan)

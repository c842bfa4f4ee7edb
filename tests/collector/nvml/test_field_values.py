"""Field values in every type that a driver may answer in."""

import math
import struct

import pytest

from collector.devices.nvml import FIELD_VALUE_BYTES, field_numbers
from collector.devices.nvml_library import VALUE_NOT_AVAILABLE


def answered(kind: int, layout: str, value: float, *, answer: int = 0) -> bytes:
    """One nvmlFieldValue_t; the union's other bytes are what an earlier value left there."""
    union = struct.pack("=" + layout, value)
    content = bytes(24) + struct.pack("=II", kind, answer) + union + b"\xa5" * (8 - len(union))
    assert len(content) == FIELD_VALUE_BYTES
    return content


@pytest.mark.parametrize(
    ("kind", "layout", "value"),
    [(0, "d", 71.25), (1, "I", 71_250), (2, "Q", 71_250), (3, "Q", 2**40), (4, "q", -3), (5, "i", -71), (6, "H", 7125)],
)
def test_a_value_is_read_in_the_type_the_driver_names(kind: int, layout: str, value: float) -> None:
    assert field_numbers([answered(kind, layout, value)], 1).tolist() == [[value]]


def test_each_poll_and_each_field_keeps_its_place_whatever_their_types() -> None:
    polls = [answered(1, "I", 10 * poll) + answered(0, "d", poll + 0.5) for poll in range(5)]
    assert field_numbers(polls, 2).tolist() == [[10.0 * poll, poll + 0.5] for poll in range(5)]


@pytest.mark.parametrize(
    "content",
    [answered(1, "I", 5, answer=3), answered(1, "I", VALUE_NOT_AVAILABLE), answered(3, "Q", VALUE_NOT_AVAILABLE), answered(99, "I", 5)],
    ids=["an error's code", "not available", "not available in 64 bits", "an unknown type"],
)
def test_no_value_is_no_number(content: bytes) -> None:
    found = field_numbers([content + answered(1, "I", 8)], 2)
    assert math.isnan(found[0, 0])
    assert found[0, 1] == 8.0

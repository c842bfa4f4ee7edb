"""The reader of declared data: what is declared is read, everything else is refused at its place, and the schema says the same."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import jsonschema
import pytest

from estimator import BundleError
from estimator.vocabulary.reader import (
    LEAST_ONE,
    Count,
    FaultError,
    Pattern,
    Span,
    Text,
    Words,
    check_ascending,
    check_covariance,
    check_lengths,
    plain,
    read,
    read_file,
)
from scripts.schemas import schema_of
from tests.words import one_line, replaced

Clock = Annotated[float, Span(10.0, 1e4, "MHz")]


def same_lengths(table):
    """A check beyond the fields."""
    check_ascending(table["clock"], "clock")
    check_lengths({"value": table["value"]}, len(table["clock"]), shared=True)


class Table(TypedDict):
    """Columns."""

    clock: Annotated[tuple[Clock, ...], LEAST_ONE]
    value: tuple[Annotated[float, Span(0.0, 1.0)], ...]
    source: NotRequired[Text]


class Tree(TypedDict):
    """One kind of predictor."""

    node: tuple[int, ...]


class Choice(TypedDict):
    """Another kind of predictor."""

    kind: Literal["choice"]
    odds: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Board:
    """Something of every type."""

    name: Text
    sms: Annotated[Count, "streaming multiprocessors"]
    std_w: Annotated[float, Span(0.0, 9.0, "W", nan=True)]
    range: tuple[Clock, Clock]
    table: Annotated[Table, same_lengths]
    rates: Mapping[Annotated[str, Words(("bf16", "fp32"))], Annotated[float, Span(0.0)]]
    predictor: Tree | Choice
    idle_w: float | None = None
    version: Annotated[str, Pattern(r"\d+\.\d+", "MAJOR.MINOR")] = "1.0"
    simulated: bool = False
    sensor: Any = None


GOOD = json.loads("""{
"name": "x", "sms": 108, "std_w": null, "range": [210.0, 1410.0], "table": {"clock": [210.0, 900.0], "value": [0.5, 0.6]},
"rates": {"bf16": 2048.0}, "predictor": {"kind": "choice", "odds": [0.0, 1.0]}, "version": "1.0", "simulated": true,
"sensor": {"deep": [{"er": 1}, null, "é"]}
}""")
SCHEMA = schema_of(Board, "board")
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


changed = partial(replaced, GOOD)


def test_what_is_read_is_frozen_and_written_again_as_it_was():
    board = read(Board, GOOD)
    assert plain(board) == GOOD
    with pytest.raises(TypeError):
        board.table["clock"] = ()
    with pytest.raises(TypeError):
        board.sensor["deep"][0]["er"] = 2
    VALIDATOR.validate(GOOD)
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


DEEP = 1
for _ in range(40):
    DEEP = [DEEP]

FAULTS = [
    (("sms",), 1.5, "sms must be a whole number from 0 to"),
    (("sms",), -1, "sms = -1 lies outside 0 to"),
    (("name",), "", "name must not be empty"),
    (("colour",), 7, "the document has an unknown field 'colour'; known: name, sms"),
    (("range",), [210.0], "range has 1 values where 2"),
    (("table", "value", 1), float("nan"), r"table.value\[1\] = nan lies outside 0 to 1"),
    (("table", "value", 1), "nan", r"table.value\[1\] must be a number from 0 to 1, got a text"),
    (("table", "foreign"), 1, "table has an unknown field 'foreign'"),
    (("table",), {"clock": [10.0]}, "table lacks the field 'value'"),
    (("rates", "bf17"), 1.0, "rates has a wrong name: 'bf17' is unknown; known: bf16, fp32"),
    (("predictor", "node"), [1], "predictor has an unknown field 'node'; known: kind, odds"),
    (("predictor",), {"node": [0.5]}, r"predictor.node\[0\] must be a whole number"),
    (("version",), "1", "version = '1' must read MAJOR.MINOR"),
    (("simulated",), 1, "simulated must be true or false"),
]
"""Faults that reader and schema both find."""

FURTHER = [
    (("table", "clock"), [900.0, 210.0], "table.clock must ascend"),
    (("table", "value"), [0.1, 0.2, 0.3], "table.value has 3 values where 2 are needed"),
    (("name",), "\ud800", "name holds half a character"),
    (("sensor",), DEEP, "is nested deeper than 32 levels"),
    (("sms",), 10**400, "sms = 1000.* lies outside"),
]


@pytest.mark.parametrize("place, value, message", FAULTS + FURTHER)
def test_a_fault_is_refused_in_one_line_with_its_place(place, value, message):
    with one_line(FaultError, match=message) as caught:
        read(Board, changed(place, value))
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("place, value, message", FAULTS)
def test_the_schema_finds_the_same_faults(place, value, message):
    assert value != value or not VALIDATOR.is_valid(changed(place, value)), message


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.json", b"{", "not valid JSON"),
        ("a.json", b"[" * 10**5, "nested too deeply"),
        ("a.json", b'{"a": 1, "a": 2}', "the field 'a' twice"),
        ("a.json", b"[]", "the document must be an object"),
        ("a.toml", b"a = ", "Invalid value"),
        ("a.toml", b"name = 'x'\nsms = 1e200", "no quantity is so large"),
        ("a.toml", b"name = 'x'", "the document lacks the field 'sms'"),
        ("none.toml", None, "cannot be read"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line_that_names_it(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with one_line(BundleError, match=message) as caught:
        read_file(Board, path, "board", BundleError)
    assert f"board {path}" in str(caught.value)


@pytest.mark.parametrize(
    "rows, reason",
    [
        (((1.0, 2.0), (2.0, 1.0)), "x is no covariance: a combination of its terms has a variance below 0"),
        (((1.0, 0.5), (0.25, 1.0)), r"x\[1\]\[0\] is no covariance: not symmetric"),
        (((1.0, 0.0), (0.0, -1.0)), r"x\[1\]\[1\] = -1.0: a variance must not be negative"),
        (((0.0, 0.5), (0.5, 1.0)), "beside a variance of 0"),
        (((1.0,), (0.0, 1.0)), r"x\[0\] has 1 values where 2"),
    ],
)
def test_what_is_no_covariance_is_refused(rows, reason):
    with pytest.raises(FaultError, match=reason):
        check_covariance(rows, "x")

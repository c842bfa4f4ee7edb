"""JSON and TOML files as plain data; numbers, fields and levels are checked here once for all readers."""

import json
from typing import Any, Final, NoReturn

Document = dict[str, Any]
"""Plain data of a JSON object, or of a TOML table."""

LARGEST: Final = 1e100
"""Largest number, and the reciprocal of the smallest, that a file may hold in any unit: sums, products and squares stay finite."""


def parse_json(content: bytes, decoder: json.JSONDecoder | None = None) -> Any:
    """The JSON value in a text.

    Raises ValueError, in one line, for text that is not UTF-8 or not JSON (NaN and Infinity are not), a duplicate
    field in an object, an impossible number and too many levels.
    """
    try:
        return (decoder or JSON).decode(_text(content))
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON, or cut short: {error.msg} at line {error.lineno} column {error.colno}") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def parse_toml(content: bytes) -> Document:
    """The TOML table in a text.  Raises ValueError like `parse_json`."""
    import tomllib  # most commands read no TOML

    try:
        return tomllib.loads(_text(content), parse_float=_float)
    except ValueError as error:
        raise ValueError(f"not valid TOML: {error}") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _text(content: bytes) -> str:
    """UTF-8 text without a byte order mark.  Raises ValueError."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"no text file (byte {error.start} is not UTF-8)") from error


def _float(text: str) -> float:
    number = float(text)
    if number and not 1.0 / LARGEST <= abs(number) <= LARGEST:  # also refuses NaN
        raise ValueError(f"holds the number {text[:40]}; no quantity is so large or so small")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"holds {name}, which is no JSON number: every number must be finite")


def _distinct(pairs: list[tuple[str, Any]]) -> Document:
    """An object with unique fields; a duplicate name would be ambiguous."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"holds the field {next(name for name in names if names.count(name) > 1)!r} twice in one object")
    return fields


JSON: Final = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_float, object_pairs_hook=_distinct)
"""Decoder of JSON files; its `raw_decode` reads the first value of a text."""

UNBOUNDED_JSON: Final = json.JSONDecoder(
    parse_constant=lambda name: LARGEST if name == "Infinity" else _refuse_constant(name),
    parse_float=_float,
    object_pairs_hook=_distinct,
)
"""Decoder of files in which Infinity, as Python's `json` writes it, says that there is no limit."""


def kind_of(value: Any) -> str:
    """The kind of a value, in words."""
    names = {type(None): "null", bool: "a truth value", str: "a text", list: "a list", tuple: "a list", dict: "an object"}
    return names.get(type(value), shown(value)[:40])


def printable(text: str) -> str:
    """A text from a file, safe for one line of a terminal: control characters, which could move the cursor, become "?"."""
    return text if text.isprintable() else "".join(character if character.isprintable() else "?" for character in text)


def shown(value: Any) -> str:
    """A value as written in a file; texts in simple quotes."""
    return f"{value:.15g}" if isinstance(value, float) else repr(value)

"""JSON and TOML of files as plain data, with every number, field and level checked once for all readers."""

import json
from typing import Any, Final, NoReturn

Document = dict[str, Any]
"""Plain data of a JSON object, or of a TOML table."""

LARGEST: Final = 1e100
"""Largest number, and the reciprocal of the smallest, that a file may hold in any unit: sums, products and squares stay finite."""

MOST_DIGITS: Final = 100
"""Digits of a whole number that stays below LARGEST."""

BYTE_ORDER_MARK: Final = "\ufeff"


def parse_json(content: bytes | str) -> Any:
    """The JSON value in a text.

    Raises ValueError, in one line, for what is not UTF-8 or not JSON (NaN and Infinity are not), a field that stands twice in an object, a
    number that no quantity has and too many levels.
    """
    try:
        return JSON.decode(text_of(content))
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON, or cut short: {error.msg} at line {error.lineno} column {error.colno}") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def parse_toml(content: bytes) -> Document:
    """The TOML table in a text.  Raises ValueError as `parse_json` does."""
    import tomllib  # most commands read no TOML

    try:
        document = tomllib.loads(text_of(content), parse_float=_toml_float)
        _check_whole(document)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"not valid TOML: {error}") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return document


def text_of(content: bytes | str) -> str:
    """UTF-8 text without a byte order mark.  Raises ValueError."""
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"no text file (byte {error.start} is not UTF-8)") from error
    return text.removeprefix(BYTE_ORDER_MARK)


def _check_whole(value: object) -> None:
    """Raises ValueError where a list or table holds a whole number that no quantity has."""
    if isinstance(value, int) and abs(value) > LARGEST:
        raise ValueError("holds a whole number of hundreds of digits")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_whole(item)


def _float(text: str) -> float:
    number = float(text)
    if number and not 1.0 / LARGEST <= abs(number) <= LARGEST:  # also refuses NaN
        raise ValueError(f"holds the number {text[:40]}; no quantity is so large or so small")
    return number


def _toml_float(text: str) -> float:
    """A float of TOML; nan and inf are left to the field's reader, which names the field."""
    return float(text) if "n" in text else _float(text)


def _whole(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"holds a whole number of {len(text)} digits, {text[:8]}…; no quantity is so large")
    return int(text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"holds {name}, which is no JSON number: every number must be finite")


def _distinct(pairs: list[tuple[str, Any]]) -> Document:
    """An object whose fields stand there once: of two equal names the reader could not tell which was meant."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"holds the field {next(name for name in names if names.count(name) > 1)!r} twice in one object")
    return fields


JSON: Final = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=_whole, parse_float=_float, object_pairs_hook=_distinct)
"""Decodes JSON of files; `raw_decode` takes the first value of a text."""


def kind_of(value: Any) -> str:
    """What a value is."""
    names = {type(None): "null", bool: "a truth value", str: "a text", list: "a list", tuple: "a list", dict: "an object"}
    return names.get(type(value), shown(value)[:40])


def shown(value: Any) -> str:
    """A value as a file would hold it; texts in simple quotes."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:.15g}" if isinstance(value, float) else repr(value)


LONGEST_NAME: Final = 80
"""Characters of a name that a line shows."""


def short_name(name: str) -> str:
    """The name, cut in its middle where it is longer than LONGEST_NAME: what tells names apart mostly stands at an end."""
    if len(name) <= LONGEST_NAME:
        return name
    kept = LONGEST_NAME - 1
    return f"{name[: kept - kept // 2]}…{name[-(kept // 2) :]}"

"""A JSON file as it lies on disk: read with every fault named, written whole or not at all."""

import json
from pathlib import Path
from typing import Any, Final, NoReturn

from estimator.errors import WorkloadError
from estimator.special_files import refuse_special

LIST_START: Final = "[["
BETWEEN_PAIRS: Final = "]], ["
LIST_END: Final = "]]]"
"""How a list of pairs, whose second item is a list, starts, goes on and ends in Python's JSON."""


MAX_FILE_BYTES: Final = 256 << 20
"""No workload comes near this; more is a mistake, or a device that never ends."""

USUAL_FILE_BYTES: Final = 1 << 20
"""Nearly all workload files are smaller."""

BYTE_ORDER_MARK: Final = "\ufeff"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number; dimensions must be finite")


def _distinct_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose fields stand there once: of two equal names the reader could not tell which was meant."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"holds the field {next(name for name in names if names.count(name) > 1)!r} twice in one object")
    return fields


def _whole_number(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"holds a whole number of {len(text)} digits, {text[:8]}…; no size is so large")
    return int(text)


MOST_DIGITS: Final = 400
"""Longer numbers than the largest float are not read at all [digit]."""

_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=_whole_number, object_pairs_hook=_distinct_fields)


def read_text(path: Path) -> str:
    """The text of a file, without white space around it.

    Raises WorkloadError where the file is missing, a folder, unreadable, too large, not text or empty.
    """
    try:
        refuse_special(path)
        with path.open("rb") as stream:
            content = stream.read(USUAL_FILE_BYTES)
            if len(content) == USUAL_FILE_BYTES:  # a buffer of the size of the largest file would be made for the smallest
                content += stream.read(MAX_FILE_BYTES + 1 - USUAL_FILE_BYTES)
        if len(content) > MAX_FILE_BYTES:
            raise WorkloadError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB; no workload file")
        text = content.decode("utf-8").removeprefix(BYTE_ORDER_MARK).strip()
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{path}: not a text file (byte {error.start} is not UTF-8); a workload file is JSON") from error
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a null byte in the name
        raise WorkloadError(f"{path}: cannot be read: {error}") from error
    if not text:
        raise WorkloadError(f"{path}: the file is empty; a workload file is JSON")
    return text


def parse_document(text: str, path: Path) -> Any:
    """The JSON value that a text holds; `path` is for messages.

    Raises WorkloadError where it is not JSON, NaN and Infinity are not, or names a field of an object twice.
    """
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise WorkloadError(f"{path}: not valid JSON, or cut short: {error.msg} at {place}; write the file again") from error
    except RecursionError as error:
        raise WorkloadError(f"{path}: nested too deeply for a workload file") from error
    except ValueError as error:  # NaN, a field twice, or a number of hundreds of digits
        raise WorkloadError(f"{path}: {error}") from error


def distinct_items(text: str) -> tuple[list[Any], list[int]] | None:
    """The distinct items of a JSON list of pairs in first-seen order, and for each place of the list the number of its item.

    A traced model repeats a few dozen entries a thousand times; cutting the text between them and decoding each
    text once takes a quarter of the time.  The text is "[" item ", " item … "]": where every piece is a JSON value by
    itself, those are the items.  None where the text is written differently or a piece is not JSON.
    """
    if not (text.startswith(LIST_START) and text.endswith(LIST_END)):
        return None
    numbers, order = _numbered_pieces(text[len(LIST_START) : -len(LIST_END)])
    try:
        items = [_whole_value(f"[{piece}]]") for piece in numbers]
    except (ValueError, RecursionError):
        return None
    return items, order


def _numbered_pieces(text: str) -> tuple[dict[str, int], list[int]]:
    """The number of each distinct piece of a text between BETWEEN_PAIRS, in first-seen order, and the numbers of all pieces.

    Layers repeat as a whole.  So the text is cut first wherever one piece from its middle stands, and of the long stretches between,
    most of them alike, each distinct one is cut into pieces once.  No two separators overlap: the pieces are those of one cut.
    """
    numbers: dict[str, int] = {}
    start = text.find(BETWEEN_PAIRS, len(text) // 2)
    end = text.find(BETWEEN_PAIRS, start + 1) if start >= 0 else -1
    if end < 0:  # a list too short to have a middle
        return numbers, [numbers.setdefault(piece, len(numbers)) for piece in text.split(BETWEEN_PAIRS)]
    middle = text[start + len(BETWEEN_PAIRS) : end]
    cut: dict[str, list[int]] = {}
    order: list[int] = []
    for stretch in text.split(BETWEEN_PAIRS + middle + BETWEEN_PAIRS):
        if stretch not in cut:
            cut[stretch] = [numbers.setdefault(piece, len(numbers)) for piece in (*stretch.split(BETWEEN_PAIRS), middle)]
        order += cut[stretch]
    del order[-1]  # behind the last stretch the piece does not stand
    return numbers, order


def _whole_value(text: str) -> Any:
    """The JSON value that a text without white space around it is.  Raises ValueError where it is none, or goes on after one."""
    value, end = _DECODER.raw_decode(text)
    if end != len(text):
        raise ValueError(f"goes on after its {end}th character")
    return value

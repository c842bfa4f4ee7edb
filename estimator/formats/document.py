"""A JSON file as it lies on disk: read with every fault named, written whole or not at all."""

import json
from pathlib import Path
from typing import Any, Final, NoReturn

from estimator.errors import WorkloadError
from estimator.whole_file import write_whole

LIST_START: Final = "[["
BETWEEN_PAIRS: Final = "]], ["
LIST_END: Final = "]]]"
"""How a list of pairs, whose second item is a list, starts, goes on and ends in Python's JSON."""


MAX_FILE_BYTES: Final = 256 << 20
"""No workload comes near this; more is a mistake, or a device that never ends."""


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number; dimensions must be finite")


def _distinct_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose fields stand there once: of two equal names the reader could not tell which was meant."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"holds the field {next(name for name in names if names.count(name) > 1)!r} twice in one object")
    return fields


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_distinct_fields)


def read_text(path: Path) -> str:
    """The text of a file, without white space around it.

    Raises WorkloadError where the file is missing, a folder, unreadable, too large, not text or empty.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise WorkloadError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB; no workload file")
        text = content.decode("utf-8-sig").strip()
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
    except ValueError as error:  # NaN, a field twice, or an integer of thousands of digits
        raise WorkloadError(f"{path}: {error}") from error


def distinct_items(text: str) -> tuple[list[Any], list[int]] | None:
    """The distinct items of a JSON list of pairs, and for each place of the list the number of its item.

    A traced model repeats a few dozen entries a thousand times; cutting the text between them and decoding each
    text once takes a quarter of the time.  The text is "[" item ", " item … "]": where every piece is a JSON value by
    itself, those are the items.  None where the text is written differently or a piece is not JSON.
    """
    if not (text.startswith(LIST_START) and text.endswith(LIST_END)):
        return None
    pieces = text[len(LIST_START) : -len(LIST_END)].split(BETWEEN_PAIRS)
    numbers = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    try:
        return [_DECODER.decode(f"[{piece}]]") for piece in numbers], list(map(numbers.__getitem__, pieces))
    except (ValueError, RecursionError):
        return None


def write_document(path: Path, text: str) -> None:
    """Write a text file whole or not at all.

    Raises WorkloadError where the place cannot be written.
    """
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be written: {error.strerror or error}") from error

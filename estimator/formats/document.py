"""A JSON file as it lies on disk: read with every fault named, written whole or not at all."""

from pathlib import Path
from typing import Any, Final

from estimator.documents import JSON, parse_json, text_of
from estimator.errors import WorkloadError
from estimator.regular_files import read_regular

LIST_START: Final = "[["
BETWEEN_PAIRS: Final = "]], ["
LIST_END: Final = "]]]"
"""How a list of pairs, whose second item is a list, starts, goes on and ends in Python's JSON."""


MAX_FILE_BYTES: Final = 256 << 20
"""No workload comes near this; more is a mistake, or a device that never ends."""


def read_text(path: Path) -> str:
    """The text of a file, without white space around it.

    Raises WorkloadError where the file is missing, a folder, unreadable, too large, not text or empty.
    """
    try:
        text = text_of(read_regular(path, MAX_FILE_BYTES)).strip()
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise WorkloadError(f"{path}: {error}; a workload file is JSON") from error
    if not text:
        raise WorkloadError(f"{path}: the file is empty; a workload file is JSON")
    return text


def parse_document(text: str, path: Path) -> Any:
    """The JSON value that a text holds; `path` is for messages.

    Raises WorkloadError as `estimator.documents.parse_json` raises ValueError.
    """
    try:
        return parse_json(text)
    except ValueError as error:
        raise WorkloadError(f"{path}: {error}; write the file again") from error


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
    value, end = JSON.raw_decode(text)
    if end != len(text):
        raise ValueError(f"goes on after its {end}th character")
    return value

"""A JSON file as it lies on disk: read with every fault named, written whole or not at all."""

import json
from pathlib import Path
from typing import Any, NoReturn

from estimator.errors import WorkloadError
from estimator.whole_file import write_whole


def read_document(path: Path) -> Any:
    """The JSON value in a file.

    Raises WorkloadError where the file is missing, a folder, unreadable, not text or not JSON; NaN and Infinity
    are not JSON.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{path}: not a text file (byte {error.start} is not UTF-8); a workload file is JSON") from error
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a null byte in the name
        raise WorkloadError(f"{path}: cannot be read: {error}") from error
    if not text.strip():
        raise WorkloadError(f"{path}: the file is empty; a workload file is JSON")
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise WorkloadError(f"{path}: not valid JSON, or cut short: {error.msg} at {place}; write the file again") from error
    except RecursionError as error:
        raise WorkloadError(f"{path}: nested too deeply for a workload file") from error
    except ValueError as error:  # NaN, or an integer of thousands of digits
        raise WorkloadError(f"{path}: {error}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number; dimensions must be finite")


def write_document(path: Path, text: str) -> None:
    """Write a text file whole or not at all.

    Raises WorkloadError where the place cannot be written.
    """
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be written: {error.strerror or error}") from error

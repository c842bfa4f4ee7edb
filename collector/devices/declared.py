"""Files whose content is declared as msgspec structs: fields, types, units and limits stand in one place, the declaration."""

import re
from pathlib import Path
from typing import Any, Final, TypeVar

from estimator.vocabulary.documents import parse_toml
from estimator.vocabulary.regular_files import read_regular

Kind = TypeVar("Kind")

MOST_BYTES: Final = 1 << 20
FIELD: Final = re.compile(r"Object (missing required|contains unknown) field `(.*)`")
STEP: Final = re.compile(r"\.(\w+)|\[(\d+)\]")


def read_declared(path: Path, kind: type[Kind], where: str, error: type[Exception]) -> Kind:
    """The content of a TOML file as its declaration; `where` names the file in messages, which `error` carries."""
    try:
        document = parse_toml(read_regular(path, MOST_BYTES))
    except OSError as fault:
        raise error(f"{where}: cannot be read ({fault.strerror}); name a TOML file") from fault
    except ValueError as fault:
        raise error(f"{where}: not a TOML file ({fault})") from fault
    return declared(document, kind, where, error)


def declared(document: object, kind: type[Kind], where: str, error: type[Exception]) -> Kind:
    """Plain data as a declared struct.  Raises `error`, in one line with path, value and limit, for data of another shape."""
    import msgspec  # not on the way of a command that reads no declared file

    try:
        return msgspec.convert(document, kind, dec_hook=lambda wanted, value: wanted(value))
    except msgspec.ValidationError as fault:
        text, _, path = str(fault).removesuffix("`").partition(" - at `$")
        field = FIELD.fullmatch(text if path else str(fault))
        if field:
            place = f"{path}.{field[2]}".lstrip(".")
            raise error(f"{where}: {place} is missing" if "missing" in field[1] else f"{where}: unknown key {place!r}") from fault
        expected = text.replace("`", "").removeprefix("Expected ")
        raise error(f"{where}: {path.lstrip('.')} = {_value(document, path)!r}; expected {expected}") from fault


def _value(document: Any, path: str) -> Any:
    """The value at a path of msgspec; of a mapping's value, whose key it does not tell, the mapping."""
    for name, index in STEP.findall(path.partition("[...]")[0]):
        document = document[name] if name else document[int(index)]
    return document

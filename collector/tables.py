"""TOML files into frozen dataclasses: unknown, missing and mistyped keys are refused with the key's path."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_args, get_origin, get_type_hints

from collector.errors import CollectorError
from estimator.documents import LARGEST, parse_toml
from estimator.frozen import FrozenMapping
from estimator.regular_files import read_regular
from estimator.specifications import near_match

MAX_FILE_BYTES: Final = 1 << 20

Limits = Mapping[str, tuple[float, float, str]]
"""Low, high and unit of a number, by the name of its field."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TableReader:
    """Builds dataclasses from tables of one file.

    where   names the file in messages
    error   raised for all that cannot be
    limits  of numbers, by field name; numbers that are not named need only be finite
    """

    where: str
    error: type[CollectorError]
    limits: Limits = dataclasses.field(default_factory=dict)

    def read(self, path: Path, what: str) -> dict[str, Any]:
        """The document in a TOML file; `what` says what it should be."""
        try:
            return parse_toml(read_regular(path, MAX_FILE_BYTES))
        except OSError as error:
            raise self.error(f"{self.where}: cannot be read ({error.strerror}); name a {what}") from error
        except ValueError as error:
            raise self.error(f"{self.where}: not a TOML file ({error})") from error

    def build(self, kind: type[Any], table: object, path: str = "") -> Any:
        """A dataclass from a table at `path`."""
        if not isinstance(table, Mapping):
            raise self.error(f"{self.where}: {path} must be a table")
        hints = get_type_hints(kind)
        known = {item.name: item for item in dataclasses.fields(kind)}
        for key in table:
            if key not in known:
                raise self.error(f"{self.where}: unknown key {key_path(path, key)!r}{near_match(key, known)}; known: {', '.join(known)}")
        values = {}
        for name, item in known.items():
            if name in table:
                values[name] = self.convert(hints[name], name, table[name], key_path(path, name))
            elif item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
                raise self.error(f"{self.where}: {key_path(path, name)} is missing")
        return kind(**values)

    def convert(self, hint: Any, name: str, value: Any, path: str) -> Any:
        """A value as the type that the field `name` declares; values that are built already pass."""
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            return value if isinstance(value, hint) else self.build(hint, value, path)
        if hint in (int, float):
            return self._number(hint, name, value, path)
        if hint is bool and not isinstance(value, bool):
            raise self.error(f"{self.where}: {path} = {value!r} must be true or false")
        if hint is str and not isinstance(value, str):
            raise self.error(f"{self.where}: {path} = {value!r} must be a text")
        if hint == tuple[float, ...]:
            if not isinstance(value, tuple | list) or not value:
                raise self.error(f"{self.where}: {path} must be a list of numbers")
            return tuple(self.finite(item, f"{path}[{i}]") for i, item in enumerate(value))
        if get_origin(hint) is Mapping and not isinstance(value, FrozenMapping):
            if not isinstance(value, Mapping):
                raise self.error(f"{self.where}: {path} must be a table")
            inner = get_args(hint)[1]
            return FrozenMapping({key: self.convert(inner, key, item, key_path(path, key)) for key, item in value.items()})
        return value

    def _number(self, hint: type[int] | type[float], name: str, value: object, path: str) -> float:
        number = self.finite(value, path)
        low, high, unit = self.limits.get(name, (-math.inf, math.inf, ""))
        if not low <= number <= high:
            raise self.error(f"{self.where}: {path} = {value!r} lies outside {low:g} to {high:g} {unit}")
        if hint is int and number != int(number):
            raise self.error(f"{self.where}: {path} = {value!r} must be a whole number")
        return hint(number)

    def finite(self, value: object, path: str) -> float:
        """A finite number."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
            shown = "a whole number of many digits" if isinstance(value, int) and not isinstance(value, bool) else repr(value)[:80]
            raise self.error(f"{self.where}: {path} = {shown} must be a finite number")
        return float(value)


def key_path(path: str, key: object) -> str:
    """The path of a key below another."""
    return f"{path}.{key}" if path else str(key)

"""Bundles of older formats: each step turns plain data of one format version into the next.

A step is a pure function from document to document.  It sees data whose digest has been checked, so it may trust
what the older program wrote, and it must set nothing that the older file does not tell.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from estimator.errors import BundleError

Document = dict[str, Any]

MIGRATIONS: Final[Mapping[str, tuple[str, Callable[[Document], Document]]]] = MappingProxyType({})
"""Older format version → (the version it becomes, how).  1.0 is the first; a change of the format adds a line here."""

_VERSION: Final = re.compile(r"(\d{1,6})\.(\d{1,6})", re.ASCII)


def migrate(
    document: Document,
    current: str,
    steps: Mapping[str, tuple[str, Callable[[Document], Document]]] = MIGRATIONS,
) -> Document:
    """The document in format version `current`, by as many steps as it takes.

    Raises BundleError for a version that is no version, newer than `current`, or older with no way up.
    """
    refuse_newer(document, current)
    version = _parsed(document.get("format_version"))
    while version < _parsed(current):
        if _written(version) not in steps:
            raise BundleError(f"format version {_written(version)} is unknown: read it with the program that wrote it, or fit again")
        becomes, step = steps[_written(version)]
        document = {**step(dict(document)), "format_version": becomes}
        version = _parsed(becomes)
    return document


def refuse_newer(document: Document, current: str) -> None:
    """Raises BundleError for a document in a format version newer than `current`."""
    stated = document.get("format_version")
    if isinstance(stated, str) and _VERSION.fullmatch(stated) and _parsed(stated) > _parsed(current):
        written = _written(_parsed(stated))
        raise BundleError(f"format version {written} is newer than {current}, the newest that this program reads: upgrade wattprint")


def _parsed(text: Any) -> tuple[int, int]:
    match = _VERSION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise BundleError(f"format_version = {str(text)[:40]!r} must read MAJOR.MINOR")
    return int(match[1]), int(match[2])


def _written(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"

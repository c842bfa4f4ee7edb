"""Bundle files: reading, writing, digest, names.

A bundle is one JSON file, described by `schema/bundle-1.json`, readable without this package.  Its digest is
"sha256:" and the SHA-256 of the file's data as JSON with sorted keys, separators "," and ":", ASCII only, and the
shortest decimal that gives a float back; without the field `digest` and, of the provenance, `created_utc` and `commit`:
two fits of the same data have the same digest, wherever and whenever they ran.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from estimator.bundles.content import (
    Bundle,
    Covariance,
    DatasetRecord,
    GroupCoefficients,
    HostCost,
    IdleTable,
    PowerCoefficients,
    Provenance,
    VoltageTable,
)
from estimator.bundles.document import FORMAT, FORMAT_VERSION, bundle_from_document, document_of
from estimator.bundles.store import store_fault, stored_names, stored_path
from estimator.documents import parse_json
from estimator.errors import ArgumentError, BundleError
from estimator.regular_files import read_regular
from estimator.resources import resource_folder, resource_names
from estimator.specifications import near_match
from estimator.whole_file import write_whole

__all__ = [
    "Bundle",
    "Covariance",
    "DatasetRecord",
    "GroupCoefficients",
    "HostCost",
    "IdleTable",
    "PowerCoefficients",
    "Provenance",
    "VoltageTable",
    "bundle_from_document",
    "bundle_names",
    "bundle_path",
    "digest_of",
    "document_of",
    "load_bundle",
    "save_bundle",
]

MAX_FILE_BYTES: Final = 256 << 20
"""No bundle comes near this; more is a mistake or an attack on memory."""


NOT_DIGESTED: Final = ("created_utc", "commit")
"""Fields of the provenance that say when and from which source tree a fit ran, not what came of it."""


def bundle_names() -> tuple[str, ...]:
    """Names of the installed bundles, sorted: those that come with the package, and those in the local store."""
    return tuple(sorted({*resource_names("bundles", ".json"), *stored_names()}))


def bundle_path(name_or_path: str | Path) -> Path:
    """The file of a bundle: a path (ends in `.json`, holds a separator, or exists) or the name of an installed bundle.

    Raises BundleError for a name that is neither.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith(".json") or "/" in text or "\\" in text:
        return Path(name_or_path)
    names = bundle_names()
    if text in names:
        shipped = resource_folder("bundles") / f"{text}.json"
        return shipped if shipped.is_file() else stored_path(text)
    if text and "\0" not in text and Path(text).is_file():
        return Path(text)
    installed = f"installed: {', '.join(names)}" if names else "none is installed"
    fault = store_fault()
    store = f" ({fault[0]})" if fault else ""
    raise BundleError(f"unknown bundle {text!r}{near_match(text, names)}; {installed}; or give a file{store}")


def load_bundle(name_or_path: str | Path) -> Bundle:
    """A bundle by the name of an installed one or by its file, whole and checked.  Nothing in it is executed.

    Raises BundleError for a file that is missing, unreadable, damaged, edited, foreign or of another format.
    """
    if not isinstance(name_or_path, str | Path):
        raise ArgumentError(
            f"name_or_path must be the name of a bundle or its file, got {name_or_path!r:.40} ({type(name_or_path).__name__})"
        )
    path = bundle_path(name_or_path)
    where = f"bundle {path}"
    try:
        document = _parsed(_content(path))
        if document.get("format") != FORMAT:
            raise BundleError(f"is not a {FORMAT} file: its field 'format' says {str(document.get('format'))[:40]!r}")
        return bundle_from_document(_checked(document))
    except BundleError as error:
        raise BundleError(f"{where}: {error}") from error
    except RecursionError as error:
        raise BundleError(f"{where}: nested too deeply to be a bundle") from error


def save_bundle(bundle: Bundle, path: str | Path) -> Bundle:
    """Write a bundle, whole or not at all; returns it with its digest.

    Raises BundleError if the bundle breaks a rule of the format, UnwrittenError if the file cannot be written; then nothing is.
    """
    where = f"bundle {path}"
    try:
        document = document_of(bundle)
        document["digest"] = digest_of(document)
        saved = bundle_from_document(document)
    except BundleError as error:
        raise BundleError(f"{where}: {error}") from error
    write_whole(Path(path), (_layout(document) + "\n").encode("ascii"))
    return replace(bundle, digest=saved.digest)


def digest_of(document: Mapping[str, Any]) -> str:
    """The digest of a bundle's plain data: of its content, not of when and where it was made.

    Raises BundleError for a number that is not finite.
    """
    content = {key: value for key, value in document.items() if key != "digest"}
    origin = content.get("provenance")
    if isinstance(origin, dict):
        content["provenance"] = {key: value for key, value in origin.items() if key not in NOT_DIGESTED}
    try:
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except (ValueError, TypeError) as error:
        raise BundleError(f"{_first_not_finite(content, '') or error} is not finite") from error
    return "sha256:" + hashlib.sha256(canonical.encode("ascii")).hexdigest()


def _content(path: Path) -> bytes:
    try:
        content = read_regular(path, MAX_FILE_BYTES)
    except OSError as error:
        raise BundleError(f"cannot be read ({_reason(error)}); give another file, or one of those that 'estimate bundles' lists") from error
    if not content.strip():
        raise BundleError("is empty; fit again or restore it")
    return content


def _parsed(content: bytes) -> dict[str, Any]:
    """The JSON object in a file: no NaN, no field twice."""
    try:
        document = parse_json(content)
    except ValueError as error:
        raise BundleError(f"damaged: {error}; fit again or restore it") from error
    if not isinstance(document, dict):
        raise BundleError("is not a bundle: a JSON object is needed")
    return document


def _checked(document: dict[str, Any]) -> dict[str, Any]:
    """The document, its digest compared with its content.  Another format may count its digest in another way."""
    version = document.get("format_version")
    if version != FORMAT_VERSION:
        raise BundleError(
            f"format version {str(version)[:40]!r} is unknown, this program reads {FORMAT_VERSION}: use the wattprint that wrote it"
        )
    stated, found = document.get("digest"), digest_of(document)
    if not isinstance(stated, str):
        raise BundleError("has no digest; restore the file or fit again")
    if stated != found:
        raise BundleError(
            f"its content does not match its digest (content {found[:19]}…, stated {stated[:19]}…): it was edited or damaged; "
            "restore the file or fit again"
        )
    return document


def _first_not_finite(value: Any, at: str) -> str:
    """Where the first infinite number stands, "" where none does."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return at
    items: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        items = [(f"{at}.{key}" if at else str(key), item) for key, item in value.items()]
    elif isinstance(value, list):
        items = [(f"{at}[{i}]", item) for i, item in enumerate(value)]
    return next((found for place, item in items if (found := _first_not_finite(item, place))), "")


def _layout(value: Any, indent: int = 0) -> str:
    """JSON text for people and for `diff`: an object's fields and a table's rows on lines of their own, numbers side by side."""
    pad = " " * (indent + 1)
    if isinstance(value, dict) and value:
        lines = (f"{pad}{json.dumps(key)}: {_layout(item, indent + 1)}" for key, item in value.items())
        return "{\n" + ",\n".join(lines) + "\n" + " " * indent + "}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return "[\n" + ",\n".join(pad + _layout(item, indent + 1) for item in value) + "\n" + " " * indent + "]"
    return json.dumps(value, allow_nan=False)


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)

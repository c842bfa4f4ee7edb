"""Bundle files: reading, writing, digest, names.

A bundle is one JSON file, described by `schema/bundle-1.json`, readable without this package.  Its digest is
"sha256:" and the SHA-256 of the file's data as JSON with sorted keys, separators "," and ":", ASCII only, and the
shortest decimal that reproduces a float.  It leaves out the field `digest` and the provenance fields `created_utc` and
`commit`: two fits of the same data have the same digest, wherever and whenever they ran.
"""

import hashlib
import json
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from estimator.bundle.content import FORMAT, FORMAT_VERSION, Bundle, BundleFile, Content
from estimator.model.tier_records import PackedTier
from estimator.vocabulary.documents import JSON, Document, parse_json
from estimator.vocabulary.errors import BundleError, EstimatorError, require
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.gpu import GpuSpec, is_simulated_uuid
from estimator.vocabulary.reader import FaultError, plain, read
from estimator.vocabulary.regular_files import MOST_DATA_BYTES, read_regular
from estimator.vocabulary.resources import resource_folder, resource_names, user_folder
from estimator.vocabulary.specifications import document_of_gpu, gpu_from_document
from estimator.vocabulary.whole_file import write_whole

VARIABLE: Final = "WATTPRINT_BUNDLES"
"""Environment variable with the local store: a folder whose bundles can be loaded by name, before those of the package.  Its default is
`wattprint/bundles` in the user's data folder (XDG Base Directory Specification)."""

SUFFIX: Final = ".json"


NOT_DIGESTED: Final = ("created_utc", "commit")
"""Fields of the provenance that state when and from which source tree a fit ran; they are not part of its result."""


def store_folder() -> Path:
    """The store's folder; it need not exist.  Raises EstimatorError if its path cannot be determined."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    return user_folder("XDG_DATA_HOME", ".local/share") / "wattprint" / "bundles"


def stored_names() -> tuple[str, ...]:
    """Names of the bundles in the store, which are the names of their files; empty if the store cannot be read."""
    try:
        return tuple(path.name.removesuffix(SUFFIX) for path in store_folder().glob(f"*{SUFFIX}") if path.is_file())
    except (OSError, EstimatorError):
        return ()


def bundle_names() -> tuple[str, ...]:
    """Names of the installed bundles, sorted: those that come with the package, and those in the local store."""
    return tuple(sorted({*resource_names("bundles", ".json"), *stored_names()}))


def bundle_path(name_or_path: str | Path) -> Path:
    """The file of a bundle: a path (ends in `.json`, holds a separator, or exists) or the name of an installed bundle, the store's first.

    Raises BundleError for a name that is neither.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith(".json") or "/" in text or "\\" in text:
        return Path(name_or_path)
    if text in (names := bundle_names()):
        return (store_folder() if text in stored_names() else resource_folder("bundles")) / f"{text}{SUFFIX}"
    if text and "\0" not in text and Path(text).is_file():
        return Path(text)
    installed = f"installed: {', '.join(names)}" if names else "none is installed"
    raise BundleError(f"unknown bundle {text!r}; {installed}; or give a file")


def load_bundle(name_or_path: str | Path) -> Bundle:
    """Load and check a bundle, given the name of an installed one or a file.  Nothing in it is executed.

    Raises BundleError for a file that is missing, unreadable, damaged, edited, not a bundle or of another format.
    """
    require(name_or_path, (str, Path), "name_or_path", "the name of a bundle or its file")
    path = bundle_path(name_or_path)
    try:
        return bundle_from_document(_checked(parse_json(read_regular(path, MOST_DATA_BYTES))))
    except OSError as error:
        reason = error.strerror or str(error)
        raise BundleError(
            f"bundle {path}: cannot be read ({reason}); give another file, or one of those that 'estimate bundles' lists"
        ) from error
    except (BundleError, ValueError) as error:
        raise BundleError(f"bundle {path}: {error}; restore the file or fit again") from error


GPU_FIELD: Final = re.compile(r'"gpu":\s*(?=\{)')
POWER_FIELD: Final = '"event_energy_j":'


PRODUCTS_FIELD: Final = re.compile(r'"gemm\.linear\.(\w+)')


class BundleHead(NamedTuple):
    """What the choice of a bundle needs: the measured GPU, whether the bundle has power, and the formats of products with an own group."""

    gpu: GpuSpec
    power: bool
    formats: frozenset[str]


def head_of(bundle: Bundle) -> BundleHead:
    """The head of a bundle."""
    formats = (PRODUCTS_FIELD.match(f'"{group}') for group in bundle.groups)
    return BundleHead(bundle.gpu, bundle.power is not None, frozenset(found[1] for found in formats if found))


def bundle_heads(warn: Callable[[str], object] = warnings.warn) -> dict[str, BundleHead]:
    """Heads of the installed bundles of real boards by name, a fifth of the time of loading them; `warn` names unreadable ones."""
    found = {}
    stored = stored_names()
    for name in bundle_names():
        try:
            if name in stored:
                load_bundle(name)  # a file of the user's own may be damaged anywhere
            text = read_regular(bundle_path(name), MOST_DATA_BYTES).decode()
            field = GPU_FIELD.search(text)
            board = JSON.raw_decode(text, field.end())[0] if field else {}
            if not is_simulated_uuid(str(board.get("uuid"))):
                gpu = gpu_from_document(board.get("specification", {}), name)
                found[name] = BundleHead(gpu, POWER_FIELD in text, frozenset(PRODUCTS_FIELD.findall(text)))
        except (OSError, ValueError, RecursionError, EstimatorError) as error:
            warn(f"left out: {error}")
    return found


def save_bundle(bundle: Bundle, path: str | Path) -> Bundle:
    """Write a bundle atomically; returns it with its digest.

    Raises BundleError if the bundle breaks a rule of the format, UnwrittenError if the file cannot be written; then no file changes.
    """
    document = document_of(bundle)
    try:
        document["digest"] = digest_of(document)
        saved = bundle_from_document(document)
    except BundleError as error:
        raise BundleError(f"bundle {path}: {error}") from error
    write_whole(Path(path), f"{layout(document)}\n".encode("ascii"))
    return replace(bundle, digest=saved.digest)


def bundle_from_document(document: Document) -> Bundle:
    """The Bundle in plain data of the present format version; its digest is not checked.

    Raises BundleError, naming the keys, for a field that is missing, unknown, of the wrong kind, not finite or out of its range.
    """
    try:
        found = read(BundleFile, document)
    except FaultError as error:
        raise BundleError(str(error)) from error
    shared = {one.name: getattr(found, one.name) for one in fields(Content)}
    tiers = {group: PackedTier(tier) if isinstance(tier, str) else tier for group, tier in found.residuals.items()}
    shared["residuals"] = FrozenMapping(tiers)
    return Bundle(**shared, gpu=found.gpu.specification, gpu_uuid=found.gpu.uuid, clocks_mhz=found.clocks)


def document_of(bundle: Bundle) -> Document:
    """The plain data of a bundle, ready for JSON, in the present format version; the digest is copied from the bundle."""
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "gpu": {"name": bundle.gpu.name, "uuid": bundle.gpu_uuid, "specification": document_of_gpu(bundle.gpu)},
        **{one.name: plain(getattr(bundle, one.name)) for one in fields(Content)},
        "clocks": list(bundle.clocks_mhz),
    }


def digest_of(document: Document) -> str:
    """The digest of a bundle's plain data: of its content, not of its time and place of origin.

    Raises BundleError for a number that is not finite.
    """
    content = {key: value for key, value in document.items() if key != "digest"}
    origin = content.get("provenance")
    if isinstance(origin, dict):
        content["provenance"] = {key: value for key, value in origin.items() if key not in NOT_DIGESTED}
    try:
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except ValueError as error:
        raise BundleError(f"a number is not finite ({error})") from error
    return "sha256:" + hashlib.sha256(canonical.encode("ascii")).hexdigest()


def _checked(document: Any) -> Document:
    """The document, after its digest is compared with its content.  Another format may compute its digest in another way."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BundleError(f"is not a {FORMAT} file")
    version = document.get("format_version")
    if version != FORMAT_VERSION:
        raise BundleError(
            f"format version {str(version)[:40]!r} is unknown, this program reads {FORMAT_VERSION}; use the wattprint that wrote it"
        )
    stated, found = document.get("digest"), digest_of(document)
    if stated != found:
        raise BundleError(f"its content does not match its digest {str(stated)[:19]}…: it was edited or damaged")
    return document


def layout(value: Any, indent: int = 0) -> str:
    """JSON text for people and for `diff`: each member of an object or list has its own line, but numbers share one."""
    members = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    if not any(isinstance(item, dict | list | str) for item in members):
        return json.dumps(value, allow_nan=False)
    keys = [f"{json.dumps(key)}: " for key in value] if isinstance(value, dict) else [""] * len(members)
    pad = " " * indent
    lines = ",\n".join(f"{pad} {key}{layout(item, indent + 1)}" for key, item in zip(keys, members, strict=True))
    return "{0}\n{2}\n{3}{1}".format(*("{}" if isinstance(value, dict) else "[]"), lines, pad)


def told_apart(bundles: Sequence[Bundle], given: Sequence[str] = ()) -> list[Bundle]:
    """The bundles; where different ones share a name and version, the entry of `given`, else the digest, is appended to the version.

    given: the requested names or files, one for each bundle, or empty.
    """
    digests = {(bundle.name, bundle.version, bundle.digest) for bundle in bundles}
    shared = Counter((name, version) for name, version, _ in digests)
    words = given or [bundle.digest.removeprefix("sha256:")[:8] for bundle in bundles]
    return [
        replace(bundle, version=f"{bundle.version} ({word})") if word and shared[bundle.name, bundle.version] > 1 else bundle
        for bundle, word in zip(bundles, words, strict=True)
    ]

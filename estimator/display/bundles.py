"""Bundles for people and programs: a list of bundles, and the card of one: its data, its errors and its range."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Final

from estimator.bundle.content import Bundle
from estimator.bundle.files import MAX_FILE_BYTES, bundle_names, bundle_path, load_bundle
from estimator.display.text import Document, document_text, printable, rows_table
from estimator.uncertainty.sources import unfitted_groups
from estimator.vocabulary.errors import BundleError
from estimator.vocabulary.regular_files import read_regular

ROW: Final = ("name", "version", "gpu", "simulated", "families", "power", "clocks_mhz", "created_utc", "digest", "path", "error")


def listed_bundles(given: Sequence[str]) -> list[Document]:
    """A row of JSON data for every installed bundle and every bundle given by name or file.

    An unreadable one has an `error`.
    """
    return [dict.fromkeys(ROW) | _listed(name) for name in dict.fromkeys([*bundle_names(), *given])]


def _listed(name: str) -> Document:
    row: Document = {"name": name}
    try:
        path = bundle_path(name)
        row["path"] = str(path)
        bundle = load_bundle(name)
    except BundleError as error:
        return row | {"error": str(error)}
    return row | {
        "name": name if name in bundle_names() else bundle.name,  # a stored file may have another name
        "version": bundle.version,
        "gpu": bundle.gpu.name,
        "simulated": bundle.simulated,
        "families": sorted({key.partition(".")[0] for key, group in bundle.groups.items() if group.rows > 0}),
        "power": bundle.power is not None,
        "clocks_mhz": list(bundle.clocks_mhz),
        "created_utc": bundle.provenance.created_utc,
        "digest": bundle.digest,
    }


def bundle_table(rows: Sequence[Document]) -> str:
    """A table of the readable bundles for people."""
    shown = [name for name in ROW if name not in ("created_utc", "digest", "path", "error")]
    readable = [{name: row[name] for name in shown} for row in rows if row["error"] is None]
    return rows_table(readable) if readable else ""


# Cards ----------------------------------------------------------------------------------------------------------------


def card_document(bundle: Bundle) -> Document:
    """The card as JSON data; errors in percent, ranges of shapes in the units of the workload file."""
    priors = set(unfitted_groups(bundle, bundle.groups))
    return {
        "name": bundle.name,
        "version": bundle.version,
        "digest": bundle.digest,
        "gpu": bundle.gpu.name,
        "simulated": bundle.simulated,
        "datasets": list(map(asdict, bundle.provenance.datasets)),
        "clocks_mhz": bundle.clocks_mhz,
        "errors": bundle.errors,
        "groups": {
            name: {"rows": group.rows, "from": "prior" if name in priors else "data", "seen": _seen(bundle, name)}
            for name, group in bundle.groups.items()
        },
        "notes": bundle.notes,
    }


def card_text(name: str) -> str:
    """The card for people: the file beside the bundle, if it has the bundle's digest, with ranges of shapes; else all of the JSON data."""
    bundle, path = load_bundle(name), bundle_path(name)
    card = card_document(bundle)
    with suppress(OSError, ValueError):
        text = read_regular(path.with_suffix(".md"), MAX_FILE_BYTES).decode()
        if bundle.digest in text:
            return "".join(f"{printable(line)}\n" for line in (*text.splitlines(), "")) + document_text({"groups": card["groups"]})
    return document_text(card)


def _seen(bundle: Bundle, group: str) -> dict[str, tuple[float, float]]:
    """Ranges of the fitted shapes of a group and its narrower groups."""
    found: dict[str, tuple[float, float]] = {}
    for name, ranges in bundle.domain.items():
        if name == group or name.startswith(f"{group}."):
            for field, (low, high) in ranges.items():
                least, most = found.get(field, (low, high))
                found[field] = min(low, least), max(high, most)
    return found

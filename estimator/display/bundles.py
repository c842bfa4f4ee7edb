"""What bundles there are: rows about installed and given ones, as a table or JSON."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from estimator.bundles.files import bundle_names, bundle_path, load_bundle
from estimator.bundles.store import store_folder
from estimator.display.estimates import aligned
from estimator.errors import BundleError
from estimator.resources import resource_folder


def bundle_rows(given: Sequence[str]) -> list[dict[str, Any]]:
    """A row for every installed bundle and for every one given by name or file; a bundle that cannot be read has an `error`."""
    return [_row(name) for name in dict.fromkeys([*bundle_names(), *given])]


def _row(name: str) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(
        ("name", "version", "gpu", "simulated", "families", "power", "clocks_mhz", "created_utc", "digest", "kept", "path", "error")
    )
    try:
        path = bundle_path(name)
        row |= {"path": str(path), "kept": _kept(path)}
        bundle = load_bundle(name)
    except BundleError as error:
        return {**row, "name": name, "error": str(error)}
    return {
        **row,
        "name": name if row["kept"] == "store" else bundle.name,  # as commands take it, should somebody have named the file otherwise
        "version": bundle.version,
        "gpu": bundle.gpu.name,
        "simulated": bundle.simulated,
        "families": sorted({key.partition(".")[0] for key, group in bundle.groups.items() if group.rows > 0}),
        "power": bundle.power is not None,
        "clocks_mhz": list(bundle.clocks_mhz),
        "created_utc": bundle.provenance.created_utc,
        "digest": bundle.digest,
    }


def _kept(path: Path) -> str:
    """Where a bundle's file lies: in the package, in the local store, or elsewhere."""
    places = {"shipped": resource_folder("bundles"), "store": store_folder()}
    return next((place for place, folder in places.items() if path.parent == folder), "file")


def rows_json(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as one JSON list."""
    return json.dumps(rows, indent=1) + "\n"


def bundle_table(rows: Sequence[dict[str, Any]], verbose: bool) -> str:
    """The rows for people; with `verbose` also digest and file."""
    sound = [row for row in rows if row["error"] is None]
    if not sound:
        return "no bundle is installed; `fit` makes one from a dataset\n" if not rows else ""
    header = ["bundle", "version", "kept", "GPU", "fitted", "clocks MHz", "power", "families"]
    lines = [
        [
            row["name"],
            row["version"],
            row["kept"],
            row["gpu"] + (" (simulated)" if row["simulated"] else ""),
            row["created_utc"][:10],
            "{:g}-{:g}".format(*row["clocks_mhz"]),
            "yes" if row["power"] else "no",
            " ".join(row["families"]),
            *([row["digest"], row["path"]] if verbose else []),
        ]
        for row in sound
    ]
    full = header + (["digest", "file"] if verbose else [])
    return aligned([full, *lines], left_columns=range(len(full)))

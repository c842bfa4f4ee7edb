"""Bundles for people and programs: a list of them, and the card of one: what it was fitted on, how well, and for what it holds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from estimator.bundle.content import Bundle
from estimator.bundle.files import bundle_names, bundle_path, load_bundle, store_folder
from estimator.display.text import aligned, known
from estimator.uncertainty.sources import unfitted_groups
from estimator.vocabulary.errors import BundleError
from estimator.vocabulary.resources import resource_folder

ROW: Final = ("name", "version", "gpu", "simulated", "families", "power", "clocks_mhz", "created_utc", "digest", "kept", "path", "error")


def bundle_rows(given: Sequence[str]) -> list[dict[str, Any]]:
    """A row for every installed bundle and for every one given by name or file; a bundle that cannot be read has an `error`."""
    return [_row(name) for name in dict.fromkeys([*bundle_names(), *given])]


def _row(name: str) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(ROW)
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


def bundle_table(rows: Sequence[dict[str, Any]], *, verbose: bool) -> str:
    """The rows for people; verbose: also digest and file."""
    sound = [row for row in rows if row["error"] is None]
    if not sound:
        return "" if rows else "no bundle is installed; `fit` makes one from a dataset\n"
    table = [["bundle", "version", "kept", "GPU", "fitted", "clocks MHz", "power", "families", *(["digest", "file"] if verbose else [])]]
    for row in sound:
        gpu = row["gpu"] + (" (simulated)" if row["simulated"] else "")
        own = [row["name"], row["version"], row["kept"], gpu, row["created_utc"][:10], "{:g}-{:g}".format(*row["clocks_mhz"])]
        more = [row["digest"], row["path"]] if verbose else []
        table.append([*own, "yes" if row["power"] else "no", " ".join(row["families"]), *more])
    return aligned(table, left_columns=range(len(table[0])))


# Cards ----------------------------------------------------------------------------------------------------------------


def card_document(bundle: Bundle) -> dict[str, Any]:
    """The card as JSON data; errors in percent, ranges of shapes in the units of the workload file."""
    origin, gpu, power = bundle.provenance, bundle.gpu, bundle.power
    priors = set(unfitted_groups(bundle, bundle.groups))
    stated = bundle.uncertainty.get("latency", {})
    families = stated.get("families", ()) if isinstance(stated, Mapping) else ()
    fields = ("rows", "reference_clock_mhz", "voltage_exponent", "capacitance_f", "capacitance_std_f", "busy_w", "active_w")
    document = {
        "name": bundle.name,
        "version": bundle.version,
        "digest": bundle.digest,
        "gpu": {name: getattr(gpu, name) for name in ("name", "architecture", "num_sms", "power_limit_w")},
        "simulated": bundle.simulated,
        "created_utc": origin.created_utc,
        "wattprint_version": origin.wattprint_version,
        "commit": origin.commit,
        "datasets": [
            {name: getattr(one, name) for name in ("name", "kind", "sha256", "rows", "used", "rejected")} for one in origin.datasets
        ],
        "clocks_mhz": bundle.clocks_mhz,
        "host_launch_s": bundle.host.launch_s,
        "host_source": bundle.host.source,
        "errors": bundle.errors,
        "model_families": sorted({name for name in families if isinstance(name, str)}),
        "groups": {
            name: {"rows": group.rows, "from": "prior" if name in priors else "data", "seen": _seen(bundle, name)}
            for name, group in bundle.groups.items()
        },
        "power": None if power is None else {name: getattr(power, name) for name in fields},
        "instruction_energies": len(bundle.instruction_energies.get("terms", ())),
        "block_models": sorted(bundle.block_models),
        "notes": bundle.notes,
    }
    plain: dict[str, Any] = _plain(document)
    return plain


def _plain(value: Any) -> Any:
    """Frozen data as JSON's own types; numbers that are not finite are null."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, tuple | list) else known(value)


def _seen(bundle: Bundle, group: str) -> dict[str, tuple[float, float]]:
    """Ranges of the shapes that served a group or a narrower group of it."""
    found: dict[str, tuple[float, float]] = {}
    for name, ranges in bundle.domain.items():
        if name == group or name.startswith(f"{group}."):
            for field, (low, high) in ranges.items():
                least, most = found.get(field, (low, high))
                found[field] = min(low, least), max(high, most)
    return found

"""Bundles for people and programs: a list of bundles, and the card of one: its data, its errors and its range."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from estimator.bundle.content import Bundle
from estimator.bundle.files import bundle_names, bundle_path, load_bundle, store_folder
from estimator.display.text import Document, aligned, cell_text
from estimator.uncertainty.sources import unfitted_groups
from estimator.vocabulary.errors import BundleError
from estimator.vocabulary.resources import resource_folder

ROW: Final = ("name", "version", "gpu", "simulated", "families", "power", "clocks_mhz", "created_utc", "digest", "kept", "path", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A bundle under the name that commands accept, with the path of its file, or the error that occurs when it is read."""

    name: str
    path: Path | None = None
    bundle: Bundle | None = None
    error: str | None = None

    @property
    def kept(self) -> str | None:
        """The place of the file: the package, the local store, or elsewhere."""
        places = {resource_folder("bundles"): "shipped", store_folder(): "store"}
        return None if self.path is None else places.get(self.path.parent, "file")

    def document(self) -> Document:
        """The row as JSON data."""
        row: Document = dict.fromkeys(ROW)
        row |= {"name": self.name, "kept": self.kept, "path": self.path and str(self.path), "error": self.error}
        return row if self.bundle is None else row | _facts(self.bundle)


def listed_bundles(given: Sequence[str]) -> list[Listed]:
    """Every installed bundle and every bundle given by name or file; an unreadable one has an `error`."""
    return [_listed(name) for name in dict.fromkeys([*bundle_names(), *given])]


def _listed(name: str) -> Listed:
    path = None
    try:
        path = bundle_path(name)
        bundle = load_bundle(name)
    except BundleError as error:
        return Listed(name=name, path=path, error=str(error))
    found = Listed(name=name, path=path, bundle=bundle)
    return found if found.kept == "store" else replace(found, name=bundle.name)  # a stored file may have another name


def _facts(bundle: Bundle) -> Document:
    return {
        "version": bundle.version,
        "gpu": bundle.gpu.name,
        "simulated": bundle.simulated,
        "families": sorted({key.partition(".")[0] for key, group in bundle.groups.items() if group.rows > 0}),
        "power": bundle.power is not None,
        "clocks_mhz": list(bundle.clocks_mhz),
        "created_utc": bundle.provenance.created_utc,
        "digest": bundle.digest,
    }


def bundle_table(rows: Sequence[Listed], *, verbose: bool) -> str:
    """A table of the bundles for people; verbose: also digest and file."""
    if not rows:
        return "no bundle is installed; `fit` makes one from a dataset\n"
    table = [["bundle", "version", "kept", "GPU", "fitted", "clocks MHz", "power", "families", *(["digest", "file"] if verbose else [])]]
    for row in rows:
        if (bundle := row.bundle) is not None:
            gpu = bundle.gpu.name + " (simulated)" * bundle.simulated
            own = [
                row.name,
                bundle.version,
                row.kept or "",
                gpu,
                bundle.provenance.created_utc[:10],
                "{:g}-{:g}".format(*bundle.clocks_mhz),
            ]
            own += ["yes" if bundle.power is not None else "no", cell_text(_facts(bundle)["families"]).replace(",", "")]
            table.append([*own, bundle.digest, str(row.path)] if verbose else own)
    return aligned(table, left_columns=range(len(table[0]))) if len(table) > 1 else ""


# Cards ----------------------------------------------------------------------------------------------------------------


def card_document(bundle: Bundle) -> Document:
    """The card as JSON data; errors in percent, ranges of shapes in the units of the workload file."""
    origin, gpu, power = bundle.provenance, bundle.gpu, bundle.power
    priors = set(unfitted_groups(bundle, bundle.groups))
    stated = bundle.uncertainty.get("latency", {})
    families = stated.get("families", ()) if isinstance(stated, Mapping) else ()
    fields = ("rows", "reference_clock_mhz", "voltage_exponent", "capacitance_f", "capacitance_std_f", "busy_w", "active_w")
    return {
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


def _seen(bundle: Bundle, group: str) -> dict[str, tuple[float, float]]:
    """Ranges of the fitted shapes of a group and its narrower groups."""
    found: dict[str, tuple[float, float]] = {}
    for name, ranges in bundle.domain.items():
        if name == group or name.startswith(f"{group}."):
            for field, (low, high) in ranges.items():
                least, most = found.get(field, (low, high))
                found[field] = min(low, least), max(high, most)
    return found

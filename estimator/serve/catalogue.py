"""Choices of the page: workloads, bundles and GPUs.

Every entry has a key that this program assigns.  A browser names keys, never files, so that no path from it reaches the file system.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from itertools import count
from pathlib import Path
from typing import TypeVar

from estimator.bundle.content import Bundle
from estimator.bundle.files import bundle_names, load_bundle
from estimator.formats import read_workload, workload_from_bytes
from estimator.serve.local_site import RequestError
from estimator.transforms.rescaling import Sizes, sizes_in_name
from estimator.vocabulary.errors import BundleError
from estimator.vocabulary.resources import resource_folder
from estimator.vocabulary.specifications import gpu_names
from estimator.vocabulary.workload import Workload

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A workload that can be chosen; `source` is "given" at the start, "example", or "loaded" from the page."""

    key: str
    source: str
    workload: Workload

    @property
    def at(self) -> Sizes | None:
        """The sizes for which the workload was written, None if unknown."""
        return sizes_in_name(self.workload.name)


@dataclass(kw_only=True)
class Catalogue:
    """Workloads, bundles and GPUs by key.  Several threads may use it at once: entries are only ever added."""

    workloads: dict[str, Entry]
    bundles: Mapping[str, Bundle]
    gpus: tuple[str, ...]
    numbers: "count[int]" = field(default_factory=count)

    def workload(self, key: str) -> Entry:
        """The entry of a key.  Raises RequestError for an unknown one."""
        return _found(self.workloads, key, "workload")

    def bundle(self, key: str) -> Bundle:
        """The bundle of a key.  Raises RequestError for an unknown one."""
        return _found(self.bundles, key, "bundle")

    def add(self, name: str, content: bytes) -> Entry:
        """Keep a workload from file content that the page sent; `name` is only a label.  Raises WorkloadError."""
        label = Path(name.replace("\\", "/")).name or "workload.json"
        entry = _entry("loaded", next(self.numbers), workload_from_bytes(content, Path(label)))
        self.workloads[entry.key] = entry
        return entry


def _found(entries: Mapping[str, T], key: str, what: str) -> T:
    if key not in entries:
        raise RequestError(f"unknown {what}; load the page again", HTTPStatus.NOT_FOUND)
    return entries[key]


def open_catalogue(files: Sequence[str], bundles: Sequence[str]) -> Catalogue:
    """A catalogue of the named workload files and bundles, then the shipped examples and the installed bundles.

    Raises WorkloadError and BundleError for a named file that cannot be read, and BundleError if there is no bundle.
    """
    given: dict[str, Workload] = {}
    for path in dict.fromkeys(files):
        workload = read_workload(path)
        if workload.name in given:
            workload = replace(workload, name=f"{workload.name} ({path})")
        given[workload.name] = workload
    examples = map(read_workload, sorted(resource_folder("examples").glob("*.json")))
    found = {bundle.digest: bundle for bundle in map(load_bundle, dict.fromkeys(bundles))}
    for name in bundle_names():
        with suppress(BundleError):  # `estimate bundles` reports the error
            bundle = load_bundle(name)
            found.setdefault(bundle.digest, bundle)
    if not found:
        raise BundleError("no bundle is installed; give one with --bundle FILE (`fit` makes one from a dataset)")
    sources = {"given": given.values(), "example": examples}
    entries = [_entry(source, number, one) for source, workloads in sources.items() for number, one in enumerate(workloads)]
    return Catalogue(
        workloads={entry.key: entry for entry in entries},
        bundles={f"bundle-{number}": bundle for number, bundle in enumerate(found.values())},
        gpus=gpu_names(),
    )


def _entry(source: str, number: int, workload: Workload) -> Entry:
    return Entry(key=f"{source}-{number}", source=source, workload=workload)

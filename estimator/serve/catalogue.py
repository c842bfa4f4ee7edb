"""What the page can choose from: workloads, bundles and GPUs.

Everything has a key that this program gave it.  A browser names keys, never files, so that no path of its reaches the file system.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from threading import Lock
from typing import Final

from estimator.bundle.content import Bundle
from estimator.bundle.files import bundle_names, load_bundle
from estimator.formats import read_workload, workload_from_bytes
from estimator.serve.local_site import RequestError
from estimator.transforms.rescaling import Sizes, sizes_in_name
from estimator.vocabulary.errors import BundleError
from estimator.vocabulary.resources import resource_folder
from estimator.vocabulary.specifications import gpu_names
from estimator.vocabulary.workload import Workload

MOST_LOADED: Final = 20
"""Workloads from the page that are kept; another one takes the place of the oldest."""

MOST_KERNELS: Final = 2000
"""Different kernels of a workload that the page takes: a hundred clocks of them are computed within a second."""

LONGEST_NAME: Final = 120
"""Characters of a file's name that are kept as a label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A workload that can be chosen.

    source    "given" at the start, "example", or "loaded" from the page
    at        the sizes for which it was written down, None where unknown
    """

    key: str
    source: str
    workload: Workload
    at: Sizes | None


class Catalogue:
    """Workloads, bundles and GPUs by key.  May be used by several threads at once; only loaded workloads ever change."""

    def __init__(self, workloads: Sequence[Entry], bundles: Mapping[str, Bundle], gpus: Sequence[str]) -> None:
        self._entries = {entry.key: entry for entry in workloads}
        self.bundles = dict(bundles)
        self.gpus = tuple(gpus)
        self._loaded: list[str] = []
        self._count = 0
        self._lock = Lock()

    def workloads(self) -> list[Entry]:
        """All entries: given ones, examples, loaded ones."""
        with self._lock:
            return list(self._entries.values())

    def workload(self, key: str) -> Entry:
        """The entry of a key.  Raises RequestError for one that is unknown, or was given up for newer ones."""
        with self._lock:
            if key not in self._entries:
                raise RequestError("this workload is no longer kept; load its file again", HTTPStatus.NOT_FOUND)
            if key in self._loaded:
                self._loaded.append(self._loaded.pop(self._loaded.index(key)))
            return self._entries[key]

    def bundle(self, key: str) -> Bundle:
        """The bundle of a key.  Raises RequestError for an unknown one."""
        if key not in self.bundles:
            raise RequestError("unknown bundle; load the page again", HTTPStatus.NOT_FOUND)
        return self.bundles[key]

    def add(self, name: str, content: bytes) -> Entry:
        """Keep a workload whose file's content came from the page; `name` is a label only.

        Raises WorkloadError for content that is no workload, RequestError for one of more than MOST_KERNELS different kernels.
        """
        workload = _checked(workload_from_bytes(content, Path(_label(name))))
        with self._lock:
            self._count += 1
            entry = _entry("loaded", self._count, workload)
            self._entries[entry.key] = entry
            self._loaded.append(entry.key)
            if len(self._loaded) > MOST_LOADED:
                del self._entries[self._loaded.pop(0)]
        return entry


def open_catalogue(files: Sequence[str], bundles: Sequence[str]) -> Catalogue:
    """Workload files and bundles that are named, then the shipped examples and the installed bundles.

    Raises WorkloadError and BundleError for what is named and cannot be read, RequestError for a workload that is too large, and
    BundleError where there is no bundle at all.
    """
    given: dict[str, Workload] = {}
    for path in dict.fromkeys(files):
        workload = _checked(read_workload(path))
        if workload.name in given:
            workload = replace(workload, name=f"{workload.name} ({path})")
        given[workload.name] = workload
    examples = map(read_workload, sorted(resource_folder("examples").glob("*.json")))
    found = {bundle.digest: bundle for bundle in map(load_bundle, dict.fromkeys(bundles))}
    for name in bundle_names():
        with suppress(BundleError):  # `estimate bundles` says what is wrong with it
            bundle = load_bundle(name)
            found.setdefault(bundle.digest, bundle)
    if not found:
        raise BundleError("no bundle is installed; give one with --bundle FILE (`fit` makes one from a dataset)")
    sources = {"given": given.values(), "example": examples}
    entries = [_entry(source, number, one) for source, workloads in sources.items() for number, one in enumerate(workloads)]
    return Catalogue(entries, {f"bundle-{number}": bundle for number, bundle in enumerate(found.values())}, gpu_names())


def _entry(source: str, number: int, workload: Workload) -> Entry:
    return Entry(key=f"{source}-{number}", source=source, workload=workload, at=sizes_in_name(workload.name))


def _checked(workload: Workload) -> Workload:
    """The workload, if the page can take it.  Raises RequestError."""
    kernels = len(workload.operators)
    if kernels > MOST_KERNELS:
        raise RequestError(
            f"{workload.name}: {kernels} different kernels; the page takes {MOST_KERNELS}, `estimate` on the command line any number",
            HTTPStatus.UNPROCESSABLE_ENTITY,
        )
    return workload


def _label(name: str) -> str:
    """The last part of a file's name, printable and short; it names no file here."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    plain = "".join(character if character.isprintable() else "?" for character in last)[:LONGEST_NAME].strip(". ")
    return plain or "workload.json"

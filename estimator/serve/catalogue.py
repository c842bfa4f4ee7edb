"""What the page can choose from: workloads, bundles and GPUs.

Everything has a key that this program gave it.  A browser names keys, never files, so that no path of its reaches the file system.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from threading import Lock
from typing import Final

from estimator.bundles.content import Bundle
from estimator.bundles.files import bundle_names, load_bundle
from estimator.errors import BundleError
from estimator.formats import read_workload, workload_from_text
from estimator.forms.rescaling import Sizes, known_sizes
from estimator.local_site import RequestError
from estimator.resources import resource_folder
from estimator.specifications import gpu_names
from estimator.workload import Workload

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
        self._fixed = {entry.key: entry for entry in workloads}
        self.bundles = dict(bundles)
        self.gpus = tuple(gpus)
        self._loaded: OrderedDict[str, Entry] = OrderedDict()
        self._count = 0
        self._lock = Lock()

    def workloads(self) -> list[Entry]:
        """All entries: given ones, examples, loaded ones."""
        with self._lock:
            return [*self._fixed.values(), *self._loaded.values()]

    def workload(self, key: str) -> Entry:
        """The entry of a key.  Raises RequestError for one that is unknown, or was given up for newer ones."""
        with self._lock:
            entry = self._fixed.get(key) or self._loaded.get(key)
            if entry is not None and key in self._loaded:
                self._loaded.move_to_end(key)
        if entry is None:
            raise RequestError("this workload is no longer kept; load its file again", HTTPStatus.NOT_FOUND)
        return entry

    def bundle(self, key: str) -> Bundle:
        """The bundle of a key.  Raises RequestError for an unknown one."""
        if key not in self.bundles:
            raise RequestError("unknown bundle; load the page again", HTTPStatus.NOT_FOUND)
        return self.bundles[key]

    def add(self, name: str, content: bytes) -> Entry:
        """Keep a workload whose file's content came from the page; `name` is a label only.

        Raises WorkloadError for content that is no workload, RequestError for one of more than MOST_KERNELS different kernels.
        """
        label = Path(_label(name))
        try:
            text = content.decode("utf-8-sig").strip()
        except UnicodeDecodeError as error:
            raise RequestError(f"{label}: not a text file (byte {error.start} is not UTF-8); a workload file is JSON") from error
        if not text:
            raise RequestError(f"{label}: the file is empty; a workload file is JSON")
        workload = checked(workload_from_text(text, label))
        with self._lock:
            self._count += 1
            entry = Entry(key=f"loaded-{self._count}", source="loaded", workload=workload, at=known_sizes(workload))
            self._loaded[entry.key] = entry
            while len(self._loaded) > MOST_LOADED:
                self._loaded.popitem(last=False)
        return entry


def open_catalogue(files: Sequence[str], bundles: Sequence[str]) -> Catalogue:
    """Workload files and bundles that are named, then the shipped examples and the installed bundles.

    Raises WorkloadError and BundleError for what is named and cannot be read, RequestError for a workload that is too large, and
    BundleError where there is no bundle at all.
    """
    entries = [
        Entry(key=f"given-{number}", source="given", workload=workload, at=known_sizes(workload))
        for number, workload in enumerate(_named_workloads(files))
    ]
    entries += _examples()
    loaded = [load_bundle(name) for name in dict.fromkeys(bundles)]
    named = {bundle.digest for bundle in loaded}
    loaded += [bundle for bundle in _installed() if bundle.digest not in named]
    if not loaded:
        raise BundleError("no bundle is installed; give one with --bundle FILE (`fit` makes one from a dataset)")
    return Catalogue(entries, {f"bundle-{number}": bundle for number, bundle in enumerate(loaded)}, gpu_names())


def checked(workload: Workload) -> Workload:
    """The workload, if the page can take it.  Raises RequestError."""
    kernels = len(workload.operators)
    if kernels > MOST_KERNELS:
        raise RequestError(
            f"{workload.name}: {kernels} different kernels; the page takes {MOST_KERNELS}, `estimate` on the command line any number",
            HTTPStatus.UNPROCESSABLE_ENTITY,
        )
    return workload


def _named_workloads(files: Sequence[str]) -> list[Workload]:
    found: list[Workload] = []
    for path in dict.fromkeys(files):
        workload = checked(read_workload(path))
        if any(other.name == workload.name for other in found):
            workload = replace(workload, name=f"{workload.name} ({path})")
        found.append(workload)
    return found


def _examples() -> list[Entry]:
    paths = sorted(resource_folder("examples").glob("*.json"))
    workloads = [read_workload(path) for path in paths]
    return [
        Entry(key=f"example-{number}", source="example", workload=workload, at=known_sizes(workload))
        for number, workload in enumerate(workloads)
    ]


def _installed() -> list[Bundle]:
    """Installed bundles that can be read; `estimate bundles` says what is wrong with the others."""
    found = []
    for name in bundle_names():
        try:
            found.append(load_bundle(name))
        except BundleError:
            continue
    return found


def _label(name: str) -> str:
    """The last part of a file's name, printable and short; it names no file here."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    plain = "".join(character if character.isprintable() else "?" for character in last)[:LONGEST_NAME].strip(". ")
    return plain or "workload.json"

"""Choices of the page, also as JSON data: workloads, bundles and GPUs, and the sizes and forms of a workload.

Every entry has a key that this program assigns.  A browser names keys, never files, so that no path from it reaches the file system.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from itertools import count
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from estimator.bundle.content import Bundle, HostCost
from estimator.bundle.files import bundle_names, head_of, load_bundle, told_apart
from estimator.commands.combinations import MICROSECONDS
from estimator.display.text import Document
from estimator.formats import read_workload, workload_from_bytes
from estimator.serve.local_site import RequestError
from estimator.serving.costs import is_served
from estimator.serving.engines import engine_names
from estimator.tracing.models import model_names
from estimator.transforms.rescaling import Sizes, sizes_in_name
from estimator.transforms.rewriting import ATTENTION_FORMS
from estimator.uncertainty.laboratory import unknown_host
from estimator.uncertainty.nearest import nearest_bundle
from estimator.vocabulary.errors import BundleError
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT
from estimator.vocabulary.resources import resource_folder
from estimator.vocabulary.specifications import gpu_names, load_gpu
from estimator.vocabulary.workload import Workload

T = TypeVar("T")


FIRST: Final = "h100-sxm"
"""The bundle with which the page begins: it has the kernels of the first example."""

CANDIDATES: Final = {
    "batch": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256),
    "sequence": (16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192),
}
"""Values of the sliders, in addition to the workload's own."""

SIZES_UNKNOWN: Final = (
    "The file does not tell for which batch and sequence it was written; say it under “Written for”, or name the file so (…_b8_s512.json)."
)
NO_SEQUENCE: Final = "The workload has no sequence, or it is not stated under “Written for”."


@dataclass(kw_only=True)
class Catalogue:
    """Workloads, bundles and GPUs by key, and models and engines that can be served.

    Several threads may use it at once: workloads are only ever added.

    The key of a workload begins with its source: "given" at the start, "example", or "loaded" from the page.
    """

    workloads: dict[str, Workload]
    bundles: Mapping[str, Bundle]
    gpus: Mapping[str, GpuSpec]
    models: tuple[str, ...]
    engines: tuple[str, ...]
    numbers: "count[int]" = field(default_factory=count)

    def workload(self, key: str) -> Workload:
        """The workload of a key.  Raises RequestError for an unknown one."""
        return _found(self.workloads, key, "workload")

    def bundle(self, key: str) -> Bundle:
        """The bundle of a key.  Raises RequestError for an unknown one."""
        return _found(self.bundles, key, "bundle")

    def add(self, name: str, content: bytes) -> Document:
        """Keep a workload from file content that the page sent; `name` is only a label.  Raises WorkloadError."""
        label = Path(name.replace("\\", "/")).name or "workload.json"
        key = f"loaded-{next(self.numbers)}"
        self.workloads[key] = workload_from_bytes(content, Path(label))
        return _entry(key, self.workloads[key])

    def choices(self, most_bytes: int) -> Document:
        """Workloads, bundles with the clocks of their GPUs, all GPUs with theirs and the nearest bundle; most_bytes: the largest file."""
        return {
            "workloads": [_entry(key, workload) for key, workload in list(self.workloads.items())],
            "bundles": [
                {
                    "key": key,
                    "name": f"{bundle.name} {bundle.version}",
                    "simulated": bundle.simulated,
                    "fitted_clocks_mhz": bundle.clocks_mhz,
                    **_board(bundle.gpu, bundle.host),
                }
                for key, bundle in self.bundles.items()
            ],
            "gpus": [{**_board(gpu, unknown_host(gpu)), "gpu": name, "bundle": self.nearest(gpu)} for name, gpu in self.gpus.items()],
            "models": self.models,
            "engines": self.engines,
            "most_bytes": most_bytes,
        }

    def nearest(self, gpu: GpuSpec, formats: Iterable[str] = (), *, served: bool = False) -> str:
        """The key of the bundle, as `nearest_bundle` chooses; of a simulated board only where no other is open."""
        real = {key: bundle for key, bundle in self.bundles.items() if not bundle.simulated}
        return nearest_bundle(gpu, {key: head_of(bundle) for key, bundle in (real or self.bundles).items()}, formats, served=served)

    def described(self, key: str, stated: Sizes | None) -> Document:
        """Content of a workload, and the sizes and forms that can be asked for; stated: its sizes by the user, None for the known ones."""
        workload = self.workload(key)
        at = stated or sizes_in_name(workload.name)
        return {
            **_entry(key, workload),
            "kernels": len(workload.operators),
            "launches": sum(workload.counts),
            "at": None if at is None else {"batch": at.batch, "sequence": at.sequence or None},
            **{name: _slider(at, name) for name in CANDIDATES},
            "attention": ATTENTION_FORMS,
            "precision": list(BYTES_PER_ELEMENT),
        }


def _entry(key: str, workload: Workload) -> Document:
    return {"key": key, "name": workload.name, "source": key.partition("-")[0]}


def _slider(at: Sizes | None, name: str) -> Document:
    """Values of a size, the workload's own, and the reason why there are none."""
    own: int = getattr(at, name, 0)
    if not own:
        return {"values": [], "value": None, "reason": NO_SEQUENCE if at else SIZES_UNKNOWN}
    return {"values": sorted({own, *CANDIDATES[name]}), "value": own, "reason": ""}


def clocks_of(gpu: GpuSpec) -> list[float]:
    """The clocks of the slider: all that the GPU can lock, and its usual one [MHz]."""
    clocks: list[float] = np.union1d(gpu.clocks_mhz(), [gpu.usual_clock_mhz]).tolist()
    return clocks


def _board(gpu: GpuSpec, host: HostCost) -> Document:
    limits = {"usual_clock_mhz": gpu.usual_clock_mhz, "power_limit_w": gpu.power_limit_w}
    return {"gpu": gpu.name, "clocks_mhz": clocks_of(gpu), **limits, "host_launch_us": round(host.launch_s / MICROSECONDS, 1)}


def _found(entries: Mapping[str, T], key: str, what: str) -> T:
    if key not in entries:
        raise RequestError(f"unknown {what}; load the page again", HTTPStatus.NOT_FOUND)
    return entries[key]


def open_catalogue(files: Sequence[str], bundles: Sequence[str], gpus: Sequence[str]) -> Catalogue:
    """A catalogue of the named workload files, bundles and GPUs, and of the shipped examples, installed bundles and known GPUs.

    Raises EstimatorError for a named file that cannot be read, and BundleError if there is no bundle.
    """
    given: dict[str, Workload] = {}
    for path in dict.fromkeys(files):
        workload = read_workload(path)
        if workload.name in given:
            workload = replace(workload, name=f"{workload.name} ({path})")
        given[workload.name] = workload
    examples = map(read_workload, sorted(resource_folder("examples").glob("*.json")))
    found = {bundle.digest: bundle for bundle in map(load_bundle, dict.fromkeys(bundles))}
    for name in sorted(bundle_names(), key=lambda name: name != FIRST):
        with suppress(BundleError):  # `estimate bundles` reports the error
            bundle = load_bundle(name)
            found.setdefault(bundle.digest, bundle)
    if not found:
        raise BundleError("no bundle is installed; give one with --bundle FILE (`fit` makes one from a dataset)")
    sources = {"given": given.values(), "example": examples}
    return Catalogue(
        workloads={f"{source}-{number}": one for source, workloads in sources.items() for number, one in enumerate(workloads)},
        bundles={f"bundle-{number}": bundle for number, bundle in enumerate(told_apart(list(found.values())))},
        gpus={name: load_gpu(name) for name in (*gpu_names(), *gpus)},
        models=tuple(filter(is_served, model_names())),
        engines=engine_names(),
    )

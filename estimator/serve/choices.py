"""Choices of the page as JSON data: all workloads, bundles and GPUs, and the possible changes of one workload."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np

from estimator.bundle.content import Bundle
from estimator.display.text import Document
from estimator.serve.catalogue import Catalogue, Entry
from estimator.transforms.rescaling import Sizes, with_sizes
from estimator.transforms.rewriting import ATTENTION_FORMS, with_attention, with_precision
from estimator.vocabulary.errors import WorkloadError
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT
from estimator.vocabulary.specifications import load_gpu
from estimator.vocabulary.workload import Workload

MICROSECONDS: Final = 1e-6

CANDIDATES: Final = {
    "batch": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256),
    "sequence": (16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192),
}
"""Values of the sliders, in addition to the workload's own."""

SIZES_UNKNOWN: Final = (
    "The file does not tell for which batch and sequence it was written; say it under “Written for”, or name the file so (…_b8_s512.json)."
)
NO_SEQUENCE: Final = "The workload has no sequence, or it is not stated under “Written for”."


def choices_document(catalogue: Catalogue, most_bytes: int) -> Document:
    """Workloads, bundles with the clocks of their GPUs, other GPUs with theirs; most_bytes: the largest file that may be loaded."""
    return {
        "workloads": [entry_document(entry) for entry in list(catalogue.workloads.values())],
        "bundles": [_bundle_document(key, bundle) for key, bundle in catalogue.bundles.items()],
        "gpus": [_gpu_document(load_gpu(name)) for name in catalogue.gpus],
        "most_bytes": most_bytes,
    }


def entry_document(entry: Entry) -> Document:
    """A workload as one line of a list."""
    return {"key": entry.key, "name": entry.workload.name, "source": entry.source}


def workload_document(entry: Entry, at: Sizes | None) -> Document:
    """Content of a workload and its possible changes.

    at: the sizes that the user states, None for the known ones.  `batch` and `sequence` hold the possible sizes, and the reason
    why there are no more; `attention` and `precision` hold the reason why a form is impossible, "" if it is possible.
    """
    workload, present = entry.workload, at or entry.at
    return {
        **entry_document(entry),
        "kernels": len(workload.operators),
        "launches": sum(workload.counts),
        "at": None if present is None else {"batch": present.batch, "sequence": present.sequence or None},
        **{name: _reachable(workload, present, name) for name in CANDIDATES},
        "attention": {form: _fault(with_attention, workload, form) for form in ATTENTION_FORMS},
        "precision": {name: _fault(with_precision, workload, name) for name in BYTES_PER_ELEMENT},
        "notes": list(workload.notes),
    }


def clocks_of(gpu: GpuSpec) -> list[float]:
    """The clocks of the slider: all that the GPU can lock, and the one of its published peak rates [MHz]."""
    clocks: list[float] = np.union1d(gpu.clocks_mhz(), [gpu.sm_clock_max_mhz]).tolist()
    return clocks


def _bundle_document(key: str, bundle: Bundle) -> Document:
    return {
        "key": key,
        "name": f"{bundle.name} {bundle.version}",
        "simulated": bundle.simulated,
        "host_launch_us": round(bundle.host.launch_s / MICROSECONDS, 1),
        **_gpu_document(bundle.gpu),
    }


def _gpu_document(gpu: GpuSpec) -> Document:
    return {"gpu": gpu.name, "clocks_mhz": clocks_of(gpu), "usual_clock_mhz": gpu.sm_clock_max_mhz, "power_limit_w": gpu.power_limit_w}


def _reachable(workload: Workload, present: Sizes | None, name: str) -> Document:
    """Values of a size to which the workload can be rescaled, and the reason why there are no others."""
    own: int = getattr(present, name, 0)
    if present is None or not own:
        return {"values": [], "value": None, "reason": NO_SEQUENCE if present else SIZES_UNKNOWN}
    others = [value for value in CANDIDATES[name] if value != own]
    faults = {value: _fault(with_sizes, workload, present, replace(present, **{name: value})) for value in others}
    reason = next((fault for fault in faults.values() if fault), "")
    return {"values": sorted([own, *(value for value in others if not faults[value])]), "value": own, "reason": reason}


def _fault(change: Callable[..., Workload], *arguments: Any) -> str:
    """The reason why a change of a workload fails, "" if it succeeds."""
    try:
        change(*arguments)
    except WorkloadError as error:
        return str(error)
    return ""

"""The bundle for a GPU: its own, else the one from which a forecast goes least far."""

from collections.abc import Mapping
from pathlib import Path

from estimator.bundle.content import Bundle
from estimator.bundle.files import BundleHead, bundle_heads, load_bundle, stored_names
from estimator.uncertainty.forecast import distance
from estimator.vocabulary.errors import BundleError
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.specifications import is_gpu_file, load_gpu


def bundle_for(gpu: str | Path) -> tuple[Bundle, GpuSpec | None]:
    """The best installed bundle for a GPU, by name or file, and the GPU as `estimate` takes it: None if the bundle is its own.

    Raises SpecificationError for an unknown GPU, BundleError if no bundle is installed or the chosen one cannot be read.
    """
    bundle = load_bundle(nearest_bundle(load_gpu(gpu), bundle_heads()))
    return bundle, asked_gpu(bundle, gpu)


def nearest_bundle(gpu: GpuSpec, heads: Mapping[str, BundleHead]) -> str:
    """The name of that bundle among some: the GPU's own, else one with power of least `distance`; of equals one of the local store first.

    Raises BundleError if there is none.
    """
    stored = stored_names()

    def order(name: str) -> tuple[object, ...]:
        fitted, power = heads[name]
        return fitted.name != gpu.name and not power, distance(fitted, gpu), name not in stored, name

    if not heads:
        raise BundleError("no bundle of a real board is installed; give one with --bundle FILE (`fit` makes one from a dataset)")
    return min(heads, key=order)


def asked_gpu(bundle: Bundle, gpu: str | Path) -> GpuSpec | None:
    """A GPU by name or file, for an estimate with this bundle; None for a name of its own GPU: its figures are those of the fit."""
    found = load_gpu(gpu)
    return None if found.name == bundle.gpu.name and not is_gpu_file(gpu) else found

"""The bundle for a GPU: its own, else the one from which a forecast goes least far."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from estimator.bundle.content import Bundle
from estimator.bundle.files import BundleHead, bundle_heads, load_bundle, stored_names
from estimator.model.coefficients import SIXTEEN_BIT
from estimator.uncertainty.forecast import distance
from estimator.vocabulary.errors import BundleError, SpecificationError
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import FORMATS
from estimator.vocabulary.specifications import is_named, load_gpu, names_file


def bundle_for(gpu: str | Path, formats: Iterable[str] = (), *, served: bool = False) -> tuple[Bundle, GpuSpec | None]:
    """The best installed bundle for a GPU, by name or file, and the GPU as `estimate` takes it: None if the bundle is its own.

    formats: precisions of the products that the answer needs.  served: by an engine.

    Raises SpecificationError for an unknown GPU, BundleError if no bundle is installed or the chosen one cannot be read.
    """
    bundle = load_bundle(nearest_bundle(known_gpu(gpu), bundle_heads(), formats, served=served))
    return bundle, asked_gpu(bundle, gpu)


def nearest_bundle(gpu: GpuSpec, heads: Mapping[str, BundleHead], formats: Iterable[str] = (), *, served: bool = False) -> str:
    """That bundle's name: the GPU's own, else one with power of least `distance`; of equals the store's, then one that saw all formats.

    A bundle that has seen products in the narrow ones of these formats comes first: on int8 and weight-only products of three boards its
    own coefficients of other formats err by 31 to 54 % (mean 39), the nearest other bundle with such products by 18 to 54 % (mean 28).
    So does, for a served model, one of kernels measured alone: runs of whole models hold no decoding.

    Raises BundleError if there is none.
    """
    stored, asked = stored_names(), frozenset(formats)

    def order(name: str) -> tuple[object, ...]:
        fitted, power, seen = heads[name]
        alone, narrow, every = not served or bool(seen & SIXTEEN_BIT.keys()), _kinds(asked) <= _kinds(seen), asked <= seen
        lacking = not (alone and narrow)
        return fitted.name != gpu.name and not power, lacking, distance(fitted, gpu), name not in stored, not every, name

    if not heads:
        raise BundleError("no bundle of a real board is installed; give one with --bundle FILE (`fit` makes one from a dataset)")
    return min(heads, key=order)


def _kinds(formats: Iterable[str]) -> set[tuple[str, bool]]:
    """Kinds of kernels of products in formats below 16 bits: their peak rate, and whether weights are narrower (scales aside)."""
    return {(one.rate, one.weight_byte < one.element_byte / 1.5) for one in map(FORMATS.get, formats) if one and one.weight_byte < 2.0}


def known_gpu(gpu: str | Path) -> GpuSpec:
    """A GPU by name or file; one that is not shipped has a name if an installed bundle is its own.  Raises SpecificationError."""
    try:
        return load_gpu(gpu)
    except SpecificationError:
        for head in bundle_heads(lambda line: None).values():
            if is_named(head.gpu, str(gpu)):
                return head.gpu
        raise


def asked_gpu(bundle: Bundle, gpu: str | Path) -> GpuSpec | None:
    """A GPU by name or file, for an estimate with this bundle; None for a name of its own GPU: its figures are those of the fit."""
    found = known_gpu(gpu)
    return None if found.name == bundle.gpu.name and not names_file(gpu) else found

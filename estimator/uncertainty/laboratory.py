"""Collections (laboratories) behind a bundle, their scales on kernel times, and the error of hardware elsewhere.

Two laboratories differ on the same kernels of one type of board by a factor that is common to all kernels: other boards, libraries,
operands and ways to measure.  A bundle with several collections states the scale of each; an answer holds for their geometric mean.
Errors of *this laboratory* come from rows of these collections.  "Another laboratory" adds ELSEWHERE_STD, and a host of its own.
"""

from typing import Final

import numpy as np

from estimator.bundle.content import Bundle, HostCost
from estimator.vocabulary.errors import OperatingPointError
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import NORMAL_90, Array

ELSEWHERE_STD: Final = {"latency": 0.09, "power": 0.05}
"""Standard deviation of the common factor between a fit of one laboratory and the hardware of another [ln].  Latency: products of equal
shape differ by 7 % (A100, 54 shapes) and 11 % (H100, 11) on average between AIConfigurator's tables and vidur's profiles, most of it a
factor common to all (3 and 12 %).  Power: sensors of one type differ by 5 % from board to board (docs/model.md)."""

HOST_S: Final = 36e-6
NEWER_HOST_S: Final = 25e-6
HOST_STD: Final = 0.5
"""Time to launch an operator of eager PyTorch on an unknown host [s], for a board from Ada on, and its standard deviation [ln].  Before
Ada 35 and 36 µs were fitted (EnergAIzer); other collections take up to 60.  From Ada on 19 (EnergAIzer), 51 (ML.ENERGY), 16 and 23 µs
(RTX PRO 6000 and 5090, `benchmarks/published/language.csv`), all in view when 25 was chosen."""


def unknown_host(gpu: GpuSpec) -> HostCost:
    """The usual host of a GPU."""
    launch_s = NEWER_HOST_S if float(gpu.compute_capability) >= 8.9 else HOST_S
    return HostCost(launch_s=launch_s, launch_ln_std=HOST_STD, source="assumed: no run of a whole workload shows it")


def host_of(bundle: Bundle, gpu: GpuSpec) -> HostCost:
    """The host behind a bundle on the GPU of its runs; other GPUs stand in other hosts."""
    return bundle.host if gpu.name == bundle.gpu.name else unknown_host(gpu)


def host_elsewhere_std(host: HostCost, gpu: GpuSpec, launch_share: Array) -> Array:
    """Standard deviation of ln(latency) because another laboratory has another host, in the shape of the launches' share in the latency.

    T = (G^p + L^p)^(1/p) rises by ln(1 − h + h·e^(pδ)) / p where L rises by e^δ; h: launch share, δ: the 90 % limit of ln(L), above the
    bundle's host or, where that one is faster, an unknown one, whose deviation is stated already.
    """
    faster = max(np.log(unknown_host(gpu).launch_s / host.launch_s), 0.0) if host.launch_s else 0.0
    limit = faster + NORMAL_90 * np.sqrt(max(HOST_STD**2 - np.fmax(host.launch_ln_std, 0.0) ** 2, 0.0))
    p = host.overlap_exponent
    std: Array = np.logaddexp(np.log1p(-launch_share), np.log(launch_share) + p * limit) / (p * NORMAL_90)
    return std


def scale_of(bundle: Bundle, collection: str | None) -> float:
    """Factor on the times by a bundle's coefficients, for one of its collections, or for their mean (None) [1]."""
    if collection is None:
        return float(np.exp(np.mean([np.log(one.scale) for one in bundle.collections]))) if bundle.collections else 1.0
    known = {one.name: one.scale for one in bundle.collections}
    if collection not in known:
        named = f"its collections: {', '.join(known)}" if known else "it names none"
        raise OperatingPointError(f"bundle {bundle.name}: no collection {str(collection)[:80]!r}; {named}")
    return known[collection]


def is_known(bundle: Bundle, collection: str) -> bool:
    """Whether a bundle was fitted to rows of this collection."""
    return any(one.name == collection for one in bundle.collections)


def scales_std(bundle: Bundle) -> float:
    """Uncertainty of ln(time) of kernels if the collection is not named: root mean square of the scales about their mean; 0 for one."""
    return float(np.std([np.log(one.scale) for one in bundle.collections])) if bundle.collections else 0.0

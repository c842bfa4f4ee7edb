"""Priors of one GPU's coefficients from the fit of another GPU, adapted to this GPU's architecture.

    ln θ ~ N( ln θ_source + ln θ₀(target) − ln θ₀(source),  (SIBLING_NARROWING · σ)² )

θ₀ and σ are centre and width of the general priors; σ is the spread of published fits of GPUs.
"""

from collections.abc import Mapping
from typing import Final

from estimator.model.coefficients import Prior
from estimator.model.gemm import WARP_RATE
from estimator.model.phases import START_CLOCKS
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import HZ_PER_MHZ
from fitter.priors import BLOCK_ENDS, LISTED_ALONE, MATRIX, PERSISTENT, PERSISTENT_ARCHITECTURES, Coefficients, Priors, around

HOST_WIDTH: Final = 0.3
"""Spread of launch costs between hosts [ln]: 54 and 65 µs, 31 and 40 µs on two machines of one table."""

SCHEDULED: Final = ("wave_exponent", "waves", "store")
"""Coefficients of the sequence of blocks and of their output.  A persistent block writes its output while it multiplies the next tile, so
these values do not apply to blocks that run one tile each."""


def moved_values(groups: Coefficients, source: GpuSpec, target: GpuSpec) -> dict[str, dict[str, float]]:
    """Coefficients by group, adapted to the target's architecture.

    Persistent blocks differ from others by known factors; coefficients in SCHEDULED take the target's prior centres.  Convolutions are not
    faster than the target's rate.
    """
    least = WARP_RATE.get(target.architecture, 1.0)
    moved = {
        group: {name: max(value, least) if name == "math" and group.startswith("conv") else value for name, value in values.items()}
        for group, values in groups.items()
    }
    if _persistent(source) == _persistent(target):
        return moved
    usual = {**MATRIX, **LISTED_ALONE, **BLOCK_ENDS}
    factor = {name: prior.centre / usual[name].centre for name, prior in PERSISTENT.items()}
    if _persistent(source):
        factor = {name: 1.0 / value for name, value in factor.items()}
    there = {**usual, **(PERSISTENT if _persistent(target) else {})}
    for group, values in moved.items():
        if group.startswith(("gemm", "conv")) and not group.startswith("conv.depthwise") and not group.endswith((".fp32", ".cuda")):
            values |= {name: there[name].centre if name in SCHEDULED else value * factor.get(name, 1.0) for name, value in values.items()}
    return moved


def _persistent(gpu: GpuSpec) -> bool:
    return gpu.architecture in PERSISTENT_ARCHITECTURES


def transferred_priors(values: Mapping[str, float], priors: Mapping[str, Prior], narrowing: float, gpu: GpuSpec) -> Priors:
    """The general priors of a section on this GPU, centred on the values of another GPU's; names without a value keep theirs.

    A fit of one clock has no `start`, whose time is then part of `epsilon_s`.  Launch costs of the host are priors too if the other fit
    has them: kernels above the floor contain them.
    """
    start_s = START_CLOCKS / (gpu.sm_clock_max_mhz * HZ_PER_MHZ)
    epsilon, started = values.get("epsilon_s", 0.0), values.get("start", 0.0)
    own = (started or priors["start"].centre) if "start" in priors else 0.0
    epsilon = max(epsilon + (started - own) * start_s, 0.3 * epsilon)
    known = {**values, "epsilon_s": epsilon}
    moved = around(known, priors, narrowing)
    if values.get("floor_s", 0.0) > 0.0:
        offset = values.get("offset_s", 0.0)
        moved["floor_s"] = Prior(centre=values["floor_s"], width=HOST_WIDTH)
        moved["offset_s"] = Prior(centre=offset, width=HOST_WIDTH if offset else 0.0)
    return moved

"""Priors of one GPU's coefficients from the fit of another: its values, moved to this GPU's architecture.

    ln θ ~ N( ln θ_source + ln θ₀(target) − ln θ₀(source) + family's shift,  (narrowing · σ)² )

θ₀ and σ are centre and width of the general priors: σ is how far published fits of GPUs lie apart.  A narrowing of 1 trusts the
other GPU no more than any; small ones hold its values fast.  `fitter.transfer.prior_bundle` lets the measured kernels choose it.
"""

from collections.abc import Mapping
from typing import Final

from estimator.model.coefficients import Prior, longest_prefix
from estimator.model.phases import START_CLOCKS
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import HZ_PER_MHZ
from fitter.priors import BLOCK_ENDS, LISTED_ALONE, MATRIX, PERSISTENT, PERSISTENT_ARCHITECTURES, around

HOST_NAMES: Final = ("floor_s", "offset_s")
"""What a measurement of single launches contains of its host."""

HOST_WIDTH: Final = 0.3
"""How far the launch costs of two hosts lie apart [ln]: 54 and 65 µs, 31 and 40 µs on two machines of one table."""

SCHEDULED: Final = ("wave_exponent", "waves", "store")
"""How blocks follow one another and give up their output: where they persist, one's output leaves while the next tile is multiplied, and
what is left under these names says nothing about blocks that come and go."""

Values = Mapping[str, Mapping[str, float]]


def moved_values(groups: Values, source: GpuSpec, target: GpuSpec) -> dict[str, dict[str, float]]:
    """Coefficients by group as the target's architecture has them: persistent blocks differ from others by known factors, and what
    tells how blocks follow one another is not the same thing on both sides.
    """
    if _persistent(source) == _persistent(target):
        return {group: dict(values) for group, values in groups.items()}
    usual = {**MATRIX, **LISTED_ALONE, **BLOCK_ENDS}
    factor = {name: prior.centre / usual[name].centre for name, prior in PERSISTENT.items()}
    if _persistent(source):
        factor = {name: 1.0 / value for name, value in factor.items()}
    there = {**usual, **(PERSISTENT if _persistent(target) else {})}
    moved = {}
    for group, values in groups.items():
        matrix = group.startswith(("gemm", "conv")) and not group.startswith("conv.depthwise") and not group.endswith((".fp32", ".cuda"))
        moved[group] = (
            {name: there[name].centre if name in SCHEDULED else value * factor.get(name, 1.0) for name, value in values.items()}
            if matrix
            else dict(values)
        )
    return moved


def _persistent(gpu: GpuSpec) -> bool:
    return gpu.architecture in PERSISTENT_ARCHITECTURES


def transferred_priors(values: Mapping[str, float], priors: Mapping[str, Prior], narrowing: float, gpu: GpuSpec) -> dict[str, Prior]:
    """The general priors of a section on this GPU, centred on the values of another GPU's; names without a value keep theirs.

    Launch costs of the host are priors too where the other fit told them: kernels above the floor contain them.
    """
    start_s = START_CLOCKS / (gpu.sm_clock_max_mhz * HZ_PER_MHZ)
    epsilon = values.get("epsilon_s", 0.0)
    if "start" in values and "start" not in priors:
        epsilon += values["start"] * start_s
    elif "start" in priors and "start" not in values:
        epsilon = max(epsilon - priors["start"].centre * start_s, 0.3 * epsilon)
    known = {**values, "epsilon_s": epsilon}
    moved = around(known, priors, narrowing)
    if values.get("floor_s", 0.0) > 0.0:
        offset = values.get("offset_s", 0.0)
        moved["floor_s"] = Prior(centre=values["floor_s"], width=HOST_WIDTH)
        moved["offset_s"] = Prior(centre=offset, width=HOST_WIDTH if offset else 0.0)
    return moved


def with_family_shift(values: Values, pooled: Values) -> dict[str, Mapping[str, float]]:
    """Another GPU's values of the sections of a family, moved as the family as a whole was found to differ on this GPU.

    pooled: coefficients of whole families fitted on this GPU.  Sections that the other fit does not know stay out.
    """
    found: dict[str, Mapping[str, float]] = {}
    for group, own in values.items():
        family = longest_prefix(group, pooled)
        if family is None or family not in values:
            found[group] = own
            continue
        before, after = values[family], pooled[family]
        found[group] = {
            name: after[name] if name in HOST_NAMES and name in after else value * _ratio(after.get(name, 0.0), before.get(name, 0.0))
            for name, value in own.items()
        }
    return found


def _ratio(after: float, before: float) -> float:
    return after / before if after > 0.0 and before > 0.0 else 1.0

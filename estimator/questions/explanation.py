"""Breakdown of a workload's time and energy: by operator, by limit, and by module.

The equation of `estimator.model.timeline` determines the parts of a kernel's time: serial phases and ε have their own length; the
overlapped ones share their norm in proportion to xᵢᵖ, its logarithmic derivative.  The parts of a kernel add up to its time.
Math has further parts: useful work at the fitted rate, SMs without a block (load imbalance) and products that tiles and waves
compute beyond the useful ones (tile quantisation).
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from estimator.engine.prediction import Prepared
from estimator.model.coefficients import COLUMN
from estimator.model.phases import EVENTS, OVERLAPPED, SERIAL
from estimator.model.timeline import ideal_seconds, kernel_seconds
from estimator.questions.estimates import Estimate, estimates_of
from estimator.questions.judging import Asked, predicted
from estimator.vocabulary.quantities import HZ_PER_MHZ, TINY, Array
from estimator.vocabulary.values import frozen

LIMITS: Final = (
    "DRAM", "L2", "tensor cores", "CUDA cores", "special functions", "latency", "launch", "tile quantisation", "load imbalance",
    "links",
)  # fmt: skip
"""Limits to which time is attributed."""

LIMIT_OF_PHASE: Final = {
    "l2": "L2", "dram": "DRAM", "dram_activations": "DRAM", "issue": "CUDA cores", "loop": "latency", "sfu": "special functions",
    "wait": "latency", "prologue": "latency", "epilogue": "DRAM", "reduce": "L2", "reduce_launch": "launch",
    "reduce_start": "launch", "quantise": "DRAM",
    "waves": "latency", "rows": "latency", "row_length": "latency", "start": "launch", "store": "L2", "epsilon": "launch",
    "link": "links", "chunks": "links", "ceiling": "tensor cores",
}  # fmt: skip
"""Limits of all phases but math.  Latency: dependent steps, independent of the rates; launch: a kernel's fixed cost."""


Amounts = Mapping[str, float]
"""Parts of a time or an energy by name."""


@frozen
class KernelExplanation:
    """One operator of a workload, all its launches together.

    time_s, energy_j, time_share   of the GPU's kernels, not of the host
    phases_s      time by phase, "epsilon" among them; their sum is time_s
    limits        share of its time by LIMITS; `limit` the largest
    ideal_s       time at the published rates: the longer of math and DRAM
    outside_validity   as of a KernelEstimate
    """

    operator: str
    count: float
    time_s: float
    time_share: float
    energy_j: float
    limit: str
    limits: Amounts
    phases_s: Amounts
    ideal_s: float
    outside_validity: bool


@frozen
class Explanation:
    """Parts of an iteration's time and energy.

    result         the explained estimate
    kernels        its operators, the longest first
    limits_s       GPU time by LIMITS
    energy_parts_j energy of the iteration by PARTS
    waiting_s      latency beyond the GPU's own time: the GPU waits for the host's launches
    capped_s       latency added by the power limit
    """

    result: Estimate
    kernels: tuple[KernelExplanation, ...]
    limits_s: Amounts
    energy_parts_j: Amounts
    waiting_s: float
    capped_s: float


def explain(asked: Asked) -> Explanation:
    """Explain the estimate at the first requested clock.  Raises the errors of `estimate`."""
    prediction = predicted(asked)
    prepared, (result, *_) = prediction.prepared, estimates_of(prediction)
    parts_j = {part: watt * result.latency_s for part, watt in prediction.power_parts_w(0).items()}
    counts = prepared.counts
    total_j = sum(parts_j.values())
    # A board at its limit alternates between two clocks; the parts use their mean.
    held = result.energy_j / total_j if total_j > 0.0 and np.isfinite(total_j) else 1.0
    times, watts = prediction.kernels(0)
    seconds = counts * times
    energy_j = seconds * watts * held
    phases_s = _phases_s(prepared, result.sm_clock_mhz * HZ_PER_MHZ) * counts[:, None]
    limits = _limits(prepared, phases_s)
    ideal_s = counts * ideal_seconds(prepared.phases, prepared.board.gpu, result.sm_clock_mhz * HZ_PER_MHZ)
    total_s, kernels = max(float(seconds.sum()), TINY), []
    for i in np.argsort(-seconds, kind="stable").tolist():
        count, time_s, joule, ideal = (float(column[i]) for column in (counts, seconds, energy_j, ideal_s))
        shares = dict(zip(LIMITS, (limits[i] / (time_s or 1.0)).tolist(), strict=True))  # what is saved has negative times
        kernels.append(
            KernelExplanation(
                operator=prepared.operators[i].label,
                count=count,
                time_s=time_s,
                time_share=time_s / total_s,
                energy_j=joule,
                limit=max(shares, key=lambda name: shares[name]),
                limits=shares,
                phases_s={name: value for name, value in zip(PHASES, phases_s[i].tolist(), strict=True) if value},
                ideal_s=ideal,
                outside_validity=result.kernels[i].outside_validity,
            )
        )
    return Explanation(
        result=result,
        kernels=tuple(kernels),
        limits_s=dict(zip(LIMITS, limits.sum(axis=0).tolist(), strict=True)),
        energy_parts_j={name: energy * held for name, energy in parts_j.items()},
        waiting_s=result.latency_s - result.gpu_s,
        capped_s=result.latency_s - float(prediction.free_latency_s[0, 0]),
    )


PHASES: Final = (*OVERLAPPED, *SERIAL, "ceiling", "epsilon")


def _phases_s(prepared: Prepared, clock_hz: float) -> Array:
    """Time of one launch of each kernel by PHASES [s], shape (n, len(PHASES)); rows sum up to the kernel's time.

    Time is homogeneous of degree 1 in the phases, hence t = Σ θ ∂t/∂θ over the coefficients of the phases.
    """
    coefficients = prepared.coefficients
    total = kernel_seconds(prepared.phases, coefficients, clock_hz)
    parts = np.zeros((len(total), len(PHASES)))
    for column, name in enumerate(PHASES):
        place = COLUMN["epsilon_s" if name == "epsilon" else name]
        if np.any(coefficients[:, place]):
            more, less = coefficients.copy(), coefficients.copy()
            more[:, place] *= np.exp(STEP)
            less[:, place] *= np.exp(-STEP)
            change = kernel_seconds(prepared.phases, more, clock_hz) - kernel_seconds(prepared.phases, less, clock_hz)
            parts[:, column] = np.where(coefficients[:, place] > 0.0, np.maximum(change, 0.0) / (2.0 * STEP), 0.0)
    scale = total * np.exp(prepared.log_correction) * prepared.board.scale / np.maximum(parts.sum(axis=1), TINY)
    result: Array = parts * scale[:, None]
    return result


STEP: Final = 1e-4
"""Step of the derivatives in the logarithm of a coefficient."""


def _limits(prepared: Prepared, phases_s: Array) -> Array:
    """Time of one launch of each kernel by LIMITS [s], shape (n, len(LIMITS))."""
    math_s = phases_s[:, PHASES.index("math")]
    phases, quantised = prepared.phases, prepared.phases.overlapped[:, OVERLAPPED.index("math")]
    with np.errstate(divide="ignore", invalid="ignore"):
        useful = np.where((quantised > 0.0) & (phases.ideal_math > 0.0), np.minimum(phases.ideal_math / quantised, 1.0), 1.0)
    unbalanced = np.minimum(1.0 - phases.occupied, 1.0 - useful)
    on_tensor = phases.events[:, EVENTS.index("tensor")] > 0.0
    parts = [
        *((LIMIT_OF_PHASE[name], phases_s[:, column]) for column, name in enumerate(PHASES) if name != "math"),
        ("tensor cores", np.where(on_tensor, math_s * useful, 0.0)),
        ("CUDA cores", np.where(on_tensor, 0.0, math_s * useful)),
        ("load imbalance", math_s * unbalanced),
        ("tile quantisation", math_s * (1.0 - useful - unbalanced)),
    ]
    result = np.zeros((len(phases_s), len(LIMITS)))
    for name, own_s in parts:
        result[:, LIMITS.index(name)] += own_s
    return result

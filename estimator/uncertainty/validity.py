"""The range of the fitted data, and the distance of a request from it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Final, Literal

import numpy as np

from estimator.bundle.content import Bundle
from estimator.uncertainty.forecast import Forecast
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT, FORMATS, Array, BoolArray
from estimator.vocabulary.work import attention_shape, operator_work
from estimator.vocabulary.workload import FAMILY_FIELDS, Operator, Workload

TOLERATED_FACTOR: Final = 2.0
"""Largest factor beyond the fitted range at which a shape raises no warning."""

TOLERATED_CLOCK_MHZ: Final = 30.0
"""Largest distance outside the fitted clocks at which a clock raises no warning [MHz], two steps of the usual table."""

UNCHECKED_FIELDS: Final = frozenset({"stride", "padding", "groups", "causal", "window", "kernel_h", "kernel_w"})
"""Shape fields that do not affect time by their size."""

HEADS: Final = (1.0, 256.0)
"""Heads of FlashAttention's kernels; a larger one runs in another kind of kernel.  Source: github.com/Dao-AILab/flash-attention, README."""


Validity = Literal["measured", "extrapolated", "forecast"]
"""Relation of a request to the fit: kernels and clocks like those fitted, on this board; kernels or clocks that the fit has not seen; a
board, or efficiencies, that were not fitted."""


NO_RATE: Final = "its specification has no rate for that"
NO_INT8: Final = "the bundle was fitted on no products in int8"


def stuck_lines(operators: Sequence[Operator], ideal_math: Array, int8: BoolArray, gpu: GpuSpec) -> tuple[str, ...]:
    """Lines about operators without a time, empty if all can run: the board has no rate for them, or the bundle no products in `int8`.

    ideal_math (n,): as in `Phases`.
    """
    lines = []
    for stuck, verb, reason in ((~np.isfinite(ideal_math), "cannot run", NO_RATE), (int8, "has no time for", NO_INT8)):
        found = [operators[i] for i in np.flatnonzero(stuck).tolist()]
        kinds = ", ".join(dict.fromkeys(f"{one.family}.{one.operator} {one.precision}" for one in found))
        lines += [f"{gpu.name} {verb} {kinds}: {reason}"] if found else []
    return tuple(lines)


GIB: Final = 2.0**30
"""Bytes of a GiB."""


def memory_warnings(workload: Workload, gpu: GpuSpec) -> tuple[str, ...]:
    """A line if a model does not fit into a board's memory: its time is finite, but the board cannot run it.

    If the footprint of a model is unknown, a least value counts: weights and caches of every layer (`kept_byte`), and the largest other
    traffic of one operator.
    """
    if workload.footprint is not None:
        parts = {name.removesuffix("_byte"): value for name, value in asdict(workload.footprint).items()}
    else:
        kept = [kept_byte(operator) for operator in workload.operators]
        works = [operator_work(operator) for operator in workload.operators]
        passing = [work.read_byte + work.write_byte - own for work, own in zip(works, kept, strict=True)]
        largest = max(range(len(passing)), key=passing.__getitem__)
        parts = {
            "weights and cached keys and values where every layer has its own": float(np.dot(workload.counts, kept)),
            f"what {workload.operators[largest].label} reads and writes": passing[largest],
        }
    need = sum(parts.values())
    if need <= gpu.dram_bytes:
        return ()
    named = ", ".join(f"{name} {size / GIB:.4g}" for name, size in parts.items() if size)
    return (
        f"the model needs at least {need / GIB:.4g} GiB ({named}), more than the {gpu.dram_bytes / GIB:.4g} GiB of {gpu.name}: "
        "it does not fit",
    )


def kept_byte(operator: Operator) -> float:
    """Memory that one layer of this kind keeps between iterations [byte]: weights, and the cache of a decoding step.

    It is a least value: the shapes of batched products and a prefill's attention do not show their memory.  Products that make
    gradients look like layers: only a trace determines the memory of a training step.
    """
    width = FORMATS[operator.precision].weight_byte
    if operator.operator == "linear":
        return operator["batch"] * operator["n"] * operator["k"] * width
    if operator.family == "conv":
        return operator["filters"] * operator["channels"] / operator["groups"] * operator["kernel_h"] * operator["kernel_w"] * width
    if operator.family == "moe":
        matrices = operator["experts"] / operator["ep"] * (2.0 + operator["gated"])
        return matrices * operator["hidden"] * operator["inter"] / operator["tp"] * width
    if operator.operator in ("decode", "mla_decode"):
        batch, _, context, _, kv_heads, _, window, _, cached = attention_shape(operator)
        return batch * min(context, window or context) * kv_heads * cached * BYTES_PER_ELEMENT[operator.kv_precision]
    return 0.0


def why_no_time(warnings: Sequence[str]) -> str:
    """The reason why an answer with these warnings has no finite time, and the remedy."""
    for line in warnings:
        if line.endswith((NO_RATE, NO_INT8)):
            return f"{line}; choose another precision (--precision, of models --weights) or GPU"
    return "a setting is beyond reason; check the host's launch time, the changed figures and the bundle"


SIMULATED: Final = "bundle {} was fitted on a simulated board: its numbers say nothing about a GPU"


def simulated_notes(bundle: Bundle) -> tuple[str, ...]:
    """A line for every answer from a bundle fitted on a simulated board; empty for a measured one."""
    return (SIMULATED.format(bundle.name),) if bundle.simulated else ()


LENT_POWER: Final = "power as on "
"""Begins a bundle's note on power that was not measured on its board."""


def bundle_notes(bundle: Bundle) -> tuple[str, ...]:
    """Lines for every estimate from a bundle: simulated board, power of another bundle or none, no errors of rows outside its fit, no
    laboratory.
    """
    lacking = {
        "the bundle has no power coefficients": bundle.power is None,
        "the bundle states no uncertainty": not bundle.uncertainty,
        "the bundle names no laboratory: its intervals leave out how laboratories differ": bundle.uncertainty and not bundle.collections,
    }
    lent = (note for note in bundle.notes if note.startswith(LENT_POWER))
    return (*simulated_notes(bundle), *lent, *(text for text, holds in lacking.items() if holds))


def validity_of(forecast: Forecast | None, outside: Sequence[str]) -> Validity:
    """The validity of an answer; outside: lines about differences between its request and the fitted data."""
    return "forecast" if forecast is not None else "extrapolated" if outside else "measured"


def clock_warning(fitted_mhz: tuple[float, float], asked_mhz: float, settled_mhz: float = np.nan) -> tuple[str, ...]:
    """A line if a clock lies outside the fitted range (`Bundle.clocks_mhz`); empty inside.

    settled_mhz: the clock to which a power limit lowers the requested one, if it does.
    """
    low, high = fitted_mhz
    for clock, cause in ((asked_mhz, ""), (settled_mhz, ", to which the power limit lowers it,")):
        if outside_clock(low, high, clock):
            return (f"SM clock {round(clock, 1):g} MHz{cause} is outside the fitted range {low:g} to {high:g} MHz",)
    return ()


def outside_clock(low_mhz: float | Array, high_mhz: float | Array, sm_clock_mhz: float | Array) -> BoolArray:
    """Whether clocks lie outside the fitted range, shape of the clocks; False if the range is unknown (nan)."""
    below, above = sm_clock_mhz < low_mhz - TOLERATED_CLOCK_MHZ, sm_clock_mhz > high_mhz + TOLERATED_CLOCK_MHZ
    return np.logical_or(below, above)


Domain = Mapping[str, Mapping[str, tuple[float, float]]]
"""Fitted range of each field of the shapes of a group."""


def shape_excess(operator: Operator, group: str | None, domain: Domain) -> tuple[float, str]:
    """The largest factor by which a shape field lies outside the fitted range, and that field; 1 and "" inside.

    Larger heads than those of HEADS are never tolerated, and without a fitted range HEADS is it.
    """
    worst, field = 1.0, ""
    ranges = domain.get(group or "", {})
    if operator.family == "attention":
        ranges = {"head_dim": HEADS, **ranges}
    for name, value in zip(FAMILY_FIELDS[operator.family], operator.shape, strict=True):
        if name in UNCHECKED_FIELDS or name not in ranges or value <= 0:
            continue
        low, high = ranges[name]
        if low <= value <= high:
            continue
        excess = max(value / max(high, 1e-300), low / value) * (TOLERATED_FACTOR if name == "head_dim" and value > HEADS[1] else 1.0)
        if excess > worst:
            worst, field = excess, name
    return worst, field

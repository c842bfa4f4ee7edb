"""Screening: which kernel rows can be true, which say something about power, and why the others were left out.

The order of the checks is the order of their certainty: what cannot be read, what names nothing known, what no
hardware can do, what the data set itself marks, what was read too briefly.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from estimator.coefficients import COEFFICIENTS
from estimator.gpu import GpuSpec
from estimator.kernel_names import tile_from_name
from estimator.kernel_prediction import kernel_times
from estimator.quantities import Array, BoolArray, IntArray
from estimator.specifications import canonical_gpu_name, gpu_names, is_named, load_gpu
from estimator.workload import Operator
from fitter.errors import InputError
from fitter.priors import GROUP_PRIORS
from fitter.rows.columns import KernelRows
from fitter.rows.rejected import RejectedRow
from fitter.rows.roofline import ROOF_TOLERANCE, minimal_work, roof_seconds

AT_LIMIT_SHARE: Final = 0.96
"""From this share of the power limit on the board was holding its limit: the power is a lower bound [1]."""

ABOVE_LIMIT_SHARE: Final = 1.03
"""Boards overshoot their limit by less than this; more is another unit or another limit [1]."""

AT_REST_SHARE: Final = 0.5
"""A board on which a kernel runs draws more than this share of the least that its table has for it at rest [1]."""

LEAST_LIMIT_SHARE: Final = 0.02
"""The same of the power limit, where nothing is known of the board at rest: the three boards with a table draw 10 to 18 % of theirs [1]."""

COLDEST_C: Final = -60.0
HOTTEST_C: Final = 150.0
"""No board that ran a kernel was colder or hotter than this [°C]."""

CLOCK_MARGIN: Final = 1.1
"""A clock this far beyond the GPU's range is another unit or another GPU [1]."""

SHORTEST_LAUNCH_S: Final = 10e-6
"""Kernels smaller than this are ruled by launch costs, not by their work [s]."""

LONGEST_LAUNCH_S: Final = 86400.0
"""No kernel runs for more than a day: such a time is an error of whoever wrote it [s]."""

IMPLAUSIBLE_RATIO: Final = 100.0
"""A whole file this many times slower than the hardware allows holds another unit than seconds [1]."""

ROWS_FOR_UNITS: Final = 8
"""Fewer rows tell nothing about a file's unit."""

POWER_REASONS: Final = frozenset({"SINGLE_SAMPLE", "SHORT_WINDOW", "HISTORY", "SEQUENCE", "COLD_START", "NO_NEIGHBOUR", "ABOVE_LIMIT"})
"""Marks of a data set that concern the power alone."""

REASON_CODE: Final = re.compile(r"[A-Z][A-Z0-9_]{0,39}")

SIMULATED_PREFIX: Final = "sim:"


@dataclass(frozen=True, slots=True, kw_only=True)
class RawKernels:
    """Kernel rows of one file before screening; columns of shape (n,), nan or "" where the file says nothing.

    `operators` is None and `reasons` says why where a row names no kernel; `marks` is the file's own verdict ("" or
    "OK": good); `power_given` tells a missing power from one that is no number.
    """

    source: str
    operators: Sequence[Operator | None]
    gpus: Sequence[str]
    latency_s: Array
    latency_std_s: Array
    power_w: Array
    power_given: BoolArray
    power_std_w: Array
    power_limit_w: Array
    idle_w: Array
    temperature_c: Array
    sm_clock_mhz: Array
    sm_clock_asked_mhz: Array
    l2_warm: BoolArray
    library: Sequence[str]
    kernel_name: Sequence[str]
    tile_m: Array
    tile_n: Array
    split_k: Array
    grid: Array
    block_threads: Array
    trial: IntArray
    started_s: Array
    weight: Array
    flags: Sequence[tuple[str, ...]]
    marks: Sequence[str]
    row: IntArray
    reasons: dict[int, tuple[str, str]] = field(default_factory=dict)
    power_reasons: dict[int, tuple[str, str]] = field(default_factory=dict)


def screen(raw: RawKernels, asked: GpuSpec | None = None) -> tuple[KernelRows | None, list[RejectedRow]]:
    """Accepted rows (None where there are none) and the reasons for the others; `asked` is a GPU that need not be shipped.

    Raises InputError where the whole file is implausible (another unit than seconds).
    """
    reasons, power_reasons = dict(raw.reasons), dict(raw.power_reasons)
    specs = known_gpus(raw.gpus, asked, reasons)
    _read_marks(raw, reasons, power_reasons)
    for i in np.flatnonzero(~(raw.latency_s > 0) | ~(raw.latency_s <= LONGEST_LAUNCH_S)).tolist():
        reasons.setdefault(i, ("BAD_LATENCY", f"latency_s = {raw.latency_s[i]:g}"))
    for i in np.flatnonzero(impossible_temperature(raw.temperature_c)).tolist():
        reasons.setdefault(i, ("BAD_TEMPERATURE", f"temperature_c = {raw.temperature_c[i]:g}"))
    limit = np.array([spec.power_limit_w if spec else np.nan for spec in specs])
    limit = np.where(np.isfinite(raw.power_limit_w) & (raw.power_limit_w > 0), raw.power_limit_w, limit)
    _check_clocks(raw, specs, reasons)
    _check_roof(raw, specs, reasons)
    _check_kernels(raw, specs, reasons)
    power = _screen_power(raw, specs, limit, power_reasons)
    rejected = [_rejected(raw, i, *why, power_only=False) for i, why in reasons.items()]
    rejected += [_rejected(raw, i, *why, power_only=True) for i, why in power_reasons.items() if reasons.get(i, ("",))[0] != why[0]]
    keep = np.array([i for i in range(len(raw.latency_s)) if i not in reasons], dtype=np.int64)
    rejected.sort(key=lambda item: item.row)
    return (_accepted(raw, keep, specs, power, limit) if len(keep) else None), rejected


def asked_gpu(text: str | None) -> GpuSpec | None:
    """The GPU that `--gpu` names, by name or file; None without one.  Raises SpecificationError for an unknown one."""
    return None if text is None else load_gpu(text.removeprefix(SIMULATED_PREFIX))


def known_gpu(text: str, asked: GpuSpec | None = None) -> GpuSpec | None:
    """The specification of the GPU that a row names, `asked` where it is that; a simulated board is the GPU that it simulates."""
    bare = text.removeprefix(SIMULATED_PREFIX)
    if asked is not None and is_named(asked, bare):
        return asked
    name = canonical_gpu_name(bare)
    return None if name is None else load_gpu(name)


def known_gpus(texts: Sequence[str], asked: GpuSpec | None, reasons: dict[int, tuple[str, str]]) -> list[GpuSpec | None]:
    """The specification of the GPU of each row, None where it is not known; `reasons` then says so."""
    found = {text: known_gpu(text, asked) if text else None for text in set(texts)}
    for i, text in enumerate(texts):
        if found[text] is None:
            reasons.setdefault(i, unknown_gpu(text))
    return [found[text] for text in texts]


def unknown_gpu(text: str) -> tuple[str, str]:
    """The reason and its detail for a row of a GPU that is not known."""
    return "UNKNOWN_GPU", f"{text[:80]!r}; known: {', '.join(gpu_names())}; or its file: --gpu FILE.toml"


def least_power_w(spec: GpuSpec) -> float:
    """No board of this kind draws less while a kernel runs [W]."""
    return LEAST_LIMIT_SHARE * spec.power_limit_w if spec.idle_w is None else AT_REST_SHARE * min(spec.idle_w.value)


def impossible_temperature(temperature_c: Array) -> BoolArray:
    """Temperatures that no board has, shape (n,); unknown ones (nan) are not among them."""
    with np.errstate(invalid="ignore"):
        result: BoolArray = (temperature_c < COLDEST_C) | (temperature_c > HOTTEST_C)
    return result


def mark_code(text: str) -> str:
    """A data set's own verdict on a row as a reason code; "" where the row is good."""
    code = text.strip().upper()
    if code in ("", "OK", "NONE", "GOOD"):
        return ""
    return code if REASON_CODE.fullmatch(code) else "MARKED"


def _read_marks(raw: RawKernels, reasons: dict[int, tuple[str, str]], power_reasons: dict[int, tuple[str, str]]) -> None:
    for i, mark in enumerate(raw.marks):
        if mark in POWER_REASONS:
            if raw.power_given[i]:
                power_reasons.setdefault(i, (mark, "so marked in the data set"))
        elif mark:
            reasons.setdefault(i, (mark, "so marked in the data set"))


def _check_clocks(raw: RawKernels, specs: list[GpuSpec | None], reasons: dict[int, tuple[str, str]]) -> None:
    """Rows whose clock no such GPU has are rejected."""
    for name in ("sm_clock_mhz", "sm_clock_asked_mhz"):
        column = getattr(raw, name)
        for i in np.flatnonzero(~np.isnan(column)).tolist():
            spec = specs[i]
            if spec and not spec.sm_clock_min_mhz / CLOCK_MARGIN <= column[i] <= spec.sm_clock_limit_mhz * CLOCK_MARGIN:
                limits = f"{spec.name} runs {spec.sm_clock_min_mhz:g} to {spec.sm_clock_limit_mhz:g} MHz"
                reasons.setdefault(i, ("BAD_CLOCK", f"{name} = {column[i]:g}; {limits}"))


def _check_roof(raw: RawKernels, specs: list[GpuSpec | None], reasons: dict[int, tuple[str, str]]) -> None:
    """Rows faster than their hardware, or in a number format that it does not have, are rejected."""
    for spec in dict.fromkeys(spec for spec in specs if spec is not None):
        named = enumerate(zip(specs, raw.operators, strict=True))
        rows = {i: operator for i, (own, operator) in named if own is spec and operator is not None and i not in reasons}
        if not rows:
            continue
        operators: dict[Operator, int] = {}
        position = np.array([operators.setdefault(operator, len(operators)) for operator in rows.values()])
        work = minimal_work(tuple(operators), spec)
        index = np.array(list(rows), dtype=np.int64)
        clock = np.where(np.isnan(raw.sm_clock_mhz[index]), raw.sm_clock_asked_mhz[index], raw.sm_clock_mhz[index])
        roof = roof_seconds(work.take(position), spec, clock, ~raw.l2_warm[index])
        _check_unit(raw, raw.latency_s[index], roof, spec)
        for i in index[~np.isfinite(work.flop_per_clock[position])].tolist():
            reasons.setdefault(i, ("NO_RATE", f"{rows[i].precision} on {spec.name}"))
        fast = raw.latency_s[index] * ROOF_TOLERANCE < roof
        for i, least in zip(index[fast].tolist(), roof[fast].tolist(), strict=True):
            reasons.setdefault(i, ("ABOVE_ROOF", f"latency_s = {raw.latency_s[i]:.4g}; {spec.name} needs at least {least:.4g} s"))


def _check_kernels(raw: RawKernels, specs: list[GpuSpec | None], reasons: dict[int, tuple[str, str]]) -> None:
    """Decode rows that another kernel ran than the rows of their collection are rejected."""
    members: dict[tuple[GpuSpec, str], list[int]] = {}
    for i, (spec, operator) in enumerate(zip(specs, raw.operators, strict=True)):
        if spec is not None and operator is not None and operator.family == "attention" and i not in reasons:
            members.setdefault((spec, raw.library[i]), []).append(i)
    for (spec, _), rows in members.items():
        index = np.array(rows, dtype=np.int64)
        operators = [operator for i in rows if (operator := raw.operators[i]) is not None]
        clock = np.where(np.isnan(raw.sm_clock_mhz[index]), raw.sm_clock_asked_mhz[index], raw.sm_clock_mhz[index])
        for i in index[other_kernel_rows(operators, spec, raw.latency_s[index], clock)].tolist():
            reasons.setdefault(i, ("OTHER_KERNEL", f"latency_s = {raw.latency_s[i]:.4g}, many times that of a fused kernel"))


def _check_unit(raw: RawKernels, latency_s: Array, roof_s: Array, spec: GpuSpec) -> None:
    """A file in which every kernel is far slower than the hardware holds milli- or microseconds."""
    if len(latency_s) < ROWS_FOR_UNITS:
        return
    ratio = latency_s / np.maximum(roof_s, SHORTEST_LAUNCH_S)
    if float(ratio.min()) > IMPLAUSIBLE_RATIO:
        raise InputError(
            f"{raw.source}: all {len(latency_s)} {spec.name} rows take more than {IMPLAUSIBLE_RATIO:g} times what the hardware needs "
            f"(median {float(np.median(ratio)):.3g} times): latency_s must be in seconds, is it in milliseconds or microseconds?"
        )


def _screen_power(raw: RawKernels, specs: list[GpuSpec | None], limit: Array, power_reasons: dict[int, tuple[str, str]]) -> Array:
    """Power of each row, nan where there is none or it was rejected."""
    least = {id(spec): least_power_w(spec) for spec in specs if spec is not None}
    for i in np.flatnonzero(raw.power_given).tolist():
        power = float(raw.power_w[i])
        if not 0.0 < power < np.inf:
            power_reasons.setdefault(i, ("BAD_POWER", f"power_w = {power:g}"))
        elif power < least.get(id(specs[i]), 0.0):
            power_reasons.setdefault(i, ("BAD_POWER", f"power_w = {power:g}, less than the board draws at rest; is it in watts?"))
        elif power > ABOVE_LIMIT_SHARE * limit[i]:
            power_reasons.setdefault(i, ("ABOVE_LIMIT", f"power_w = {power:g}; limit {limit[i]:g} W"))
    bad = np.zeros(len(raw.power_w), dtype=np.bool_)
    bad[list(power_reasons)] = True
    result: Array = np.where(raw.power_given & ~bad, raw.power_w, np.nan)
    return result


def _rejected(raw: RawKernels, i: int, reason: str, detail: str, *, power_only: bool) -> RejectedRow:
    return RejectedRow(source=raw.source, row=int(raw.row[i]), reason=reason, detail=detail, power_only=power_only)


def _accepted(raw: RawKernels, keep: IntArray, specs: list[GpuSpec | None], power: Array, limit: Array) -> KernelRows:
    operators: dict[Operator, int] = {}
    operator_index = [operators.setdefault(operator, len(operators)) for i in keep.tolist() if (operator := raw.operators[i]) is not None]
    gpus: dict[str, int] = {}
    gpu_index = [gpus.setdefault(spec.name, len(gpus)) for i in keep.tolist() if (spec := specs[i]) is not None]
    tiles = _tiles(raw, keep)
    return KernelRows(
        operators=tuple(operators),
        operator_index=np.array(operator_index, dtype=np.int64),
        gpus=tuple(gpus),
        gpu_index=np.array(gpu_index, dtype=np.int64),
        sm_clock_mhz=raw.sm_clock_mhz[keep],
        sm_clock_asked_mhz=raw.sm_clock_asked_mhz[keep],
        latency_s=raw.latency_s[keep],
        latency_std_s=raw.latency_std_s[keep],
        power_w=power[keep],
        power_std_w=np.where(np.isfinite(power[keep]), raw.power_std_w[keep], np.nan),
        power_limit_w=raw.power_limit_w[keep],
        idle_w=raw.idle_w[keep],
        temperature_c=raw.temperature_c[keep],
        at_limit=power[keep] >= AT_LIMIT_SHARE * limit[keep],
        l2_warm=raw.l2_warm[keep],
        library=tuple(raw.library[i] for i in keep),
        kernel_name=tuple(raw.kernel_name[i] for i in keep),
        tile_m=tiles[:, 0],
        tile_n=tiles[:, 1],
        split_k=tiles[:, 2],
        grid_blocks=raw.grid[keep].prod(axis=1),
        block_threads=raw.block_threads[keep],
        trial=raw.trial[keep],
        started_s=raw.started_s[keep],
        weight=raw.weight[keep],
        flags=tuple(raw.flags[i] for i in keep),
        sources=(raw.source,),
        source_index=np.zeros(len(keep), dtype=np.int64),
        row=raw.row[keep],
    )


def _tiles(raw: RawKernels, keep: IntArray) -> Array:
    """Tiles of the rows, shape (n, 3): as recorded, else from the kernel's name."""
    result = np.stack([raw.tile_m[keep], raw.tile_n[keep], raw.split_k[keep]], axis=1)
    for position, i in enumerate(keep.tolist()):
        operator = raw.operators[i]
        if operator is None or operator.family != "gemm" or not raw.kernel_name[i] or not np.isnan(result[position, 0]):
            continue
        grid = (float(raw.grid[i, 0]), float(raw.grid[i, 1]), float(raw.grid[i, 2]))
        tile = tile_from_name(raw.kernel_name[i], operator["batch"], operator["m"], operator["n"], grid)
        result[position] = (tile.tile_m, tile.tile_n, tile.split_k)
    return result


DECODE_GROUP: Final = "attention.decode"

SERVING_FIXED_S: Final = 20e-6
"""Launches and a serving library's small kernels beside the one in question [s]."""

OTHER_KERNEL_FACTOR: Final = 5.0
"""A row this many times slower than fixed cost and the priors' time together ran another kernel [1]."""

USUAL_FACTOR: Final = 3.0
LEAST_USUAL_SHARE: Final = 0.25
"""At least this share of the rows must lie within USUAL_FACTOR, else the whole collection is slow and no row stands out [1]."""


def other_kernel_rows(operators: Sequence[Operator], gpu: GpuSpec, latency_s: Array, sm_clock_mhz: Array) -> BoolArray:
    """Decode rows of one collection that another kernel ran than the fused one that the equations describe, shape (n,).

    Serving libraries leave the fused kernel for shapes that it does not take: more than 32 query heads to a key head (TensorRT-LLM),
    heads of 512 (vLLM).  What runs then takes ten to a hundred times what cache traffic and padded products explain, while rows of the
    fused kernel stay within a factor of three.  Source: public decode tables of AIConfigurator (docs/model.md).

    sm_clock_mhz: nan where unknown, then the clock of the published rates.
    """
    found = np.zeros(len(operators), dtype=np.bool_)
    decode = np.flatnonzero([operator.family == "attention" and operator.operator == "decode" for operator in operators])
    if not len(decode):
        return found
    centres = {name: prior.centre for name, prior in GROUP_PRIORS[DECODE_GROUP].items() if name in COEFFICIENTS}
    clock = np.where(np.isfinite(sm_clock_mhz[decode]), sm_clock_mhz[decode], gpu.sm_clock_max_mhz)
    chosen = [operators[i] for i in decode.tolist()]
    usual = kernel_times(chosen, gpu, {DECODE_GROUP: centres}, sm_clock_mhz=clock, warm=np.zeros(len(decode), dtype=np.bool_)).equations_s
    ratio = latency_s[decode] / (SERVING_FIXED_S + usual)
    if float((ratio <= USUAL_FACTOR).mean()) >= LEAST_USUAL_SHARE:
        found[decode] = ratio > OTHER_KERNEL_FACTOR
    return found

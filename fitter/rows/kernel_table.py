"""Kernels measured one by one: datasets of `collect`, and other tables with a row per kernel.

A dataset of `collect` is a table with more columns: flags, trials, requested and measured clocks, tiles.  Other tables may have the columns
family, operator, gpu, precision, kv_precision, batch, m, n, k | rows, dim | sequence, heads, kv_heads, head_dim, window, is_decode;
latency_s; power_w or energy_j, power_limit_w, power_std_w, sm_clock_mhz, kernel_name, grid_*, reason, source, collection, load, l2_state,
weight_copies.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from estimator.engine.kernel_table import kernel_times
from estimator.model.coefficients import COEFFICIENTS, section_words
from estimator.model.tile_names import SPLIT_WORD, tile_from_name
from estimator.vocabulary.errors import WorkloadError
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import FORMATS, Array, BoolArray, IntArray, canonical_precision
from estimator.vocabulary.work import operator_work
from estimator.vocabulary.workload import (
    CACHED,
    CUDNN_HEADS,
    FAMILY_FIELDS,
    FAMILY_OPERATORS,
    FLASH_ATTENTION,
    FRACTIONAL,
    LIBRARIES,
    TABLED,
    TWO_INPUTS,
    Operator,
    as_run,
    conv_output_size,
    make_operator,
)
from fitter.errors import InputError
from fitter.priors import GROUP_PRIORS
from fitter.rows.columns import KernelRows, Selection, compacted
from fitter.rows.screening import FEWEST_OF_A_UNIT, ROOF_TOLERANCE, Screen, first_known, numbered, roof_seconds
from fitter.rows.tables import Table

SHAPE_COLUMNS: Final = (*dict.fromkeys(name for names in FAMILY_FIELDS.values() for name in names), "sequence", "is_decode")
NAME_COLUMNS: Final = ("family", "operator", "precision", "precision_out", "precision_kv", "kv_precision", "cuda_cores", "distribution")
VALUE_COLUMNS: Final = (
    "latency_s", "power_w", "energy_j", "power_std_w", "power_limit_w", "temperature_c", "sm_clock_mhz", "sm_clock_measured_mhz", "grid_x",
    "grid_y", "grid_z", "tile_m", "tile_n", "split_k", "trial", "weight_copies",
)  # fmt: skip
PLAIN_NUMBERS: Final = ("energy_j", "power_limit_w", "sm_clock_mhz", "sm_clock_measured_mhz", "weight_copies")
"""Columns that count as not stated where they are empty, but not where they hold other text."""

TEXT_COLUMNS: Final = (
    "gpu", "gpu_uuid", "kernel_name", "kernel_label", "reason", "source", "library", "l2_state", "mode", "flags", "load", "collection",
    "host",
)  # fmt: skip
COLUMNS: Final = frozenset((*SHAPE_COLUMNS, *NAME_COLUMNS, *VALUE_COLUMNS, *TEXT_COLUMNS))
"""Columns that are read; others are ignored."""

NEEDED: Final = ("operator", "precision", "latency_s")
"""Columns that every kernel table needs; `gpu` may be given on the command line instead."""

COLD_LIBRARIES: Final = LIBRARIES
"""Frameworks whose published tables use several copies of the weights in turn.  Without their number L2 is assumed to hold none of them:
on products of A100, H100 and H200 the number that one of them usually takes improves no forecast.  Experts have one copy: an L40S reads
weights smaller than its L2 at 1.6 times the rate of its DRAM, larger ones at 0.7 times."""

CUDA_CORE_NAME: Final = ("sgemm", "simt")
"""Parts of the names of matrix kernels that use no tensor cores."""

REASON_CODE: Final = re.compile(r"[A-Z][A-Z0-9_]{0,39}")
POWER_REASONS: Final = frozenset({"SINGLE_SAMPLE", "SHORT_WINDOW", "HISTORY", "SEQUENCE", "COLD_START", "NO_NEIGHBOUR", "ABOVE_LIMIT"})
"""Verdicts in a user's table that concern only the power."""

REJECTS_ROW: Final = frozenset({"latency_absurd", "shared_board"})
"""Flags that make a row unusable: with two processes on a board, each row contains time and power of both."""

REJECTS_POWER: Final = frozenset({"power_missing", "power_absurd", "sensor_stuck", "short_window"})
"""Flags that make a row's power unusable."""

TIMED_ONLY: Final = "short_window"
"""The flag of a row that a budget only times; without a power it rejects nothing."""

LOWERS_WEIGHT: Final = frozenset(
    {
        "few_samples", "unsettled", "drifting", "latency_unsteady", "range_mismatch", "clock_varied", "counter_disagrees",
        "counter_absurd", "hot",
    }
)  # fmt: skip
"""Flags that reduce a row's weight.  Other flags have no effect: a throttled row has its measured clock."""

FLAGGED_WEIGHT: Final = 0.25
"""Weight in the fit of a flagged row [1]."""

AT_LIMIT_SHARE: Final = 0.96
"""Share of the power limit above which a board counts as limited; its power is then a lower bound [1]."""

IMPLAUSIBLE_RATIO: Final = 100.0
"""A file whose kernels are all this many times slower than the hardware allows has another unit than seconds [1]."""

SLOWEST_RATIO: Final = 1000.0
"""A row so many times slower than the hardware allows has another unit than seconds [1]."""


def read_kernel_table(table: Table, gpu: GpuSpec | None = None) -> Selection:
    """Accepted and rejected rows.

    gpu: the GPU to keep, possibly a user's specification, and the GPU of all rows if the table has no such column.
    Raises InputError for a table with another unit than seconds.
    """
    screen = Screen(table, gpu, repeated="flags" not in table)
    if not len(screen.table):
        return Selection(rejected=screen.rejected())
    screen.reject_texts(SHAPE_COLUMNS, "BAD_SHAPE")
    screen.reject_texts(PLAIN_NUMBERS, "BAD_NUMBER")
    screen.narrow()
    kernels, kernel_index = _operators(screen)
    table = screen.table
    value = {name: table.numbers(name) for name in VALUE_COLUMNS}
    with np.errstate(divide="ignore", invalid="ignore"):  # a latency of 0 is rejected below
        latency, power = value["latency_s"], first_known(value["power_w"], value["energy_j"] / value["latency_s"])
    _read_verdicts(screen, np.isfinite(power) | table.garbled("power_w"))
    _reject_other_ways(screen, kernels, kernel_index, latency)
    screen.reject_limits(("latency_s", "temperature_c", "weight_copies", "power_w", "power_limit_w"), power=("power_w", "power_limit_w"))
    asked = screen.clocks("sm_clock_mhz")
    measured = screen.clocks("sm_clock_measured_mhz") if "sm_clock_measured_mhz" in table else asked
    clock = first_known(measured, asked)
    library = _libraries(table)
    warm = _warm(screen, library, kernels, kernel_index)
    _reject_by_roof(screen, kernels, kernel_index, latency, clock)
    _reject_other_kernels(screen, library, kernels, kernel_index, latency, clock)
    limit = first_known(value["power_limit_w"], screen.of_gpu(lambda spec: spec.power_limit_w))
    screen.reject_power(power, limit)
    loads = _loads(screen, library, power)
    keep = screen.whole < 0
    power = np.where(screen.power >= 0, np.nan, power)
    doubted = np.any([table.marked(flag) for flag in LOWERS_WEIGHT], axis=0)
    names = table.texts("kernel_name")
    tiles = _tiles(value, kernels, kernel_index, names)
    rows = KernelRows(
        operators=tuple(kernels),
        operator_index=kernel_index,
        sm_clock_mhz=measured,
        sm_clock_asked_mhz=asked,
        latency_s=latency,
        power_w=power,
        power_std_w=np.where(np.isfinite(power), value["power_std_w"], np.nan),
        temperature_c=value["temperature_c"],
        at_limit=power >= AT_LIMIT_SHARE * limit,
        sustained=loads == "sustained",
        burst=loads == "burst",
        l2_warm=warm,
        library=tuple(library),
        kernel_name=tuple(names),
        tile_m=tiles[:, 0],
        tile_n=tiles[:, 1],
        split_k=tiles[:, 2],
        weight=shared_weight(np.where(doubted, FLAGGED_WEIGHT, 1.0) * keep, _repeats(table, kernel_index)),
        **screen.places(),
    )
    return Selection(kernels=compacted(rows, screen.kept()), rejected=screen.rejected())


def _operators(screen: Screen) -> tuple[list[Operator], IntArray]:
    """Unique operators, and the index of each row's operator; rows without a valid one are removed from the screen's table."""
    table = screen.table
    names = {column: table.coded(column) for column in (*NAME_COLUMNS, "kernel_name") if column in table}
    columns: dict[str, Array | IntArray] = {column: codes for column, (codes, _) in names.items()}
    columns |= {column: table.numbers(column) for column in SHAPE_COLUMNS if column in table}
    prefers = screen.of_gpu(lambda spec: float(spec.compute_capability in CUDNN_HEADS))
    by = [_word(text, cudnn > 0.0) for text, cudnn in zip(_libraries(table), prefers, strict=True)]
    libraries, columns["library"] = numbered(by)
    index = pd.DataFrame(columns).groupby(list(columns), dropna=False, sort=False).ngroup().to_numpy()
    found = []
    for i in np.unique(index, return_index=True)[1].tolist():
        texts = {column: texts[codes[i]] for column, (codes, texts) in names.items()} | {"library": libraries[int(columns["library"][i])]}
        found.append(_operator({column: values[i] for column, values in columns.items()} | texts, own="flags" in table))
    bad = {number: one for number, one in enumerate(found) if isinstance(one, tuple)}
    for reason in {one[0] for one in bad.values()}:
        own = [number for number, one in bad.items() if one[0] == reason]
        screen.reject(np.isin(index, own), reason, lambda i: bad[index[i]][1])
    good = {number: one for number, one in enumerate(found) if isinstance(one, Operator)}
    kernels, place = numbered(good.values())
    left = index[screen.whole < 0]
    screen.narrow()
    return list(kernels), place[np.searchsorted([*good], left)]


def _libraries(table: Table) -> Array:
    """Library or framework of the rows with its version, shape (n,); "" where not recorded."""
    sources = [source.partition("#")[0] for source in table.texts("source")]
    return np.array([source or own for source, own in zip(sources, table.texts("library"), strict=True)], dtype=object)


def _word(library: str, cudnn: bool) -> str:
    """The operator's word for a row's library; FlashAttention-2 has one where PyTorch prefers `cudnn`."""
    if library.startswith(FLASH_ATTENTION):
        return FLASH_ATTENTION if cudnn else ""
    return word if (word := library.partition("-")[0]) in LIBRARIES else ""


def _operator(row: Mapping[str, Any], *, own: bool) -> Operator | tuple[str, str]:
    """The operator of one kind of row, or the reason for its rejection; own: by `collect`, whose fp8 products have given scales."""
    given, called = row.get("family", "").lower(), row["operator"].lower()
    family, operator = _kind(given, called, row)
    if family is None:
        return ("UNKNOWN_OPERATOR", f"family {given[:40]!r}, operator {called[:40]!r}")
    written = {name: row.get(name) or "" for name in ("precision", "precision_out")}
    written["precision_kv"] = (row.get("precision_kv") or row.get("kv_precision") or row["precision"]) if family in CACHED else ""
    formats = {name: canonical_precision(text.lower()) if text else "" for name, text in written.items()}
    unknown = next((name for name, found in formats.items() if found is None), None)
    if unknown is not None or not formats["precision"]:
        return ("UNKNOWN_PRECISION", repr(written[unknown or "precision"][:40]))
    if own and family == "gemm" and formats["precision"] == "fp8":
        formats["precision"] = "fp8_static"
    shape = _shape(family, operator, row)
    broken = next((name for name, value in shape.items() if value % 1.0 != 0.0 and name not in FRACTIONAL), None)
    if broken is not None:
        return ("BAD_SHAPE", f"{broken} = {shape[broken]:g} must be a whole number")
    named = (
        family == "gemm" and formats["precision"] not in ("fp32", "fp64") and any(p in row.get("kernel_name", "") for p in CUDA_CORE_NAME)
    )
    cuda_cores = named or row.get("cuda_cores", "").lower() in ("true", "1")
    precision, more = formats.pop("precision"), {name: text for name, text in formats.items() if text}
    try:
        return as_run(make_operator(family, operator, str(precision), cuda_cores=cuda_cores, library=row["library"], **more, **shape))
    except WorkloadError as error:
        return ("BAD_SHAPE", str(error)[:200])


def _kind(family: str, operator: str, row: Mapping[str, Any]) -> tuple[str | None, str]:
    """Family and operator in our names; the operator decides, since the family may be missing or differ."""
    if operator in ("attention", "") and family == "attention":
        operator = "decode" if row.get("is_decode", 0.0) > 0 else "prefill"
    operator = {"ln": "layernorm"}.get(operator, operator)  # as in published tables
    for known, operators in FAMILY_OPERATORS.items():
        if operator in operators and (known == family or known in TABLED or family not in FAMILY_OPERATORS):
            return known, operator
    return None, operator


def _shape(family: str, operator: str, row: Mapping[str, Any]) -> dict[str, float]:
    """Shape fields of a family from the columns of a table; those of a missing column are left out."""
    known = {name: float(row.get(name, np.nan)) for name in (*FAMILY_FIELDS[family], "sequence", "heads", "rows", "dim")}
    defaults: dict[str, float] = {}
    if family == "gemm":
        defaults = {"batch": 1.0}
    elif family == "attention":
        decode, sequence = operator == "decode", known["sequence"]
        defaults = {"queries": 1.0 if decode else sequence, "context": sequence, "kv_heads": known["heads"]}
        defaults |= {"window": 0.0, "causal": 0.0 if decode else 1.0}
    elif family == "mla":
        sequence = known["sequence"]
        defaults = {"queries": 1.0 if operator == "mla_decode" else sequence, "context": sequence}
    elif family == "moe":
        skew = row.get("distribution", "").removeprefix("power_law_")
        defaults = {"gated": 1.0, "tp": 1.0, "ep": 1.0, "skew": 0.0 if skew in ("", "balanced") else _number(skew)}
    elif family in ("elementwise", "copy"):
        elements = known["rows"] * known["dim"] if np.isnan(known["elements"]) else known["elements"]
        defaults = {"elements": elements, "reads": elements * (2.0 if operator in TWO_INPUTS else 1.0)}
    found = {name: defaults.get(name, np.nan) if np.isnan(known[name]) else known[name] for name in FAMILY_FIELDS[family]}
    return {name: value for name, value in found.items() if not np.isnan(value)}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0  # is refused where the shape is checked


def _read_verdicts(screen: Screen, powered: BoolArray) -> None:
    """Apply the data set's own marks: verdicts of tables, flags of `collect`."""
    codes, texts = screen.table.coded("reason")
    for number, text in enumerate(texts):
        code = text.upper()
        if code not in ("", "OK"):
            rows = (codes % len(texts) == number) & (powered | (code not in POWER_REASONS))
            known = code if REASON_CODE.fullmatch(code) else "MARKED"
            screen.reject(rows, known, "so marked in the data set", power=code in POWER_REASONS)
    screen.reject_flags(REJECTS_ROW)
    screen.reject_flags(REJECTS_POWER - {TIMED_ONLY}, power=True)
    screen.reject_flags({TIMED_ONLY}, powered, power=True)


SLOWER: Final = 1.05
"""Median of a kernel's time over that of the fastest kernel of its shapes above which an engine does not choose it [1].  Tables of one
library repeat to 1 to 3 % (medians); products under two names that are one kernel differ by 1 %."""


def _reject_other_ways(screen: Screen, kernels: Sequence[Operator], kernel_index: IntArray, latency_s: Array) -> None:
    """Reject rows that ran in a way that an engine does not choose.

    Collectives of serving libraries launched one by one wait for the host (vLLM's sum of a kilobyte on H100: 13 µs, in a graph 4); NCCL's
    own benchmark launches dozens in a row.  Where a table has two kernels for the same shapes, an engine takes the one that is usually
    faster, and rows of the other are rejected, those without a faster one too: 4-bit experts of B200 are 2.4 times as slow with the other
    one, and DeepSeek-V3 is served at the pace of the faster.
    """
    table = screen.table
    linked = np.array([operator.family == "communication" and operator.library != "nccl" for operator in kernels], dtype=np.bool_)
    screen.reject(table.marked("eager", "mode") & linked[kernel_index], "EAGER", "launched one by one, so the host's time is in it")
    label, texts = table.coded("kernel_label")
    if len(texts) <= 2:
        return
    good = screen.kept()
    _, kind = numbered([(*section_words(operator), operator.library) for operator in kernels])
    rows = pd.DataFrame({"kernel": kernel_index, "gpu": screen.gpu_index, "label": label, "kind": kind[kernel_index]}).iloc[good]
    shapes = rows.assign(latency_s=latency_s[good]).groupby(["kernel", "gpu"])
    ratio = (latency_s[good] / shapes["latency_s"].transform("min")).where(shapes["label"].transform("nunique") > 1)
    slower = good[(ratio.groupby([rows[name] for name in ("kind", "gpu", "label")]).transform("median") > SLOWER).to_numpy()].tolist()
    screen.reject(slower, "SECOND_KERNEL", lambda i: f"{texts[label[i]][:40]!r}; the library has a faster kernel for such shapes")


def _warm(screen: Screen, library: Array, kernels: Sequence[Operator], kernel_index: IntArray) -> Array:
    """What the launches of a row use in turn, in operands of one launch, shape (n,); 0: none are found in L2.

    Known copies of a product's weights, with one set of activations; else as stated, else 1, since simple benchmarks launch one kernel on
    one set of buffers.  Rows with another word for the state of L2 are rejected.
    """
    table = screen.table
    stated = _stated(screen, "l2_state", "BAD_L2_STATE", ("cold", "warm"))
    experts = [kernels[i].family == "moe" for i in kernel_index.tolist()]
    alone = [one or not own.startswith(COLD_LIBRARIES) for one, own in zip(experts, library, strict=True)]
    usual = [state == "warm" if state else one for state, one in zip(stated, alone, strict=True)]
    weight, total = np.array([_footprint(kernel) for kernel in kernels]).reshape(-1, 2)[kernel_index].T
    known: Array = 1.0 + (table.numbers("weight_copies") - 1.0) * weight / total
    return np.where(np.isfinite(known), known, usual)


def _footprint(kernel: Operator) -> tuple[float, float]:
    """Bytes of a product's weights (nan for other kernels) and of all its operands."""
    work, weights = operator_work(kernel), np.nan
    if kernel.family == "gemm":
        weights = kernel["batch"] * kernel["n"] * kernel["k"] * FORMATS[kernel.precision].weight_byte
    return weights, work.read_byte + work.write_byte


def _stated(screen: Screen, column: str, reason: str, known: Sequence[str]) -> list[str]:
    """A column of words in lower case, "" where not stated; rows with another word than the `known` ones are rejected."""
    words = [text.lower() for text in screen.table.texts(column)]
    other = [i for i, word in enumerate(words) if word not in ("", *known)]
    screen.reject(other, reason, lambda i: f"{words[i][:40]!r}; known: {', '.join(known)}")
    return words


LOADS: Final = ("burst", "sustained")
"""Values of the column `load`: a few launches, or a kernel repeated long enough for the power limit to act (tens of ms)."""


def _loads(screen: Screen, library: Array, power: Array) -> Array:
    """The load of each row: as stated, else sustained with a power, which takes a second to read, and a burst in tables of serving
    libraries, which time six launches.  Rows with another word for their load are rejected.
    """
    loads = zip(_stated(screen, "load", "BAD_LOAD", LOADS), library, np.isfinite(power), strict=True)
    return np.array(
        [load or ("sustained" if powered else "burst" * own.startswith(COLD_LIBRARIES)) for load, own, powered in loads], dtype=object
    )


def _reject_by_roof(screen: Screen, kernels: Sequence[Operator], kernel_index: IntArray, latency_s: Array, clock_mhz: Array) -> None:
    """Reject rows faster than their hardware allows, or in a number format without hardware support.

    Raises InputError if every kernel is far slower than the hardware: the file holds milli- or microseconds.
    """
    good, roof = screen.kept(), np.full(len(latency_s), np.inf)
    for number, spec in enumerate(screen.specs):
        index = good[screen.gpu_index[good] == number]
        if not len(index):
            continue
        used, position = np.unique(kernel_index[index], return_inverse=True)
        roof[index] = roof_seconds([kernels[i] for i in used.tolist()], spec, position, clock_mhz[index])
        # Kernels of less than 10 µs are ruled by launch costs, not by their work.
        ratio = latency_s[index] / np.fmax(roof[index], 10e-6)
        if len(index) >= FEWEST_OF_A_UNIT and float(ratio.min()) > IMPLAUSIBLE_RATIO:
            raise InputError(
                f"{screen.table.name}: all {len(index)} {spec.name} rows take over {IMPLAUSIBLE_RATIO:g} times what the hardware needs; "
                "latency_s must be in seconds"
            )
    slow = latency_s > SLOWEST_RATIO * np.fmax(roof, 10e-6)
    screen.reject(slow, "ABSURDLY_SLOW", lambda i: f"latency_s = {latency_s[i]:.4g}; its GPU needs {roof[i]:.4g} s: another unit?")
    screen.reject(np.isnan(roof), "NO_RATE", lambda i: f"no rate of {kernels[kernel_index[i]].precision} on its GPU")
    fast = latency_s * ROOF_TOLERANCE < np.where(np.isfinite(roof), roof, 0.0)
    screen.reject(fast, "ABOVE_ROOF", lambda i: f"latency_s = {latency_s[i]:.4g}; its GPU needs at least {roof[i]:.4g} s")


DECODE_GROUP: Final = "attention.decode"

USUAL_FACTOR: Final = 3.0
"""Largest time of an ordinary row, as a multiple of fixed cost and the priors' time together [1]."""


def _reject_other_kernels(
    screen: Screen, library: Array, kernels: Sequence[Operator], kernel_index: IntArray, latency_s: Array, clock_mhz: Array
) -> None:
    """Reject decode rows that ran another kernel than the fused one of the equations.

    Serving libraries replace the fused kernel for unsupported shapes: more than 32 query heads to a key head (TensorRT-LLM), heads of
    512 (vLLM).  The replacement takes ten to a hundred times the time that cache traffic and padded products explain, while rows of the
    fused kernel stay within a factor of three.  More than half of the GB200's decode rows in AIConfigurator's table of powers are such
    rows: with them a fit has an error of 480 % on the others, instead of 8 %.
    """
    centres = {name: prior.centre for name, prior in GROUP_PRIORS[DECODE_GROUP].items() if name in COEFFICIENTS}
    decodes = np.array([operator.operator == "decode" for operator in kernels], dtype=np.bool_)[kernel_index]
    rows = screen.kept()
    rows = rows[decodes[rows]]
    _, collection = numbered(zip(screen.gpu_index[rows].tolist(), library[rows], strict=True))
    for number in range(collection.max(initial=-1) + 1):
        own = rows[collection == number]
        gpu = screen.specs[screen.gpu_index[own[0]]]
        clock = first_known(clock_mhz[own], gpu.sm_clock_max_mhz)
        cold = np.zeros(len(own), dtype=np.bool_)
        chosen = [kernels[i] for i in kernel_index[own].tolist()]
        usual = kernel_times(chosen, gpu, {DECODE_GROUP: centres}, sm_clock_mhz=clock, warm=cold).equations_s
        # Launches and a serving library's small kernels beside the one in question take some 20 µs.
        ratio = latency_s[own] / (20e-6 + usual)
        # With less than a quarter of ordinary rows the whole collection is slow and no row stands out.
        if float((ratio <= USUAL_FACTOR).mean()) >= 0.25:
            # A row that is 5 times slower than fixed cost and the priors' time together ran another kernel.
            slow = own[ratio > 5.0].tolist()
            screen.reject(slow, "OTHER_KERNEL", lambda i: f"latency_s = {latency_s[i]:.4g}, many times that of a fused kernel")


def _tiles(value: Mapping[str, Array], kernels: Sequence[Operator], kernel_index: IntArray, names: Sequence[str]) -> Array:
    """Tiles of the rows, shape (n, 3): as recorded, else from the kernel's name.  A named split that the grid does not show is unknown."""
    result = np.stack([value[name] for name in ("tile_m", "tile_n", "split_k")], axis=1)
    grid = np.stack([value[f"grid_{axis}"] for axis in "xyz"], axis=1).tolist()
    for place, (number, name) in enumerate(zip(kernel_index.tolist(), names, strict=True)):
        operator = kernels[number]
        if operator.operator in ("linear", "bmm", "conv2d") and name and np.isnan(result[place, 0]):
            batch, m, n = operator.shape[:3]
            if operator.operator == "conv2d":
                groups = operator["groups"]
                batch, m, n = groups, batch * math.prod(conv_output_size(operator)), operator["filters"] / groups
            tile = tile_from_name(name, batch, m, n, tuple(grid[place]))
            result[place] = (tile.tile_m, tile.tile_n, tile.split_k)
    result[[i for i in np.flatnonzero(result[:, 2] == 1.0).tolist() if SPLIT_WORD.search(names[i])], 2] = np.nan
    return result


def shared_weight(weight: Array, repeats: IntArray) -> Array:
    """Weights of rows, shape (n,), where equal numbers in `repeats` (n,) mark repetitions of one measurement.

    Repetitions together have the weight of the best one, because the equations have the same error in all trials of a kernel.
    """
    same = pd.Series(weight).groupby(repeats)
    return np.asarray(weight * (same.transform("max") / same.transform("sum")).fillna(0.0))


def _repeats(table: Table, kernel_index: IntArray) -> IntArray:
    """A number for each kernel at each requested clock, equal for all its trials, shape (n,); other tables have no trials.

    A product in another layout is one more trial, because the equations do not contain layouts.  Each has its own time, power and tile.
    """
    if "trial" not in table:
        return np.arange(len(table))
    columns = [kernel_index, np.nan_to_num(table.numbers("sm_clock_mhz")), *(table.coded(name)[0] for name in ("gpu_uuid", "l2_state"))]
    return np.unique(np.stack(columns), axis=1, return_inverse=True)[1].reshape(-1)

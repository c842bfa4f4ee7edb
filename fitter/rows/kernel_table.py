"""Kernel tables: measurements that labs have of their own, as CSV or Parquet with a row per kernel.

Columns, whichever apply: family, operator, gpu, precision, kv_precision, batch, m, n, k | rows, dim | sequence, heads,
kv_heads, head_dim, window, is_decode; latency_s; power_w, power_limit_w, power_std_w, sm_clock_mhz, kernel_name, grid_*,
block_*, samples_min, reason, source, l2_state.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from estimator.errors import WorkloadError
from estimator.gpu import GpuSpec, is_simulated_uuid
from estimator.quantities import Array, BoolArray, IntArray, canonical_precision
from estimator.workload import FAMILY_FIELDS, FAMILY_OPERATORS, Operator, make_operator
from fitter.errors import InputError
from fitter.rows.columns import KernelRows
from fitter.rows.rejected import RejectedRow
from fitter.rows.screening import RawKernels, mark_code, screen
from fitter.rows.tables import Table

SHAPE_COLUMNS: Final = (
    "batch", "m", "n", "k", "rows", "dim", "elements", "reads", "sequence", "queries", "context", "heads", "kv_heads", "head_dim",
    "window", "is_decode", "causal", "channels", "height", "width", "filters", "kernel_h", "kernel_w", "stride", "padding", "groups",
)  # fmt: skip
NAME_COLUMNS: Final = ("family", "operator", "precision", "kv_precision")
VALUE_COLUMNS: Final = (
    "latency_s", "latency_std_s", "power_w", "power_std_w", "power_limit_w", "idle_w", "temperature_c", "sm_clock_mhz",
    "sm_clock_measured_mhz", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "samples_min",
)  # fmt: skip
TEXT_COLUMNS: Final = ("gpu", "gpu_uuid", "kernel_name", "reason", "source", "library", "l2_state")
COLUMNS: Final = frozenset(SHAPE_COLUMNS + NAME_COLUMNS + VALUE_COLUMNS + TEXT_COLUMNS)
"""Columns that a kernel table may have; others are left alone."""

NEEDED: Final = ("operator", "precision", "latency_s")
"""Columns without which there is no kernel table; `gpu` may be given on the command line instead."""

OPERATOR_ALIASES: Final[dict[str, str]] = {
    "ln": "layernorm",
    "layer_norm": "layernorm",
    "rms_norm": "rmsnorm",
    "batch_norm": "batchnorm",
    "matmul": "bmm",
    "gemm": "linear",
    "context": "prefill",
    "generation": "decode",
}
"""Other spellings of operators."""

TWO_INPUTS: Final = frozenset({"add", "mul", "div", "pow", "where"})
"""Element-wise operators that read two tensors as large as the result."""

COLD_LIBRARIES: Final = ("trtllm", "vllm", "sglang")
"""Collections of serving frameworks cycle through several copies of the weights, so that none is found in L2."""

CUDA_CORE_NAME: Final = ("sgemm", "simt")
"""Parts of the names of matrix kernels that use no tensor cores."""


EQUAL_ROW: Final = ("DUPLICATE", "equals an earlier row in every column")


def is_kernel_table(header: tuple[str, ...]) -> bool:
    """Whether a file with these columns is a kernel table."""
    return all(name in header for name in NEEDED)


def read_kernel_table(table: Table, gpu: GpuSpec | None = None) -> tuple[KernelRows | None, list[RejectedRow]]:
    """Rows of a kernel table and the reasons for those left out.

    gpu: the GPU of all rows where the table has no such column.  Raises InputError for a table without the needed
    columns or with an implausible unit.
    """
    missing = [name for name in NEEDED if name not in table]
    if missing:
        raise InputError(f"{table.path}: no column {missing[0]!r}; a kernel table needs {', '.join(NEEDED)}")
    if "gpu" not in table and gpu is None:
        raise InputError(f"{table.path}: no column 'gpu'; add it, or name the GPU of all rows with --gpu")
    reasons: dict[int, tuple[str, str]] = {}
    for i in np.flatnonzero(table.oversized()).tolist():
        reasons[i] = ("BAD_TEXT", "a cell is longer than any name can be")
    operators = read_operators(table, reasons)
    for i in np.flatnonzero(table.repeated()).tolist():
        reasons.setdefault(i, EQUAL_ROW)
    return screen(_raw(table, operators, gpu, reasons), gpu)


def from_simulated_board(table: Table) -> bool:
    """Whether the boards' UUIDs tell of a simulation: a dataset of `collect` in another format has no other mark."""
    return "gpu_uuid" in table and any(is_simulated_uuid(uuid) for uuid in set(table.texts("gpu_uuid")))


def read_operators(table: Table, reasons: dict[int, tuple[str, str]]) -> list[Operator | None]:
    """The operator of each row, None (with a reason) where it cannot be told."""
    names = {column: table.texts(column) for column in (*NAME_COLUMNS, "kernel_name")}
    shapes = {column: table.numbers(column) for column in SHAPE_COLUMNS if column in table}
    cache: dict[tuple[object, ...], Operator | tuple[str, str]] = {}
    operators: list[Operator | None] = []
    for i in range(len(table)):
        simt = any(part in names["kernel_name"][i] for part in CUDA_CORE_NAME)
        key = (*(names[column][i] for column in NAME_COLUMNS), simt, *(float(values[i]) for values in shapes.values()))
        if key not in cache:
            shape = {column: float(values[i]) for column, values in shapes.items()}
            cache[key] = _operator({column: names[column][i].lower() for column in NAME_COLUMNS}, shape, simt)
        found = cache[key]
        if isinstance(found, tuple):
            reasons.setdefault(i, found)
        operators.append(None if isinstance(found, tuple) else found)
    return operators


def _operator(names: Mapping[str, str], shape: Mapping[str, float], simt: bool) -> Operator | tuple[str, str]:
    """The operator of one kind of row, or the reason why there is none."""
    family, operator = _kind(names["family"], names["operator"], shape)
    if family is None:
        return ("UNKNOWN_OPERATOR", f"family {names['family'][:40]!r}, operator {names['operator'][:40]!r}")
    precision = canonical_precision(names["precision"])
    kv_precision = canonical_precision(names["kv_precision"]) if names["kv_precision"] else precision
    if precision is None or kv_precision is None:
        return ("UNKNOWN_PRECISION", repr((names["precision"] if precision is None else names["kv_precision"])[:40]))
    details: dict[str, Any] = {}
    for name, value in _shape(family, operator, shape).items():
        if np.isnan(value):
            continue
        if value % 1.0 != 0.0:
            return ("BAD_SHAPE", f"{name} = {value:g} must be a whole number")
        details[name] = value
    if family == "attention":
        details["precision_kv"] = kv_precision
    if simt and family == "gemm" and precision not in ("fp32", "fp64"):
        details["cuda_cores"] = True
    try:
        return make_operator(family, operator, precision, **details)
    except WorkloadError as error:
        return ("BAD_SHAPE", str(error)[:200])


def _kind(family: str, operator: str, shape: Mapping[str, float]) -> tuple[str | None, str]:
    """Family and operator in our names; the family may be missing or another's, the operator decides."""
    if operator in ("attention", "") and family == "attention":
        operator = "decode" if shape.get("is_decode", 0.0) > 0 else "prefill"
    operator = OPERATOR_ALIASES.get(operator, operator)
    for known, operators in FAMILY_OPERATORS.items():
        if operator in operators and (known == family or family not in FAMILY_OPERATORS):
            return known, operator
    return None, operator


def _shape(family: str, operator: str, shape: Mapping[str, float]) -> dict[str, float]:
    """Shape fields of a family from the columns of a table; nan where a column is missing."""
    nan = float("nan")
    given = {name: shape.get(name, nan) for name in FAMILY_FIELDS[family]}
    if family == "gemm":
        given["batch"] = 1.0 if np.isnan(given["batch"]) else given["batch"]
    elif family == "attention":
        sequence = shape.get("sequence", nan)
        defaults = {
            "queries": 1.0 if operator == "decode" else sequence,
            "context": sequence,
            "kv_heads": given["heads"],
            "window": 0.0,
            "causal": 0.0 if operator == "decode" else 1.0,
        }
        given = {name: defaults.get(name, nan) if np.isnan(value) else value for name, value in given.items()}
    elif family in ("elementwise", "copy"):
        elements = shape.get("rows", nan) * shape.get("dim", nan) if np.isnan(given["elements"]) else given["elements"]
        reads = elements * (2.0 if operator in TWO_INPUTS else 1.0) if np.isnan(given["reads"]) else given["reads"]
        given = {"elements": elements, "reads": reads}
    return given


def _raw(table: Table, operators: list[Operator | None], gpu: GpuSpec | None, reasons: dict[int, tuple[str, str]]) -> RawKernels:
    """The table's columns, ready for screening."""
    count = len(table)
    unknown = np.full(count, np.nan)
    power = table.numbers("power_w")
    libraries = [source.partition("#")[0] for source in table.texts("source")] if "source" in table else table.texts("library")
    gpus = table.texts("gpu") if "gpu" in table else [gpu.name if gpu else ""] * count
    asked = table.numbers("sm_clock_mhz")
    return RawKernels(
        source=table.name,
        operators=operators,
        gpus=gpus,
        latency_s=table.numbers("latency_s"),
        latency_std_s=table.numbers("latency_std_s"),
        power_w=power,
        power_given=~np.isnan(power) | table.garbled("power_w"),
        power_std_w=table.numbers("power_std_w"),
        power_limit_w=table.numbers("power_limit_w"),
        idle_w=table.numbers("idle_w"),
        temperature_c=table.numbers("temperature_c"),
        sm_clock_mhz=table.numbers("sm_clock_measured_mhz") if "sm_clock_measured_mhz" in table else asked,
        sm_clock_asked_mhz=asked,
        l2_warm=_warm(table, libraries),
        library=libraries,
        kernel_name=table.texts("kernel_name"),
        tile_m=unknown,
        tile_n=unknown,
        split_k=unknown,
        grid=_triple(table, "grid"),
        block_threads=_triple(table, "block").prod(axis=1),
        trial=np.zeros(count, dtype=np.int64),
        started_s=unknown,
        weight=np.ones(count),
        flags=_format_flags(table),
        marks=[mark_code(text) for text in table.texts("reason")],
        row=np.arange(1, count + 1, dtype=np.int64),
        reasons=reasons,
        power_reasons=_brief_windows(table, libraries, gpus),
    )


def _brief_windows(table: Table, libraries: list[str], gpus: list[str]) -> dict[int, tuple[str, str]]:
    """Power rows that were read too briefly, among those on which the table itself passes no verdict."""
    if "samples_min" not in table:
        return {}
    groups = list(zip(libraries, gpus, table.texts("operator"), table.texts("precision"), strict=True))
    found = window_reasons(groups, table.numbers("latency_s"), table.numbers("samples_min"))
    verdicts = table.texts("reason")
    detail = "too few readings explain the stored mean"
    return {i: (reason, detail) for i, reason in enumerate(found) if reason and not verdicts[i]}


def _warm(table: Table, libraries: list[str]) -> BoolArray:
    """Whether operands were in L2: as stated, else yes, as simple benchmarks launch one kernel on one set of buffers."""
    stated = table.texts("l2_state")
    usual = ["cold" if library.startswith(COLD_LIBRARIES) else "warm" for library in libraries]
    return np.array([(text or default) != "cold" for text, default in zip(stated, usual, strict=True)], dtype=np.bool_)


def _triple(table: Table, name: str) -> Array:
    return np.stack([table.numbers(f"{name}_{axis}") for axis in "xyz"], axis=1)


def _format_flags(table: Table) -> list[tuple[str, ...]]:
    """The number format where it is a variant of the one that the equations know (fp8_block)."""
    return [(text.lower(),) if "_" in text else () for text in table.texts("precision")]


LATENCY_BIN_DECADES: Final = 0.05
"""Kernels within 12 % of each other's latency get the same number of readings [decade]."""

FEWEST_READINGS: Final = 8.0
"""A mean over fewer readings of a 1 s average does not describe the kernel [1]."""

SINGLE_READING: Final = 1.5
"""Below this the power is one reading, taken at the launch [1]."""


def window_reasons(groups: Sequence[object], latency_s: Array, samples_min: Array) -> list[str]:
    """SINGLE_SAMPLE, SHORT_WINDOW or "" for each row.

    groups: rows with equal values were measured in the same way (collection, GPU, operator, precision).
    samples_min: smallest number of readings that can give the stored mean; nan where unknown (no reason is given).
    """
    readings = estimated_readings(groups, latency_s, samples_min)
    return ["" if not r < FEWEST_READINGS else "SINGLE_SAMPLE" if r < SINGLE_READING else "SHORT_WINDOW" for r in readings]


def estimated_readings(groups: Sequence[object], latency_s: Array, samples_min: Array) -> Array:
    """Estimated number of readings of each row, shape (n,); nan where nothing is known.

    A sensor that reports whole milliwatts gives, over d readings, a mean that is a multiple of 1/d mW.  The smallest such d divides the
    number of readings; the largest of them among kernels of like duration, measured in the same way, is close to that number.
    """
    members: dict[object, list[int]] = {}
    known: BoolArray = np.isfinite(samples_min) & (latency_s > 0)
    for i in np.flatnonzero(known).tolist():
        members.setdefault(groups[i], []).append(i)
    result = np.full(len(latency_s), np.nan)
    for rows in members.values():
        index: IntArray = np.array(rows, dtype=np.int64)
        position = np.log10(latency_s[index])
        order = np.argsort(position, kind="stable")
        ordered, divisors = position[order], samples_min[index][order]
        low = np.searchsorted(ordered, ordered - LATENCY_BIN_DECADES / 2.0, side="left")
        high = np.searchsorted(ordered, ordered + LATENCY_BIN_DECADES / 2.0, side="right")
        result[index[order]] = [divisors[start:stop].max() for start, stop in zip(low, high, strict=True)]
    return result

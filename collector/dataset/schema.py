"""What a kernel dataset holds: a row for each kernel configuration, clock and trial.

Every column has a unit and a meaning, which stand in the file beside it.  A null is "not known" or "has no
meaning for this kernel"; no number ever stands for that.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from collector.errors import DatasetError
from estimator.errors import WorkloadError
from estimator.workload import FAMILY_FIELDS, Operator, make_operator

SCHEMA_VERSION: Final = "1.2"
"""Version of the columns and of the file metadata; the minor number grows when a column is added."""

METADATA_KEY: Final = b"wattprint"
"""Key of the file metadata, a JSON object."""

Row = Mapping[str, Any]
"""One measured kernel: values by column name; what is left out is null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: Arrow type, unit ("1" for pure numbers, "" for texts), meaning, and whether it may be null."""

    type: pa.DataType
    unit: str
    meaning: str
    nullable: bool = True


_TEXT: Final = pa.string()
_NUMBER: Final = pa.float64()
_COUNT: Final = pa.int64()
_TRUTH: Final = pa.bool_()

INT64_END: Final = 1 << 63
EXACT_WHOLE: Final = 1 << 53
"""Whole numbers up to here are doubles too."""


def _required(type_: pa.DataType, unit: str, meaning: str) -> Column:
    return Column(type=type_, unit=unit, meaning=meaning, nullable=False)


def _optional(type_: pa.DataType, unit: str, meaning: str) -> Column:
    return Column(type=type_, unit=unit, meaning=meaning)


_SHAPE_MEANING: Final[dict[str, str]] = {
    "batch": "independent matrices, images or sequences",
    "m": "rows of the product; tokens of a linear layer",
    "n": "columns of the product; outputs of a linear layer",
    "k": "inner dimension; inputs of a linear layer",
    "channels": "input channels",
    "height": "input height",
    "width": "input width",
    "filters": "output channels",
    "kernel_h": "height of the filter",
    "kernel_w": "width of the filter",
    "stride": "stride in both directions",
    "padding": "zeros added on every side",
    "groups": "groups of channels that are convolved apart",
    "queries": "new tokens of a sequence",
    "context": "tokens attended to",
    "heads": "query heads",
    "kv_heads": "key and value heads",
    "head_dim": "numbers of a head",
    "window": "width of the sliding window, 0 without limit",
    "causal": "1 where a token sees only earlier ones, else 0",
    "rows": "independent rows",
    "dim": "numbers of a row",
    "elements": "numbers written",
    "reads": "numbers read, all inputs together",
}
"""Shape fields of all families; the columns of a family are null in the rows of the others."""

SHAPE_COLUMNS: Final = tuple(dict.fromkeys(name for names in FAMILY_FIELDS.values() for name in names))
"""Names of the shape columns, each once."""

KERNEL_COLUMNS: Final[dict[str, Column]] = {
    # what ran
    "row_id": _required(_TEXT, "", "digest of board, kernel, clock and trial; unique in a dataset"),
    "family": _required(_TEXT, "", "kernel family"),
    "operator": _required(_TEXT, "", "operator of the family"),
    "precision": _required(_TEXT, "", "number format of the inputs"),
    "precision_out": _optional(_TEXT, "", "number format of the output where it differs"),
    "precision_kv": _optional(_TEXT, "", "number format of cached keys and values where it differs"),
    "cuda_cores": _required(_TRUTH, "", "a matrix product that runs without tensor cores"),
    **{name: _optional(_COUNT, "1", _SHAPE_MEANING[name]) for name in SHAPE_COLUMNS},
    "library": _optional(_TEXT, "", "library that supplied the kernel"),
    "kernel_name": _optional(_TEXT, "", "name under which the device ran it"),
    **{f"grid_{axis}": _optional(_COUNT, "1", f"thread blocks along {axis}") for axis in "xyz"},
    **{f"block_{axis}": _optional(_COUNT, "1", f"threads of a block along {axis}") for axis in "xyz"},
    "registers_per_thread": _optional(_COUNT, "1", "registers of a thread"),
    "shared_bytes_per_block": _optional(_COUNT, "byte", "shared memory of a block, static and dynamic"),
    "blocks_per_sm": _optional(_COUNT, "1", "blocks that fit on an SM at once"),
    "tile_m": _optional(_COUNT, "1", "rows of the output tile of a block"),
    "tile_n": _optional(_COUNT, "1", "columns of the output tile of a block"),
    "tile_k": _optional(_COUNT, "1", "inner depth of a tile"),
    "stages": _optional(_COUNT, "1", "tiles in flight between DRAM and shared memory"),
    "split_k": _optional(_COUNT, "1", "parts into which the inner dimension is split"),
    "transpose": _optional(_TEXT, "", "layout of the two inputs as BLAS names it (n or t each)"),
    "l2_state": _optional(_TEXT, "", "warm: operands as the launch before left them in the L2; cold: displaced"),
    # where
    "gpu": _required(_TEXT, "", "GPU model, canonical name, or the driver's product name where there is none"),
    "gpu_uuid": _required(_TEXT, "", "identity of the board"),
    "sm_clock_mhz": _optional(_NUMBER, "MHz", "SM clock asked for; null where the clocks were left alone"),
    "sm_clock_measured_mhz": _optional(_NUMBER, "MHz", "mean SM clock under load"),
    "memory_clock_mhz": _optional(_NUMBER, "MHz", "memory clock"),
    "voltage_v": _optional(_NUMBER, "V", "mean core voltage under load; null where it cannot be read"),
    "temperature_c": _optional(_NUMBER, "degree Celsius", "mean GPU temperature in the measured window"),
    "power_limit_w": _optional(_NUMBER, "W", "enforced power limit"),
    "throttle_reasons": _required(_COUNT, "bit mask", "clock event reasons seen under load, as NVML numbers them"),
    # what came out
    "launches": _required(_COUNT, "1", "launches of the measured run"),
    "latency_s": _optional(_NUMBER, "s", "time of one launch, gaps included: mean over the settled part of the run"),
    "latency_std_s": _optional(_NUMBER, "s", "standard error of latency_s within this run; scatter between runs is not in it"),
    "power_raw_w": _optional(_NUMBER, "W", "mean of the settled readings as the sensor gave them"),
    "power_w": _optional(_NUMBER, "W", "mean board power, offset and gain of the sensor taken out where they are known"),
    "power_std_w": _optional(_NUMBER, "W", "standard error of power_w; an unknown gain is not in it"),
    "energy_j": _optional(_NUMBER, "J", "energy of one launch: power_w times latency_s"),
    "energy_std_j": _optional(_NUMBER, "J", "standard error of energy_j"),
    "energy_counter_j": _optional(_NUMBER, "J", "energy of one launch by the board's counter, as it gave it"),
    "idle_before_w": _optional(_NUMBER, "W", "corrected power at rest just before, same clock; null where there was no long rest"),
    "temperature_before_c": _optional(_NUMBER, "degree Celsius", "mean GPU temperature while idle_before_w was read"),
    "samples": _required(_COUNT, "1", "sensor updates behind power_w"),
    "window_s": _optional(_NUMBER, "s", "span of the settled readings"),
    "flags": _required(pa.list_(_TEXT), "", "doubts about this row; empty where there are none"),
    "started_unix_s": _optional(_NUMBER, "s", "wall time at the start of the run, since 1970; simulated where the board is"),
    "trial": _required(_COUNT, "1", "0 for the first measurement of this kernel at this clock, 1 for the next"),
    "seed": _required(_COUNT, "1", "seed of the campaign that chose the kernel"),
    # generated kernels, since 1.1
    "instruction": _optional(_TEXT, "", "PTX instruction or access that a generated kernel prices"),
    "launch_mode": _optional(_TEXT, "", "how a generated kernel is launched: full, sm_sweep, lane_sweep, single or block_sweep"),
    "data_pattern": _optional(_TEXT, "", "what the operands of a generated kernel hold: zero, constant or random"),
    "unroll": _optional(_COUNT, "1", "operations in the body of the loop"),
    "chains": _optional(_COUNT, "1", "independent chains of operations of a thread"),
    "iterations": _optional(_COUNT, "1", "turns of the loop in one launch"),
    "active_threads": _optional(_COUNT, "1", "threads that do the work"),
    "active_warps": _optional(_COUNT, "1", "warps with a thread that does the work"),
    "loop_opcodes": _optional(_TEXT, "", "machine instructions of one turn of the loop by opcode, a JSON object"),
    "loop_operations": _optional(_TEXT, "", "PTX instructions of one turn of the loop by name, loop control aside, a JSON object"),
    "shared_transactions": _optional(_NUMBER, "1", "128-byte transactions of shared memory in one launch, by construction"),
    "l1_transactions": _optional(_NUMBER, "1", "128-byte transactions of L1 in one launch, by construction"),
    "l2_transactions": _optional(_NUMBER, "1", "32-byte transactions of L2 in one launch, by construction"),
    "dram_transactions": _optional(_NUMBER, "1", "32-byte transactions of DRAM in one launch, by construction"),
    "assembler": _optional(_TEXT, "", "assembler, its version, level and target"),
    "cubin_sha256": _optional(_TEXT, "", "digest of the machine code that was inspected and that ran"),
    "ptx_sha256": _optional(_TEXT, "", "digest of the kernel's PTX text"),
    "link": _optional(_TEXT, "", "what the data of a generated kernel or a copy cross: host, peer, or device for a copy within the board"),
    "link_bytes": _optional(_NUMBER, "byte", "bytes that cross it in one launch, by construction"),
    "energy_mtsm_j": _optional(_NUMBER, "J", "energy of one launch by synchronised monitoring: mean of all polls times time"),
    "energy_sma_j": _optional(_NUMBER, "J", "energy of one launch by background sampling: highest poll times time"),
    "energy_papi_j": _optional(_NUMBER, "J", "energy of one launch as PAPI has it: one reading at the end times time"),
}
"""Columns of a kernel dataset, in file order."""

REQUIRED_COLUMNS: Final = tuple(name for name, column in KERNEL_COLUMNS.items() if not column.nullable)

OUTCOME_COLUMNS: Final = frozenset(
    {
        "row_id", "sm_clock_measured_mhz", "memory_clock_mhz", "voltage_v", "temperature_c", "throttle_reasons", "launches", "latency_s",
        "latency_std_s", "power_raw_w", "power_w", "power_std_w", "energy_j", "energy_std_j", "energy_counter_j", "idle_before_w",
        "temperature_before_c", "samples", "window_s", "flags", "started_unix_s", "trial", "seed", "energy_mtsm_j", "energy_sma_j",
        "energy_papi_j",
    }
)  # fmt: skip
"""Columns in which two measurements of one kernel may differ: what came out, when, and how the rows are counted."""

IDENTITY_COLUMNS: Final = tuple(name for name in KERNEL_COLUMNS if name not in OUTCOME_COLUMNS)
"""All other columns: rows that are equal in them measured the same kernel on the same board with the same settings."""

FLAGS: Final[dict[str, str]] = {
    "throttled": "a limit lowered the clock at some time of the window, if only for a moment",
    "clock_off_target": "the mean clock is more than 1.5 % off the clock asked for: among throttled rows those held back most",
    "clock_varied": "the clock changed during the measured window",
    "few_samples": "too few sensor updates for a standard error",
    "short_window": "the run was shorter than the sensor needs",
    "unsettled": "power had not settled when the window began",
    "drifting": "power rose or fell through the window by more than its noise",
    "hot": "the board was hotter than the campaign allows",
    "latency_unsteady": "the time of a launch changed during the run",
    "range_mismatch": "the measured run disagrees with the ranging run",
    "power_missing": "no reading fell into the window",
    "power_absurd": "readings that no board gives: not finite, negative or far above the power limit",
    "sensor_stuck": "the readings did not change although the load did",
    "counter_disagrees": "energy counter and power readings differ by more than the tolerance",
    "counter_absurd": "the energy counter went backwards or faster than any board can",
    "latency_absurd": "the launch time is not finite or not positive",
    "shared_board": "another process computed on the board meanwhile",
    "result_wrong": "a trial launch of this generated kernel gave wrong results: the board, or what drives it, corrupts them",
    "low_confidence": "one thread at work, as published: its signal is below a sensor's error",
    "kernel_untraced": "no tracer said which kernel ran (CUPTI is missing or refused): its name, sizes and tile are null",
}
"""Doubts that a row can carry."""


METADATA_OBJECTS: Final = ("gpu", "sensor", "drift", "campaign", "versions", "rejected", "key")
"""Parts of a file's metadata that are JSON objects, where they are known."""


def kernel_schema(metadata: Mapping[str, Any]) -> pa.Schema:
    """The Arrow schema of a kernel dataset with its file metadata.

    Raises DatasetError for metadata that JSON cannot hold.
    """
    fields = [
        pa.field(name, column.type, nullable=column.nullable, metadata={"unit": column.unit, "meaning": column.meaning})
        for name, column in KERNEL_COLUMNS.items()
    ]
    return pa.schema(fields, metadata={METADATA_KEY: encode_metadata(metadata)})


def encode_metadata(metadata: Mapping[str, Any]) -> bytes:
    """File metadata as JSON text, the schema version added.  Raises DatasetError for what JSON cannot hold."""
    try:
        text = json.dumps({**metadata, "schema_version": SCHEMA_VERSION}, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise DatasetError(f"dataset metadata cannot be written as JSON: {error}") from error
    return text.encode()


def decode_metadata(content: bytes, where: str) -> dict[str, Any]:
    """File metadata of a dataset.  Raises DatasetError, naming `where`, for anything but a JSON object."""
    try:
        metadata = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{where}: its metadata are damaged ({error}); collect it again") from error
    if not isinstance(metadata, dict):
        raise DatasetError(f"{where}: its metadata are damaged (no JSON object); collect it again")
    parts = [metadata.get(name) for name in METADATA_OBJECTS]
    for name in ("idle", "idle_after"):
        powers = metadata.get(name) or []
        parts += powers if isinstance(powers, list) else [powers]
    numbers = [part.get(name) for part in parts if isinstance(part, dict) for name in ("sm_clock_mhz", "power_w")]
    whole = all(isinstance(part, dict | None) for part in parts)
    if not whole or not all(isinstance(number, float | int | None) for number in numbers):
        raise DatasetError(f"{where}: its metadata are damaged (a part is of another kind than the schema says); collect it again")
    return metadata


def rows_to_table(rows: Sequence[Row], metadata: Mapping[str, Any]) -> pa.Table:
    """Rows as a table of the kernel schema.

    Raises DatasetError for a column that is not in the schema, a required value that is missing and a value of
    the wrong type.
    """
    schema = kernel_schema(metadata)
    for row in rows:
        check_row(row)
    try:
        return pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise DatasetError(f"a row does not fit the kernel dataset: {error}") from error


def check_row(row: Row) -> None:
    """Raises DatasetError for a column that is not in the schema, a required value that is missing and one of another type."""
    for name in REQUIRED_COLUMNS:
        if row.get(name) is None:
            raise DatasetError(f"row {row.get('row_id')!r}: column {name!r} must have a value")
    for name, value in row.items():
        column = KERNEL_COLUMNS.get(name)
        if column is None:
            raise DatasetError(f"row {row.get('row_id')!r}: no column {name!r} in the kernel dataset")
        if value is None or (type(value) is float and column.type is _NUMBER) or _fits(value, column.type):
            continue
        raise DatasetError(f"row {row.get('row_id')!r}: does not fit the kernel dataset ({name} = {value!r} is no {column.type})")


def _fits(value: Any, kind: pa.DataType) -> bool:
    """Whether a value can stand in a column of that type."""
    if kind is _TEXT:
        return isinstance(value, str)
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if kind is _NUMBER:
        return isinstance(value, float | np.floating) or (whole and abs(int(value)) <= EXACT_WHOLE)
    if kind is _COUNT:
        return whole and -INT64_END <= int(value) < INT64_END
    if kind is _TRUTH:
        return isinstance(value, bool | np.bool_)
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)


def operator_columns(operator: Operator) -> dict[str, Any]:
    """The columns that say what ran; `operators_of` is the inverse."""
    return {
        "family": operator.family,
        "operator": operator.operator,
        "precision": operator.precision,
        "precision_out": operator.precision_out or None,
        "precision_kv": operator.precision_kv or None,
        "cuda_cores": operator.cuda_cores,
        **{name: int(value) for name, value in operator.named_shape().items()},
    }


def operators_of(table: pa.Table) -> list[Operator]:
    """The operator of every row; rows of one kernel share one object.

    Raises DatasetError, naming the row, for a family, precision or shape that no operator can have.
    """
    names = ("family", "operator", "precision", "precision_out", "precision_kv", "cuda_cores", *SHAPE_COLUMNS)
    columns = [table.column(name).to_pylist() for name in names]
    seen: dict[tuple[Any, ...], Operator] = {}
    operators = []
    for index, values in enumerate(zip(*columns, strict=True)):
        if values not in seen:
            seen[values] = _operator(dict(zip(names, values, strict=True)), str(table.column("row_id")[index]))
        operators.append(seen[values])
    return operators


def _operator(values: dict[str, Any], row_id: str) -> Operator:
    """One operator from the columns that describe it."""
    family, where = values["family"], f"row {row_id}"
    if family not in FAMILY_FIELDS:
        raise DatasetError(f"{where}: unknown kernel family {family!r}; known: {', '.join(FAMILY_FIELDS)}")
    shape = {name: values[name] for name in FAMILY_FIELDS[family] if values[name] is not None}
    try:
        return make_operator(
            family,
            values["operator"],
            values["precision"],
            where=where,
            precision_out=values["precision_out"] or "",
            precision_kv=values["precision_kv"] or "",
            cuda_cores=bool(values["cuda_cores"]),
            **shape,
        )
    except WorkloadError as error:
        raise DatasetError(str(error)) from error


def flag_counts(flags: Iterable[Sequence[str] | None]) -> dict[str, int]:
    """How many rows carry each flag, most frequent first."""
    counts: dict[str, int] = {}
    for row in flags:
        for flag in row or ():
            counts[flag] = counts.get(flag, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

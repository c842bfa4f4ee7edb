"""Rows of generated kernels: what `collect --campaign instructions` measured, screened."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from collector.dataset import FLAGS
from estimator.gpu import GpuSpec
from estimator.instructions.energies import TRANSACTION_BYTES
from estimator.quantities import BoolArray
from fitter.rows.instruction_rows import SAMPLING, InstructionRow, InstructionRows
from fitter.rows.rejected import RejectedRow
from fitter.rows.screening import known_gpu, unknown_gpu

FAMILY: Final = "instruction"
"""Family of generated kernels in a dataset."""

MOST_TEXT: Final = 1 << 16
"""Longest histogram that is read [character]; those of the catalogue have some hundred."""

MOST_COUNT: Final = 1e9
"""Largest count in a histogram; no machine code is as long."""

REJECTS: Final = frozenset(
    {"latency_absurd", "power_missing", "power_absurd", "sensor_stuck", "short_window", "clock_varied", "result_wrong"}
)
"""Flags with which a row says nothing about energy."""


def is_instruction(table: pa.Table) -> BoolArray:
    """Which rows of a kernel dataset are generated kernels, shape (n,)."""
    return np.array([name == FAMILY for name in table.column("family").to_pylist()], dtype=np.bool_)


def read_instruction_rows(
    table: pa.Table, source: str, own: BoolArray, gpu: GpuSpec | None = None
) -> tuple[InstructionRows | None, list[RejectedRow]]:
    """The rows of generated kernels among a table's, and the reasons for those that cannot be used; `gpu` need not be shipped."""
    accepted: list[InstructionRow] = []
    rejected: list[RejectedRow] = []
    for index in np.flatnonzero(own).tolist():
        values = {name: table.column(name)[index].as_py() for name in table.column_names}
        found = _row(values, source, index + 1, gpu)
        if isinstance(found, RejectedRow):
            rejected.append(found)
        else:
            accepted.append(found)
    return (InstructionRows(rows=tuple(accepted)) if accepted else None), rejected


def _row(values: dict[str, Any], source: str, number: int, gpu: GpuSpec | None) -> InstructionRow | RejectedRow:
    def rejected(reason: str, detail: str) -> RejectedRow:
        return RejectedRow(source=source, row=number, reason=reason, detail=detail)

    spec = known_gpu(str(values["gpu"]), gpu)
    if spec is None:
        return rejected(*unknown_gpu(str(values["gpu"])))
    flags = values["flags"] or ()
    for flag in flags:
        if flag in REJECTS:
            return rejected(flag.upper(), FLAGS[flag])
    link = str(values["link"] or "")
    copied = bool(link) and values["loop_opcodes"] is None and values["iterations"] is None
    body: dict[str, float] = {}
    operations: dict[str, float] = {}
    if not copied:
        for name in ("loop_opcodes", "loop_operations"):
            if values[name] is None:
                return rejected("NO_HISTOGRAM", f"{name} is null")
        try:
            body, operations = _counts(values["loop_opcodes"]), _counts(values["loop_operations"])
        except ValueError as error:
            return rejected("BAD_HISTOGRAM", str(error)[:200])
    needed = (*(MEASURED if copied else NEEDED), *(["link_bytes"] if link else []))
    figures = {name: _number(values[name]) for name in (*NEEDED, *OPTIONAL, "link_bytes")}
    fault = _fault(values, figures, needed)
    if fault is not None:
        return rejected(*fault)
    return InstructionRow(
        source=source,
        row=number,
        gpu=spec.name,
        kernel=str(values["operator"]),
        instruction=str(values["instruction"] or ""),
        mode=str(values["launch_mode"] or ""),
        random=values["data_pattern"] == "random",
        unroll=int(values["unroll"] or 0),
        body=body,
        operations=operations,
        turns=_zero(figures["iterations"]),
        threads=_zero(figures["active_threads"]),
        warps=_zero(figures["active_warps"]),
        blocks=math.prod(int(values[f"grid_{axis}"] or 1) for axis in "xyz"),
        transactions={level: _zero(figures[f"{level}_transactions"]) for level in TRANSACTION_BYTES},
        latency_s=figures["latency_s"],
        power_w=figures["power_w"],
        power_std_w=figures["power_std_w"],
        idle_w=figures["idle_before_w"],
        idle_c=figures["temperature_before_c"],
        temperature_c=figures["temperature_c"],
        asked_mhz=figures["sm_clock_mhz"],
        sm_clock_mhz=figures["sm_clock_measured_mhz"],
        voltage_v=figures["voltage_v"],
        throttled="throttled" in flags,
        assembler=str(values["assembler"] or ""),
        published={name: figures[f"energy_{name}_j"] for name in SAMPLING},
        link=link,
        link_bytes=_zero(figures["link_bytes"]),
    )


def _fault(values: Mapping[str, Any], figures: Mapping[str, float], needed: Sequence[str]) -> tuple[str, str] | None:
    """Reason and detail of the first figure that is missing or cannot be; None where all are right."""
    for name in needed:
        if values[name] is None:
            return MISSING.get(name, "NO_COUNT"), f"{name} is null"
        if not 0 < figures[name] < math.inf:
            return REASON.get(name, "BAD_COUNT"), f"{name} = {values[name]!r} must be a positive number"
    for name in OPTIONAL:
        if figures[name] < 0 or figures[name] == math.inf:
            return "BAD_COUNT", f"{name} = {values[name]!r} must be finite and not negative"
    return None


MEASURED: Final = ("latency_s", "power_w")
"""Columns without which no row says anything about energy."""

NEEDED: Final = ("iterations", "active_threads", "active_warps", "sm_clock_measured_mhz", *MEASURED)
"""Columns without which a kernel's row says nothing about energy."""

MISSING: Final = {"latency_s": "NO_LATENCY", "power_w": "NO_POWER", "sm_clock_measured_mhz": "NO_CLOCK"}
"""Reason by column where it is null; the others are counts."""

REASON: Final = {"latency_s": "BAD_LATENCY", "power_w": "BAD_POWER", "sm_clock_measured_mhz": "BAD_CLOCK"}
"""Reason by column; the others are counts."""

OPTIONAL: Final = (
    "power_std_w", "idle_before_w", "temperature_c", "temperature_before_c", "voltage_v", "sm_clock_mhz",
    *(f"{level}_transactions" for level in TRANSACTION_BYTES), *(f"energy_{name}_j" for name in SAMPLING),
)  # fmt: skip
"""Columns that may be missing."""


def _counts(text: Any) -> dict[str, float]:
    """A histogram.  Raises ValueError for anything but a JSON object of names and positive counts."""
    if not isinstance(text, str) or len(text) > MOST_TEXT:
        raise ValueError("no histogram of the loop")
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise ValueError("a histogram nested too deeply") from error
    if not isinstance(found, dict) or not found:
        raise ValueError("a histogram that is no object, or an empty one")
    for name, count in found.items():
        if isinstance(count, bool) or not isinstance(count, int | float) or not 0 < count <= MOST_COUNT:
            raise ValueError(f"{name[:40]!r} is counted {str(count)[:20]}")
    return {name: float(count) for name, count in found.items()}


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _zero(value: float) -> float:
    return value if math.isfinite(value) else 0.0

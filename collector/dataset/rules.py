"""The rules that a dataset is held against: each with an id, a number, and what it looks at.

A rule is broken by rows, or by a file as a whole.  A doubt that a row states itself, as a flag, breaks no rule that looks for it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from collector.dataset.physics import least_seconds
from collector.dataset.reader import DatasetFile, measured_twice
from collector.dataset.schema import FLAGS, IDENTITY_COLUMNS, KERNEL_COLUMNS
from collector.devices.protocols import LIMITING_REASONS, THROTTLE_BITS
from estimator.quantities import Array, BoolArray
from estimator.specifications import gpu_names, load_gpu
from estimator.workload import Operator

GENERATED: Final = "instruction"
"""Family of generated kernels and copies, which are no operators of a workload."""

RANGES: Final[dict[str, tuple[float, float]]] = {
    "sm_clock_mhz": (50.0, 5000.0),
    "sm_clock_measured_mhz": (50.0, 5000.0),
    "memory_clock_mhz": (100.0, 30_000.0),
    "voltage_v": (0.3, 2.0),
    "temperature_c": (-20.0, 130.0),
    "temperature_before_c": (-20.0, 130.0),
    "power_limit_w": (10.0, 5000.0),
    "throttle_reasons": (0.0, 2.0**63),
    "launches": (1.0, 1e12),
    "latency_s": (1e-7, 3600.0),
    "latency_std_s": (0.0, 3600.0),
    "power_raw_w": (0.0, 5000.0),
    "power_w": (0.0, 5000.0),
    "power_std_w": (0.0, 5000.0),
    "energy_j": (1e-9, 1e7),
    "energy_std_j": (0.0, 1e7),
    "energy_counter_j": (0.0, 1e7),
    "idle_before_w": (0.0, 2000.0),
    "samples": (0.0, 1e9),
    "window_s": (0.0, 3600.0),
    "started_unix_s": (946_684_800.0, 32_503_680_000.0),
    "trial": (0.0, 1e6),
}
"""What a column can hold in its unit on any board, wide enough that only another unit or an error lies outside."""

ENERGY_TOLERANCE: Final = 1e-6
ABOVE_LIMIT_SHARE: Final = 1.05
BELOW_IDLE_SHARE: Final = 0.9
CLOCK_TOLERANCE: Final = 0.015
COUNTER_TOLERANCE: Final = 0.15
ROOF_TOLERANCE: Final = 0.95
STD_SHARE: Final = 0.25
FEW_SAMPLES: Final = 4
OVERLAP_S: Final = 0.05
DRIFT_SHARE: Final = 0.03
DRIFT_SIGNIFICANCE: Final = 3.0
FEWEST_ANCHORS: Final = 4
IDLE_DRIFT_SHARE: Final = 0.1
UNUSABLE_SHARE: Final = 0.05
UNUSABLE: Final = frozenset({"latency_absurd", "power_absurd", "power_missing", "sensor_stuck", "result_wrong"})
CLOCK_FLAGS: Final = frozenset({"clock_off_target", "throttled", "clock_varied"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A dataset as rules see it: its rows, numbers as float64 with nan for null, flags, and each row's file.

    `operators` of the rows; a text that says why where a row can have none.
    """

    table: pa.Table
    files: tuple[DatasetFile, ...]
    file_of_row: Array
    numbers: dict[str, Array]
    flags: tuple[frozenset[str], ...]
    operators: tuple[Operator | str, ...]

    def text(self, name: str) -> list[str | None]:
        """A column of texts."""
        values: list[str | None] = self.table.column(name).to_pylist()
        return values

    def flagged(self, names: frozenset[str]) -> BoolArray:
        """Rows that carry any of these flags, shape (n,)."""
        return np.array([bool(row & names) for row in self.flags], dtype=np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """Where a rule is broken: rows by number, and what is wrong in a few words; of a whole file no rows."""

    rows: tuple[int, ...]
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule: its id, what it asks, its limit in words, and the check."""

    id: str
    what: str
    limit: str
    check: Callable[[Checked], Sequence[Breach]]


def _rows(broken: BoolArray, what: Callable[[int], str]) -> list[Breach]:
    """One breach of all rows that are marked; the first one is the example."""
    found = np.flatnonzero(broken)
    return [Breach(rows=tuple(found.tolist()), what=what(int(found[0])))] if len(found) else []


def _ranges(data: Checked) -> list[Breach]:
    breaches = []
    for name, (low, high) in RANGES.items():
        value = data.numbers[name]
        with np.errstate(invalid="ignore"):
            outside = np.isfinite(value) & ~((value >= low) & (value <= high)) | np.isinf(value)
        breaches += _rows(outside, lambda row, name=name, value=value: f"{name} = {value[row]:g}")  # type: ignore[misc]
    for name in (name for name, column in KERNEL_COLUMNS.items() if column.type == pa.float64()):
        no_number = pc.fill_null(pc.is_nan(data.table.column(name)), fill_value=False).to_numpy()
        breaches += _rows(no_number, lambda _, name=name: f"{name} is no number (NaN); what is not known is null")  # type: ignore[misc]
    return breaches


def _duplicates(data: Checked) -> list[Breach]:
    twice = set(measured_twice(data.table))
    ids = data.text("row_id")
    return _rows(np.array([row in twice for row in ids], dtype=np.bool_), lambda row: f"row {ids[row]} is there more than once")


def _time(data: Checked) -> list[Breach]:
    """Runs of one board one after the other; files of a simulated board each begin at the same hour and are looked at one by one."""
    start, breaches = data.numbers["started_unix_s"], []
    length = data.numbers["launches"] * data.numbers["latency_s"]
    simulated = [file.metadata.get("simulated") is True for file in data.files]
    lanes: dict[tuple[str | None, int], list[int]] = {}
    for row, (uuid, file) in enumerate(zip(data.text("gpu_uuid"), data.file_of_row.tolist(), strict=True)):
        if np.isfinite(start[row]):
            lanes.setdefault((uuid, int(file) if simulated[int(file)] else -1), []).append(row)
    for rows in lanes.values():
        mine = np.array(rows, dtype=np.int64)
        order = mine[np.argsort(start[mine], kind="stable")]
        early = start[order[1:]] < (start + np.nan_to_num(length))[order[:-1]] - OVERLAP_S
        broken = np.zeros(len(start), dtype=np.bool_)
        broken[order[1:][early]] = True
        breaches += _rows(broken, lambda row: f"starts at {start[row]:.3f} s, before the run before it has ended")
    return breaches


def _operators(data: Checked) -> list[Breach]:
    generated = np.array([family == GENERATED for family in data.table.column("family").to_pylist()], dtype=np.bool_)
    wrong = np.array([isinstance(operator, str) for operator in data.operators], dtype=np.bool_) & ~generated
    return _rows(wrong, lambda row: str(data.operators[row]))


def _energy(data: Checked) -> list[Breach]:
    energy, power, latency = (data.numbers[name] for name in ("energy_j", "power_w", "latency_s"))
    with np.errstate(invalid="ignore"):
        wrong = np.abs(energy - power * latency) > ENERGY_TOLERANCE * np.abs(energy)
    lone = np.isfinite(energy) != (np.isfinite(power) & np.isfinite(latency))
    return _rows(wrong | lone, lambda row: f"energy_j = {energy[row]:g}, power_w times latency_s = {power[row] * latency[row]:g}")


def _power_limit(data: Checked) -> list[Breach]:
    power, limit = data.numbers["power_w"], data.numbers["power_limit_w"]
    with np.errstate(invalid="ignore"):
        above = (power > ABOVE_LIMIT_SHARE * limit) & ~data.flagged(UNUSABLE)
    return _rows(above, lambda row: f"power_w = {power[row]:.1f} at a limit of {limit[row]:.1f}")


def _above_idle(data: Checked) -> list[Breach]:
    """Power of a kernel against the board at rest, before it or at its clock."""
    power, idle = data.numbers["power_w"], data.numbers["idle_before_w"].copy()
    for row in np.flatnonzero(~np.isfinite(idle)).tolist():
        idle[row] = _idle_of(data, row)
    with np.errstate(invalid="ignore"):
        below = (power < BELOW_IDLE_SHARE * idle) & ~data.flagged(UNUSABLE)
    return _rows(below, lambda row: f"power_w = {power[row]:.1f}, the board at rest draws {idle[row]:.1f}")


def _idle_of(data: Checked, row: int) -> float:
    clock = data.numbers["sm_clock_mhz"][row]
    for entry in data.files[int(data.file_of_row[row])].metadata.get("idle") or ():
        asked = entry.get("sm_clock_mhz")
        if (asked is None and not np.isfinite(clock)) or asked == clock:
            return float(entry["power_w"]) if entry.get("power_w") is not None else np.nan
    return np.nan


def _clocks(data: Checked) -> list[Breach]:
    asked, measured = data.numbers["sm_clock_mhz"], data.numbers["sm_clock_measured_mhz"]
    with np.errstate(invalid="ignore"):
        off = (np.abs(measured - asked) > CLOCK_TOLERANCE * asked) & ~data.flagged(CLOCK_FLAGS)
    return _rows(off, lambda row: f"{asked[row]:g} MHz asked, {measured[row]:.1f} measured, and no flag says so")


def _throttle(data: Checked) -> list[Breach]:
    bits = sum(THROTTLE_BITS[name] for name in LIMITING_REASONS)
    mask = np.array([value & bits != 0 for value in data.table.column("throttle_reasons").to_pylist()], dtype=np.bool_)
    said = data.flagged(frozenset({"throttled"}))
    return _rows(
        mask != said, lambda row: "flagged as throttled without a reason" if said[row] else "a limit slowed the board, and no flag says so"
    )


def _flags(data: Checked) -> list[Breach]:
    unknown = [sorted(row - FLAGS.keys()) for row in data.flags]
    return _rows(np.array([bool(row) for row in unknown], dtype=np.bool_), lambda row: f"flag {unknown[row][0]!r}")


def _samples(data: Checked) -> list[Breach]:
    samples, power = data.numbers["samples"], data.numbers["power_w"]
    few = np.isfinite(power) & (samples < FEW_SAMPLES) & ~data.flagged(frozenset({"few_samples", "power_missing"}))
    return _rows(few, lambda row: f"{samples[row]:.0f} samples behind power_w, and no flag says so")


def _errors(data: Checked) -> list[Breach]:
    power, std, samples = data.numbers["power_w"], data.numbers["power_std_w"], data.numbers["samples"]
    with np.errstate(invalid="ignore"):
        wide = std > STD_SHARE * power
    missing = np.isfinite(power) & ~np.isfinite(std) & (samples >= FEW_SAMPLES)
    return _rows(wide | missing, lambda row: f"power_w = {power[row]:.1f} with a standard error of {std[row]:g}")


def _counter(data: Checked) -> list[Breach]:
    counter, reading = data.numbers["energy_counter_j"], data.numbers["power_raw_w"] * data.numbers["latency_s"]
    with np.errstate(invalid="ignore"):
        apart = np.abs(counter - reading) > COUNTER_TOLERANCE * reading
    apart &= ~data.flagged(frozenset({"counter_disagrees", "counter_absurd"}))
    return _rows(apart, lambda row: f"counter {counter[row]:g} J a launch, readings {reading[row]:g} J, and no flag says so")


def _roofline(data: Checked) -> list[Breach]:
    latency, clock = data.numbers["latency_s"], data.numbers["sm_clock_measured_mhz"]
    least = np.zeros(len(latency))
    names = np.array(data.text("gpu"), dtype=object)
    for name in dict.fromkeys(names.tolist()):
        mine = np.flatnonzero(names == name)
        if name in gpu_names():
            least[mine] = least_seconds([data.operators[row] for row in mine.tolist()], load_gpu(name), clock[mine])
    with np.errstate(invalid="ignore"):
        fast = (latency < ROOF_TOLERANCE * least) & ~data.flagged(UNUSABLE)
    return _rows(fast, lambda row: f"latency_s = {latency[row]:.3g}, the peak rates allow {least[row]:.3g} at least")


def _traced(data: Checked) -> list[Breach]:
    kernel = np.array([bool(name) for name in data.text("kernel_name")], dtype=np.bool_)
    return _rows(~kernel & ~data.flagged(frozenset({"kernel_untraced"})), lambda _: "no kernel is named, and no flag says why")


def _unusable(data: Checked) -> list[Breach]:
    if not data.flags:
        return [Breach(rows=(), what="it has no rows")]
    broken = data.flagged(UNUSABLE)
    share = float(broken.mean())
    return _rows(broken, lambda _: f"{share:.1%} of the rows say nothing about time or power") if share > UNUSABLE_SHARE else []


def _anchors(data: Checked) -> list[Breach]:
    """Kernels that were measured again and again must not move with the hour."""
    columns = [data.table.column(name).to_pylist() for name in IDENTITY_COLUMNS]
    operators = data.text("operator")
    groups: dict[tuple[Any, ...], list[int]] = {}
    for row, identity in enumerate(zip(*columns, strict=True)):
        if not data.flags[row] & (UNUSABLE | {"throttled", "shared_board"}):
            groups.setdefault(identity, []).append(row)
    breaches = []
    for rows in groups.values():
        for name in ("power_w", "latency_s"):
            change, std = _trend(data.numbers["started_unix_s"][rows], data.numbers[name][rows])
            if abs(change) > max(DRIFT_SHARE, DRIFT_SIGNIFICANCE * std):
                breaches.append(
                    Breach(rows=tuple(rows), what=f"{name} of {operators[rows[0]]} moved by {change:+.1%} over {len(rows)} repetitions")
                )
    return breaches


def _trend(time_s: Array, value: Array) -> tuple[float, float]:
    """Relative change from first to last by a straight line, and its standard error; 0 where there are too few."""
    known = np.isfinite(time_s) & np.isfinite(value)
    time_s, value = time_s[known], value[known]
    if len(value) < FEWEST_ANCHORS or not np.ptp(time_s) > 0:
        return 0.0, np.inf
    x = (time_s - time_s.mean()) / np.ptp(time_s)
    slope = float(x @ value / (x @ x))
    residual = value - value.mean() - slope * x
    error = float(np.sqrt(residual @ residual / (len(value) - 2) / (x @ x)))
    return slope / float(value.mean()), error / float(value.mean())


def _of_files(test: Callable[[DatasetFile], str]) -> Callable[[Checked], Sequence[Breach]]:
    """A check of each file's metadata: what is wrong, or an empty text."""
    return lambda data: [Breach(rows=(), what=f"{file.path}: {what}") for file in data.files if (what := test(file))]


def _sensor(file: DatasetFile) -> str:
    sensor = file.metadata.get("sensor")
    if sensor is None:
        return "does not say how the sensor behaved"
    lacking = [name for name in ("gpu_uuid", "field", "update_period_s", "averaging") if not sensor.get(name)]
    return f"the sensor's {', '.join(lacking)} is not known" if lacking else ""


def _identity(data: Checked) -> list[Breach]:
    told = [(file.metadata.get("gpu") or {}).get("uuid") for file in data.files]
    uuids = data.text("gpu_uuid")
    other = np.array([uuid != told[int(file)] for uuid, file in zip(uuids, data.file_of_row, strict=True)], dtype=np.bool_)
    return _rows(other, lambda row: f"board {uuids[row]}, its file is of board {told[int(data.file_of_row[row])]}")


def _complete(file: DatasetFile) -> str:
    return "" if file.metadata.get("complete") is True else "its campaign did not finish; `collect --resume` goes on with it"


def _idle_drift(file: DatasetFile) -> str:
    moved = (file.metadata.get("drift") or {}).get("idle")
    return f"power at rest changed by {moved:.1%}" if isinstance(moved, float) and moved > IDLE_DRIFT_SHARE else ""


RULES: Final[tuple[Rule, ...]] = tuple(
    Rule(id=name, what=what, limit=limit, check=check)
    for name, what, limit, check in (
        ("D01", "every measurement is there once", "row_id and start together are unique", _duplicates),
        ("D02", "a campaign ran to its end", "metadata say complete", _of_files(_complete)),
        ("D03", "a file is of one board", "gpu_uuid is that of the metadata", _identity),
        ("D04", "the sensor is known", "board, field, update period and averaging in the metadata", _of_files(_sensor)),
        ("D05", "most rows are usable", f"{UNUSABLE_SHARE:.0%} without time or power at most", _unusable),
        ("R01", "numbers are possible in their unit", "the ranges below", _ranges),
        ("R02", "a row names an operator that can be", "family, precision and shape", _operators),
        ("R03", "flags are known", "those of this page", _flags),
        ("R04", "a kernel is named, or a flag says why not", "kernel_untraced", _traced),
        ("R05", "power rests on enough samples", f"{FEW_SAMPLES}, or few_samples", _samples),
        ("R06", "power has a plausible error", f"{STD_SHARE:.0%} of it at most, known from {FEW_SAMPLES} samples on", _errors),
        ("T01", "runs of a board follow each other", f"{OVERLAP_S:g} s of overlap", _time),
        ("T02", "repeated kernels do not drift", f"{DRIFT_SHARE:.0%} and {DRIFT_SIGNIFICANCE:g} standard errors", _anchors),
        ("T03", "power at rest is the same at the end", f"{IDLE_DRIFT_SHARE:.0%}", _of_files(_idle_drift)),
        ("P01", "energy is power times time", f"{ENERGY_TOLERANCE:g} of it", _energy),
        ("P02", "power is below the power limit", f"{ABOVE_LIMIT_SHARE:g} times the limit", _power_limit),
        ("P03", "power is above the board at rest", f"{BELOW_IDLE_SHARE:g} times it", _above_idle),
        ("P04", "the clock is the clock asked for, or flagged", f"{CLOCK_TOLERANCE:.1%}", _clocks),
        ("P05", "limits that slowed the board are flagged", "throttle_reasons and throttled agree", _throttle),
        ("P06", "the energy counter agrees, or is flagged", f"{COUNTER_TOLERANCE:.0%}", _counter),
        ("P07", "no kernel is faster than the roofline", f"{ROOF_TOLERANCE:g} times the least time", _roofline),
    )
)
"""All rules, in the order in which they are told: the dataset, its rows, time, physics."""

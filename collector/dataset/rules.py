"""The rules that a dataset is held against: each with an id, a limit, and its check.

A rule is broken by rows, or by a file as a whole.  A row that states a doubt itself, as a flag, breaks no rule that looks for it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from collector.dataset.reader import KernelDataset, measured_twice
from collector.dataset.schema import FLAGS, KERNEL_COLUMNS, UNUSABLE, operators_or_reasons, repeated_rows
from collector.devices.protocols import LIMITING_REASONS, THROTTLE_BITS
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT, HZ_PER_MHZ, Array, BoolArray
from estimator.vocabulary.specifications import gpu_names, load_gpu
from estimator.vocabulary.workload import Operator

GENERATED: Final = "instruction"
"""Family of generated kernels and copies, which are no operators of a workload."""

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
UNFINISHED: Final = "its campaign did not finish; `collect --resume` goes on with it"


class Checked:
    """A dataset as rules see it: numbers as float64 with nan for null, flags, each row's file, and its operator or why it has none.

    Among the numbers are what rules compare with: `product_j` (power times time), `reading_j` (the same of raw readings), `rest_w` (the
    board at rest, before the row or at its clock), `least_s` (what the peak rates allow) and `end_unix_s`.
    """

    def __init__(self, dataset: KernelDataset) -> None:
        self.table = table = dataset.table
        self.files = dataset.files
        self.file_of_row = np.repeat(np.arange(len(dataset.files)), [file.rows for file in dataset.files]).tolist()
        self.flags = [frozenset(row or ()) for row in table.column("flags").to_pylist()]
        self.operators = operators_or_reasons(table)
        self.numbers = number = {
            name: np.array(table.column(name).cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)
            for name, column in KERNEL_COLUMNS.items()
            if column.kind in ("number", "count")
        }
        number["product_j"] = number["power_w"] * number["latency_s"]
        number["reading_j"] = number["power_raw_w"] * number["latency_s"]
        number["end_unix_s"] = number["started_unix_s"] + np.nan_to_num(number["launches"] * number["latency_s"])
        number["rest_w"] = np.where(np.isfinite(number["idle_before_w"]), number["idle_before_w"], self._idle_of_clock())
        gpus = {name: load_gpu(name) for name in set(self.texts("gpu")).intersection(gpu_names())}
        rows = zip(self.operators, self.texts("gpu"), number["sm_clock_measured_mhz"].tolist(), strict=True)
        number["least_s"] = np.array(
            [least_s(one, gpus[gpu], clock) if gpu in gpus and isinstance(one, Operator) else 0.0 for one, gpu, clock in rows]
        )

    def __getitem__(self, name: str) -> Array:
        """A column of numbers, shape (n,)."""
        return self.numbers[name]

    def texts(self, name: str) -> list[Any]:
        """A column of texts."""
        return self.table.column(name).to_pylist()  # type: ignore[no-any-return]

    def flagged(self, *names: str) -> BoolArray:
        """Rows that carry any of these flags, shape (n,)."""
        return np.array([bool(row.intersection(names)) for row in self.flags], dtype=np.bool_)

    def _idle_of_clock(self) -> Array:
        idle = [{entry.get("sm_clock_mhz"): entry.get("power_w") for entry in file.metadata.get("idle") or ()} for file in self.files]
        rows = zip(self.file_of_row, self.texts("sm_clock_mhz"), strict=True)
        return np.array([idle[file].get(clock) for file, clock in rows], dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """Where a rule is broken: rows by number, and what is wrong in a few words; of a whole file no rows."""

    rows: tuple[int, ...]
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule: its id, what it demands, its limit in words, and the check."""

    id: str
    what: str
    limit: str
    check: Callable[[Checked], list[Breach]]


def least_s(operator: Operator, gpu: GpuSpec, sm_clock_mhz: float) -> float:
    """The least time of a kernel by a GPU's peak rates [s]: useful arithmetic, and compulsory traffic beyond the L2; 0 where not known."""
    clock_hz = (sm_clock_mhz if np.isfinite(sm_clock_mhz) else gpu.sm_clock_limit_mhz) * HZ_PER_MHZ
    flop = byte = 0.0
    if operator.family == "gemm":
        batch, m, n, k = (operator[name] for name in ("batch", "m", "n", "k"))
        flop, byte = 2.0 * batch * m * n * k, batch * (m * k + k * n)
    elif operator.family in ("elementwise", "copy"):
        byte = operator["reads"]
    elif operator.family in ("softmax", "norm", "reduction"):
        byte = operator["rows"] * operator["dim"]
    rate = gpu.matrix_flop_per_clock(operator.precision, operator.cuda_cores) if flop else 0.0
    compute_s = flop / (rate * gpu.num_sms * clock_hz) if rate > 0 else 0.0
    return max(compute_s, (byte * BYTES_PER_ELEMENT[operator.precision] - gpu.l2_bytes) / gpu.dram_bytes_per_s, 0.0)


def _marked(data: Checked, broken: BoolArray | list[bool], example: str) -> list[Breach]:
    """One breach of all rows that are marked, in the words of `example` with the values of the first of them."""
    found = np.flatnonzero(broken).tolist()
    if not found:
        return []
    row = {**data.table.slice(found[0], 1).to_pylist()[0], **{name: column[found[0]] for name, column in data.numbers.items()}}
    return [Breach(rows=tuple(found), what=example.format(**row, reason=data.operators[found[0]]))]


def _rows(broken: Callable[[Checked], BoolArray | list[bool]], example: str, *excused: str) -> Callable[[Checked], list[Breach]]:
    """A check of each row: which rows break the rule, unless a flag excuses them; see `_marked`."""
    return lambda data: _marked(data, np.asarray(broken(data), dtype=np.bool_) & ~data.flagged(*excused), example)


def _files(test: Callable[[dict[str, Any]], str]) -> Callable[[Checked], list[Breach]]:
    """A check of each file's metadata, which returns what is wrong or an empty text."""
    return lambda data: [Breach(rows=(), what=f"{file.path}: {what}") for file in data.files if (what := test(file.metadata))]


def _ranges(data: Checked) -> list[Breach]:
    breaches = []
    for name, column in KERNEL_COLUMNS.items():
        if column.range is not None:
            outside = (data[name] < column.range[0]) | (data[name] > column.range[1])
            breaches += _marked(data, outside, f"{name} = {{{name}:g}}")
        if column.kind == "number":
            nan = pc.fill_null(pc.is_nan(data.table.column(name)), fill_value=False).to_numpy()
            breaches += _marked(data, nan, f"{name} is no number (NaN); what is not known is null")
    return breaches


def _overlaps(data: Checked) -> BoolArray:
    """Rows of a real board that start before the one before has ended; every session of a simulated board begins at the same hour."""
    real = np.array([data.files[file].metadata.get("simulated") is not True for file in data.file_of_row], dtype=np.bool_)
    lane = np.unique(data.texts("gpu_uuid"), return_inverse=True)[1]
    order = np.lexsort((data["started_unix_s"], lane))
    broken = np.zeros(len(lane), dtype=np.bool_)
    early = data["started_unix_s"][order[1:]] < data["end_unix_s"][order[:-1]] - OVERLAP_S
    broken[order[1:]] = early & (lane[order[1:]] == lane[order[:-1]])
    return broken & real


def _anchors(data: Checked) -> list[Breach]:
    """Kernels that were measured again and again must not move with the hour."""
    breaches = []
    for rows in repeated_rows(data.table, UNUSABLE | {"throttled", "shared_board"}):
        for name in ("power_w", "latency_s"):
            change, std = _trend(data["started_unix_s"][rows], data[name][rows])
            if abs(change) > max(DRIFT_SHARE, DRIFT_SIGNIFICANCE * std):
                what = f"{name} of {data.texts('operator')[rows[0]]} moved by {change:+.1%} over {len(rows)} repetitions"
                breaches.append(Breach(rows=tuple(rows), what=what))
    return breaches


def _trend(time_s: Array, value: Array) -> tuple[float, float]:
    """Relative change from first to last by a straight line, and its standard error; 0 where there are too few."""
    known = np.isfinite(time_s) & np.isfinite(value)
    time_s, value = time_s[known], value[known]
    if len(value) < FEWEST_ANCHORS or not np.ptp(time_s) > 0:
        return 0.0, np.inf
    (slope, _), covariance = np.polyfit((time_s - time_s.mean()) / np.ptp(time_s), value / value.mean(), 1, cov=True)
    return float(slope), float(np.sqrt(covariance[0, 0]))


def _unusable(data: Checked) -> list[Breach]:
    if not data.flags:
        return [Breach(rows=(), what="it has no rows")]
    broken = data.flagged(*UNUSABLE)
    share = broken.mean()
    return _marked(data, broken & (share > UNUSABLE_SHARE), f"{share:.1%} of the rows say nothing about time or power")


def _foreign(data: Checked) -> BoolArray:
    boards = [(file.metadata.get("gpu") or {}).get("uuid") for file in data.files]
    return np.array([uuid != boards[file] for uuid, file in zip(data.texts("gpu_uuid"), data.file_of_row, strict=True)], dtype=np.bool_)


def _limited(data: Checked) -> BoolArray:
    """Rows in whose run a limit slowed the board."""
    bits = sum(THROTTLE_BITS[name] for name in LIMITING_REASONS)
    return np.array([value & bits != 0 for value in data.table.column("throttle_reasons").to_pylist()], dtype=np.bool_)


def _sensor(metadata: dict[str, Any]) -> str:
    sensor = metadata.get("sensor") or {}
    lacking = [name for name in ("gpu_uuid", "field", "update_period_s", "averaging") if not sensor.get(name)]
    return f"the sensor's {', '.join(lacking)} is not known" if lacking else ""


def _moved_idle(metadata: dict[str, Any]) -> str:
    moved = (metadata.get("drift") or {}).get("idle")
    return f"power at rest changed by {moved:.1%}" if isinstance(moved, float) and moved > IDLE_DRIFT_SHARE else ""


def _no_operator(data: Checked) -> list[bool]:
    families = data.texts("family")
    return [isinstance(one, str) and family != GENERATED for one, family in zip(data.operators, families, strict=True)]


def _known(data: Checked, name: str) -> BoolArray:
    return np.isfinite(data[name])


RULES: Final[tuple[Rule, ...]] = tuple(
    Rule(id=name, what=what, limit=limit, check=check)
    for name, what, limit, check in (
        (
            "D01", "every measurement is there once", "row_id and start together are unique",
            _rows(lambda data: np.isin(data.texts("row_id"), measured_twice(data.table)), "row {row_id} is there more than once"),
        ),
        (
            "D02", "a campaign ran to its end", "metadata say complete",
            _files(lambda found: "" if found.get("complete") is True else UNFINISHED),
        ),
        ("D03", "a file is of one board", "gpu_uuid is that of the metadata", _rows(_foreign, "board {gpu_uuid} is not that of its file")),
        ("D04", "the sensor is known", "board, field, update period and averaging in the metadata", _files(_sensor)),
        ("D05", "most rows are usable", f"{UNUSABLE_SHARE:.0%} without time or power at most", _unusable),
        ("R01", "numbers are possible in their unit", "the ranges below", _ranges),
        (
            "R02", "a row names an operator that can be", "family, precision and shape",
            _rows(_no_operator, "{reason}"),
        ),
        (
            "R03", "flags are known", "those of this page",
            _rows(lambda data: [bool(row - FLAGS.keys()) for row in data.flags], "flags {flags}"),
        ),
        (
            "R04", "a kernel is named, or a flag says why not", "kernel_untraced",
            _rows(lambda data: [not name for name in data.texts("kernel_name")],
                  "no kernel is named, and no flag says why", "kernel_untraced"),
        ),
        (
            "R05", "power rests on enough samples", f"{FEW_SAMPLES}, or few_samples",
            _rows(lambda data: _known(data, "power_w") & (data["samples"] < FEW_SAMPLES),
                  "{samples:.0f} samples behind power_w, and no flag says so", "few_samples", "power_missing"),
        ),
        (
            "R06", "power has a plausible error", f"{STD_SHARE:.0%} of it at most, known from {FEW_SAMPLES} samples on",
            _rows(lambda data: (data["power_std_w"] > STD_SHARE * data["power_w"])
                  | _known(data, "power_w") & ~_known(data, "power_std_w") & (data["samples"] >= FEW_SAMPLES),
                  "power_w = {power_w:.1f} with a standard error of {power_std_w:g}"),
        ),
        (
            "T01", "runs of a board follow each other", f"{OVERLAP_S:g} s of overlap",
            _rows(_overlaps, "starts at {started_unix_s:.3f} s, before the run before it has ended"),
        ),
        ("T02", "repeated kernels do not drift", f"{DRIFT_SHARE:.0%} and {DRIFT_SIGNIFICANCE:g} standard errors", _anchors),
        ("T03", "power at rest is the same at the end", f"{IDLE_DRIFT_SHARE:.0%}", _files(_moved_idle)),
        (
            "P01", "energy is power times time", f"{ENERGY_TOLERANCE:g} of it",
            _rows(lambda data: (np.abs(data["energy_j"] - data["product_j"]) > ENERGY_TOLERANCE * np.abs(data["energy_j"]))
                  | (_known(data, "energy_j") != _known(data, "product_j")),
                  "energy_j = {energy_j:g}, power_w times latency_s = {product_j:g}"),
        ),
        (
            "P02", "power is below the power limit", f"{ABOVE_LIMIT_SHARE:g} times the limit",
            _rows(lambda data: data["power_w"] > ABOVE_LIMIT_SHARE * data["power_limit_w"],
                  "power_w = {power_w:.1f} at a limit of {power_limit_w:.1f}", *UNUSABLE),
        ),
        (
            "P03", "power is above the board at rest", f"{BELOW_IDLE_SHARE:g} times it",
            _rows(lambda data: data["power_w"] < BELOW_IDLE_SHARE * data["rest_w"],
                  "power_w = {power_w:.1f}, the board at rest draws {rest_w:.1f}", *UNUSABLE),
        ),
        (
            "P04", "the clock is the clock asked for, or flagged", f"{CLOCK_TOLERANCE:.1%}",
            _rows(lambda data: np.abs(data["sm_clock_measured_mhz"] - data["sm_clock_mhz"]) > CLOCK_TOLERANCE * data["sm_clock_mhz"],
                  "{sm_clock_mhz:g} MHz asked, {sm_clock_measured_mhz:.1f} measured, and no flag says so",
                  "clock_off_target", "throttled", "clock_varied"),
        ),
        (
            "P05", "limits that slowed the board are flagged", "throttle_reasons and throttled agree",
            _rows(lambda data: _limited(data) != data.flagged("throttled"), "throttle_reasons and the flag throttled do not agree"),
        ),
        (
            "P06", "the energy counter agrees, or is flagged", f"{COUNTER_TOLERANCE:.0%}",
            _rows(lambda data: np.abs(data["energy_counter_j"] - data["reading_j"]) > COUNTER_TOLERANCE * data["reading_j"],
                  "counter {energy_counter_j:g} J a launch, readings {reading_j:g} J, and no flag says so",
                  "counter_disagrees", "counter_absurd"),
        ),
        (
            "P07", "no kernel is faster than the roofline", f"{ROOF_TOLERANCE:g} times the least time",
            _rows(lambda data: data["latency_s"] < ROOF_TOLERANCE * data["least_s"],
                  "latency_s = {latency_s:.3g}, the peak rates allow {least_s:.3g} at least", *UNUSABLE),
        ),
    )
)  # fmt: skip
"""All rules, in the order in which they are told: the dataset, its rows, time, physics."""

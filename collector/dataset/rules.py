"""The rules for checking a dataset, and the report: each rule with an id, a limit, and its check.

Rows, or a file as a whole, can break a rule.  A row that declares a doubt itself, as a flag, does not break the rule for that doubt.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from collector.dataset.reader import KernelDataset, measured_twice, read_parts
from collector.dataset.schema import KERNEL_COLUMNS, UNUSABLE, Metadata, operators_or_reasons
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import HZ_PER_MHZ, Array, BoolArray
from estimator.vocabulary.specifications import gpu_names, load_gpu
from estimator.vocabulary.work import operator_work
from estimator.vocabulary.workload import Operator
from microbench.kernel import FAMILY


class Checked:
    """A dataset prepared for the rules: numbers as float64 with nan for null, flags, each row's file, and its operator or an error text.

    The numbers include reference values of the rules: products of columns, "power at rest" (before the row or at its clock) and "least
    time" (from the peak rates).
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
        number["power_w * latency_s"] = number["power_w"] * number["latency_s"]
        number["power_raw_w * latency_s"] = number["power_raw_w"] * number["latency_s"]
        number["power at rest"] = np.where(np.isfinite(number["idle_before_w"]), number["idle_before_w"], self._idle_of_clock())
        gpus = {name: load_gpu(name) for name in set(self.texts("gpu")).intersection(gpu_names())}
        rows = zip(self.operators, self.texts("gpu"), number["sm_clock_measured_mhz"].tolist(), strict=True)
        number["least time"] = np.array(
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
    """A broken rule: rows by number, and the fault in a few words; without rows for a whole file."""

    rows: tuple[int, ...]
    what: str


class Rule(NamedTuple):
    """A rule: its id, its requirement, its limit in words, and the check."""

    id: str
    what: str
    limit: str
    check: Callable[[Checked], list[Breach]]


def least_s(operator: Operator, gpu: GpuSpec, sm_clock_mhz: float) -> float:
    """The least time of a kernel by a GPU's peak rates [s]: useful arithmetic, and compulsory traffic beyond the L2; 0 if unknown."""
    if operator.family in ("conv", "attention"):  # their libraries do less than the definition
        return 0.0
    clock_hz = (sm_clock_mhz if 0.0 < sm_clock_mhz < np.inf else gpu.sm_clock_limit_mhz) * HZ_PER_MHZ
    work = operator_work(operator)
    rate = gpu.matrix_flop_per_clock(operator.precision, operator.cuda_cores) if work.flop else 0.0
    compute_s = work.flop / (rate * gpu.num_sms * clock_hz) if rate > 0 else 0.0
    return max(compute_s, (work.read_byte - gpu.l2_bytes) / gpu.dram_bytes_per_s, 0.0)


def _marked(data: Checked, broken: BoolArray | list[bool], example: str) -> list[Breach]:
    """One breach of all marked rows, in the words of `example` with the values of the first of them."""
    found = np.flatnonzero(broken).tolist()
    if not found:
        return []
    row = {**data.table.slice(found[0], 1).to_pylist()[0], **{name: column[found[0]] for name, column in data.numbers.items()}}
    return [Breach(rows=tuple(found), what=example.format(**row, reason=data.operators[found[0]]))]


def _rows(broken: Callable[[Checked], BoolArray | list[bool]], example: str, *excused: str) -> Callable[[Checked], list[Breach]]:
    """A check of each row that reports broken rows, unless a flag excuses them; see `_marked`."""
    return lambda data: _marked(data, np.asarray(broken(data), dtype=np.bool_) & ~data.flagged(*excused), example)


def _bound(value: str, reference: str, low: float, high: float, *excused: str) -> Callable[[Checked], list[Breach]]:
    """A check that a column lies within multiples of another one, if that is above 0 and both are known."""
    return _rows(
        lambda data: (data[reference] > 0.0) & ((data[value] < low * data[reference]) | (data[value] > high * data[reference])),
        f"{value} = {{{value}:.6g}}, {reference} = {{{reference}:.6g}}",
        *excused,
    )


def _files(test: Callable[[Metadata], str]) -> Callable[[Checked], list[Breach]]:
    """A check of each file's metadata, which returns the fault or an empty text."""
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


def _unusable(data: Checked) -> list[Breach]:
    if not data.flags:
        return [Breach(rows=(), what="it has no rows")]
    broken = data.flagged(*UNUSABLE)
    share = broken.mean()
    return _marked(data, broken & (share > 0.05), f"{share:.1%} of the rows say nothing about time or power")


def _sensor(metadata: Metadata) -> str:
    sensor = metadata.get("sensor") or {}
    lacking = [name for name in ("gpu_uuid", "field", "update_period_s", "averaging") if not sensor.get(name)]
    return f"the sensor's {', '.join(lacking)} is not known" if lacking else ""


def _drift(metadata: Metadata) -> str:
    """Repeated kernels, and power at rest, must not drift over time."""
    drift, most = metadata.get("drift") or {}, {"latency": 0.05, "power": 0.05, "idle": 0.1}
    moved = [f"{name} {drift[name]:.1%}" for name in most if isinstance(drift.get(name), float) and drift[name] > most[name]]
    return f"drift of {', '.join(moved)}" if moved else ""


def _no_operator(data: Checked) -> list[bool]:
    families = data.texts("family")
    return [isinstance(one, str) and family != FAMILY for one, family in zip(data.operators, families, strict=True)]


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "D01", "every measurement is there once", "row_id and start together are unique",
        _rows(lambda data: np.isin(data.texts("row_id"), measured_twice(data.table)), "row {row_id} is there more than once"),
    ),
    Rule(
        "D02", "a campaign ran to its end", "metadata say complete",
        _files(lambda found: "" if found.get("complete") is True else "its campaign did not finish; `collect --resume` goes on with it"),
    ),
    Rule("D04", "the sensor is known", "board, field, update period and averaging in the metadata", _files(_sensor)),
    Rule("D05", "most rows are usable", "5% without time or power at most", _unusable),
    Rule("R01", "numbers are possible in their unit", "the ranges below", _ranges),
    Rule("R02", "a row names an operator that can be", "family, precision and shape", _rows(_no_operator, "{reason}")),
    Rule(
        "R04", "a kernel is named, or a flag says why not", "kernel_untraced",
        _rows(lambda data: [not name for name in data.texts("kernel_name")], "no kernel is named, and no flag says why", "kernel_untraced"),
    ),
    Rule("R06", "power has a plausible error", "25% of it at most", _bound("power_std_w", "power_w", 0.0, 0.25)),
    Rule("T02", "repeated kernels and power at rest do not drift", "5% latency and power, 10% at rest", _files(_drift)),
    Rule("P01", "energy is power times time", "1e-06 of it", _bound("energy_j", "power_w * latency_s", 1.0 - 1e-6, 1.0 + 1e-6)),
    Rule(
        "P02", "power is below the power limit", "1.05 times the limit", _bound("power_w", "power_limit_w", 0.0, 1.05, *UNUSABLE)
    ),
    Rule("P03", "power is above the board at rest", "0.9 times it", _bound("power_w", "power at rest", 0.9, 1e9, *UNUSABLE)),
    Rule(
        "P04", "the clock is the clock asked for, or flagged", "1.5%",
        _bound("sm_clock_measured_mhz", "sm_clock_mhz", 0.985, 1.015, "clock_off_target", "throttled", "clock_varied"),
    ),
    Rule(
        "P06", "the energy counter agrees, or is flagged", "15%",
        _bound("energy_counter_j", "power_raw_w * latency_s", 0.85, 1.15, "counter_disagrees", "counter_absurd"),
    ),
    Rule(
        "P07", "no kernel is faster than the roofline", "0.95 times the least time",
        _bound("latency_s", "least time", 0.95, 1e9, *UNUSABLE),
    ),
)  # fmt: skip
"""All rules, in the order of the report: the dataset, its rows, time, physics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The result of the rules on a dataset: its rows, and the breaches of the broken rules, by rule id."""

    dataset: str
    row_ids: tuple[str, ...]
    broken: dict[str, list[Breach]]


def validate_dataset(path: Path) -> Findings:
    """A dataset checked by every rule.  Raises DatasetError for one that cannot be read at all."""
    with np.errstate(all="ignore"):  # numbers that are infinite, or whose products are, break a rule of their own
        data = Checked(read_parts(path))
        broken = {rule.id: breaches for rule in RULES if (breaches := rule.check(data))}
    return Findings(dataset=str(path), row_ids=tuple(data.texts("row_id")), broken=broken)


def findings_document(findings: Findings) -> dict[str, object]:
    """Findings as plain data."""
    rules = []
    for rule in RULES:
        breaches = [
            {"what": breach.what, "rows": [findings.row_ids[row] for row in breach.rows], "count": len(breach.rows)}
            for breach in findings.broken.get(rule.id, ())
        ]
        rules.append({"rule": rule.id, "what": rule.what, "limit": rule.limit, "broken": bool(breaches), "breaches": breaches})
    return {"dataset": findings.dataset, "rows": len(findings.row_ids), "valid": not findings.broken, "rules": rules}


def findings_lines(findings: Findings) -> list[str]:
    """Findings for people: at most three breaches of each broken rule, and three rows of each; the document has all."""
    lines = [f"{findings.dataset}: {len(findings.row_ids)} rows, {len(RULES)} rules, {len(findings.broken)} broken"]
    for rule in RULES:
        breaches = findings.broken.get(rule.id, [])
        for breach in breaches[:3]:
            named = ", ".join(findings.row_ids[row] for row in breach.rows[:3]) + (", …" if breach.rows[3:] else "")
            rows = f" ({len(breach.rows)} rows: {named})" if breach.rows else ""
            lines.append(f"  {rule.id}  {rule.what} ({rule.limit}): {breach.what}{rows}")
        if breaches[3:]:
            lines.append(f"  {rule.id}  and {len(breaches) - 3} more; --json names them")
    return lines

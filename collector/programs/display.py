"""Results of `collect run`, as JSON data and as lines."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from collector.bench import Instruments
from collector.campaigns.outcome import known
from collector.programs.kernels import KernelRun
from collector.programs.practice import Trial, compared
from collector.programs.program import ProgramRun
from collector.sensing.calibration import SensorCalibration
from collector.sensing.figures import figure, rounded_like
from estimator.vocabulary.quantities import Array

Document = dict[str, Any]

RUN_FIELDS: Final = (
    "exit_status", "executions", "sm_clock_mhz", "latency_s", "power_w", "energy_j", "energy_std_j", "above_rest_j", "rest_w",
    "naive_energy_j", "counter_energy_j", "counter_energy_std_j", "temperature_c",
)  # fmt: skip
"""Numbers of a run in the document."""

MEANS: Final = (
    "sm_clock_mhz", "latency_s", "energy_j", "energy_std_j", "scatter_std_j", "above_rest_j", "rest_w", "naive_energy_j",
    "counter_energy_j", "counter_energy_std_j",
)  # fmt: skip
"""Numbers whose means over the runs at a clock stand in the document."""

SAYS_NOTHING: Final = ", simulated: its energies say nothing of a real one"
COLUMNS: Final = ("clock [MHz]", "runs", "time [{}]", "power [W]", "energy [J]", "above rest [J]", "naive [J]", "counter [J]")


def run_document(
    command: Sequence[str], instruments: Instruments, calibration: SensorCalibration, runs: Sequence[tuple[float | None, ProgramRun]]
) -> Document:
    """All runs and, for each requested clock, their means, as plain data; unknown values are null."""
    identity = instruments.gpu.identity()
    asked = list(dict.fromkeys(clock for clock, _ in runs))
    notes = dict.fromkeys([*instruments.notes, *(line for _, run in runs for line in (*run.notes, *run.doubts))])
    if calibration.averaging == "undetermined":
        notes["the sensor is not known: errors hold what sensors do; `collect sensor --out S.json` and --sensor S.json tell more"] = None
    return {
        "command": list(command),
        "gpu": identity.name,
        "gpu_uuid": identity.uuid,
        "simulated": instruments.simulated,
        "clocks": [_clock_document(clock, [run for at, run in runs if at == clock]) for clock in asked],
        "runs": [{"asked_sm_clock_mhz": clock, **_run_document(run)} for clock, run in runs],
        "notes": list(notes),
    }


def run_lines(document: Document) -> list[str]:
    """The means as a table, and notes."""
    short = all(item["latency_s"] < 1.0 for item in document["clocks"])
    scale, unit = (1e3, "ms") if short else (1.0, "s")
    rows = [tuple(name.format(unit) for name in COLUMNS)]
    for item in document["clocks"]:
        std = item["energy_std_j"]
        rows.append(
            (
                "-" if item["sm_clock_mhz"] is None else f"{item['sm_clock_mhz']:.0f}",
                str(item["runs"]),
                _text(item["latency_s"], item["latency_std_s"], scale),
                _text(item["power_w"], item["power_std_w"]),
                _text(item["energy_j"], std),
                _beside(item["above_rest_j"], std),
                _beside(item["naive_energy_j"], std),
                _text(item["counter_energy_j"], item["counter_energy_std_j"]),
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    table = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    kind = SAYS_NOTHING if document["simulated"] else ""
    failed = sorted({run["exit_status"] for run in document["runs"] if run["exit_status"]})
    ends = [f"exit status of the command: {', '.join(map(str, failed))}"] if failed else []
    return [
        f"{shlex.join(document['command'])}",
        f"{document['gpu']}{kind}",
        *table,
        *ends,
        *(f"note: {line}" for line in document["notes"]),
    ]


def kernels_document(command: Sequence[str], instruments: Instruments, found: KernelRun) -> Document:
    """Energy by kernel as plain data."""
    total = sum(one.energy_j for one in found.kernels)
    return {
        "command": list(command),
        "gpu": instruments.gpu.identity().name,
        "simulated": instruments.simulated,
        "run": _run_document(found.run),
        "kernels": [{**asdict(one), "share": one.energy_j / total} for one in found.kernels],
        "notes": list(found.notes),
    }


def kernels_lines(document: Document) -> list[str]:
    """Energy by kernel as a table, and notes."""
    rows = [("launches", "time [s]", "energy [J]", "share [%]", "kernel")]
    for one in document["kernels"]:
        launches = str(one["launches"] or "-")
        energy = _text(one["energy_j"], one["energy_std_j"])
        rows.append((launches, f"{one['time_s']:.4g}", energy, f"{100.0 * one['share']:.1f}", one["name"][:100]))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    run = document["run"]
    return [
        f"{shlex.join(document['command'])}: {run['latency_s']:.4g} s, {figure(run['energy_j'], run['energy_std_j'], 'J')}",
        f"{document['gpu']}{SAYS_NOTHING if document['simulated'] else ''}",
        *("  ".join([*map(str.rjust, row[:4], widths), row[4]]) for row in rows),
        *(f"note: {line}" for line in document["notes"]),
    ]


def practice_document(command: Sequence[str], instruments: Instruments, trials: Sequence[Trial]) -> Document:
    """The methods of `collect practice` as plain data; unknown values are null."""
    notes = dict.fromkeys([*instruments.notes, *(note for trial in trials for note in trial.notes)])
    methods = [asdict(one) for one in compared(trials)]
    return {
        "command": list(command),
        "gpu": instruments.gpu.identity().name,
        "simulated": instruments.simulated,
        "trials": len(trials),
        "executions": sum(trial.executions for trial in trials),
        "methods": [{name: value if name == "method" else known(value) for name, value in one.items()} for one in methods],
        "notes": list(notes),
    }


def practice_lines(document: Document) -> list[str]:
    """The methods as a table, and notes."""
    simulated = document["simulated"]
    rows = [("method", "energy [J]", "spread [J]", "true error [%]" if simulated else "")]
    for one in document["methods"]:
        error, spread = one["true_error"], one["spread_j"]
        energy = _text(one["energy_j"], one["energy_std_j"]) if one["energy_std_j"] else _beside(one["energy_j"], spread)
        rows.append((one["method"], energy, _beside(spread, spread), f"{100.0 * error:+.2f}" if simulated else ""))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        f"{shlex.join(document['command'])}: one of {document['executions']} executions in {document['trials']} trials",
        f"{document['gpu']}{SAYS_NOTHING if simulated else ''}",
        *("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows),
        *(f"note: {line}" for line in document["notes"]),
    ]


def _clock_document(asked: float | None, runs: Sequence[ProgramRun]) -> Document:
    """Means over the runs at one clock.  Gain and offset are common to them, the rest averages out."""
    figures = {name: np.array([getattr(run, name) for run in runs], dtype=np.float64) for name in MEANS}
    mean = {name: float(values.mean()) for name, values in figures.items()}
    several, count = len(runs) > 1, math.sqrt(len(runs))
    energy_std, scatter_std = figures["energy_std_j"], figures["scatter_std_j"]
    common = float(np.mean(np.sqrt(np.maximum(energy_std**2 - scatter_std**2, 0.0))))
    seen = float(figures["energy_j"].std(ddof=1)) if several else 0.0
    std = math.hypot(common, max(_rms(scatter_std), seen) / count)
    document = {
        **{name: mean[name] for name in MEANS if name != "scatter_std_j"},
        "latency_std_s": float(figures["latency_s"].std(ddof=1)) / count if several else math.nan,
        "power_w": mean["energy_j"] / mean["latency_s"],
        "power_std_w": std / mean["latency_s"],
        "energy_std_j": std,
        "counter_energy_std_j": _rms(figures["counter_energy_std_j"]) / count,
    }
    return {
        "asked_sm_clock_mhz": asked,
        "runs": sum(run.executions for run in runs),
        **{name: known(value) for name, value in document.items()},
        "throttled": sorted({reason for run in runs for reason in run.throttled}),
    }


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _run_document(run: ProgramRun) -> dict[str, object]:
    found = {name: known(getattr(run, name)) for name in RUN_FIELDS}
    return {**found, "throttled": list(run.throttled), "notes": [*run.notes, *run.doubts]}


def _text(value: float | None, std: float | None, scale: float = 1.0) -> str:
    """A cell: a figure with its error, without spaces for the terminal; - for an unknown value."""
    return "-" if value is None else figure(value * scale, None if std is None else std * scale, "").replace(" ", "")


def _beside(value: float | None, std: float | None) -> str:
    """A cell without an error of its own, to the last digit of the figure beside it."""
    return "-" if value is None else rounded_like(value, math.nan if std is None else std)

"""Results of `collect run` and `collect practice`, as JSON data and as lines."""

import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from collector.devices.protocols import Instruments
from collector.programs.kernels import KernelEnergy
from collector.programs.practice import Trial, compared
from collector.programs.program import ProgramRun
from collector.sensing.calibration import SensorCalibration
from collector.sensing.figures import figure, rounded_like
from estimator.display.text import aligned, known
from estimator.vocabulary.quantities import Array

Document = dict[str, Any]

MEANS: Final = (
    "sm_clock_mhz", "latency_s", "energy_j", "energy_std_j", "above_rest_j", "rest_w", "naive_energy_j", "counter_energy_j",
    "counter_energy_std_j",
)  # fmt: skip
"""Numbers of a run in the document, whose means over the runs at a clock stand there too."""

COLUMNS: Final = ("clock [MHz]", "runs", "time [{}]", "power [W]", "energy [J]", "above rest [J]", "naive [J]", "counter [J]")
TEXTS: Final = ("kernel", "method")
"""Columns that hold no numbers."""


def run_document(
    command: Sequence[str], instruments: Instruments, calibration: SensorCalibration, runs: Sequence[tuple[float | None, ProgramRun]]
) -> Document:
    """All runs and, for each requested clock, their means, as plain data; unknown values are null."""
    notes = [line for _, run in runs for line in (*run.notes, *run.doubts)]
    if calibration.averaging == "undetermined":
        notes.append("the sensor is not known: errors hold what sensors do; `collect sensor --out S.json` and --sensor S.json tell more")
    return _document(
        command,
        instruments,
        notes,
        clocks=[_clock_document(clock, [run for at, run in runs if at == clock]) for clock in dict.fromkeys(clock for clock, _ in runs)],
        runs=[{"asked_sm_clock_mhz": clock, **_run_document(run)} for clock, run in runs],
    )


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
    failed = sorted({run["exit_status"] for run in document["runs"] if run["exit_status"]})
    return _lines(document, "", rows, *([f"exit status of the command: {', '.join(map(str, failed))}"] if failed else []))


def kernels_document(command: Sequence[str], instruments: Instruments, run: ProgramRun, kernels: Sequence[KernelEnergy]) -> Document:
    """Energy by kernel as plain data."""
    total = sum(one.energy_j for one in kernels)
    shares = [{**asdict(one), "share": one.energy_j / total} for one in kernels]
    return _document(command, instruments, (*run.notes, *run.doubts), run=_run_document(run), kernels=shares)


def kernels_lines(document: Document) -> list[str]:
    """Energy by kernel as a table, and notes."""
    rows = [("launches", "time [s]", "energy [J]", "share [%]", "kernel")]
    for one in document["kernels"]:
        launches = str(one["launches"] or "-")
        energy = _text(one["energy_j"], one["energy_std_j"])
        rows.append((launches, f"{one['time_s']:.4g}", energy, f"{100.0 * one['share']:.1f}", one["name"][:100]))
    run = document["run"]
    return _lines(document, f": {run['latency_s']:.4g} s, {figure(run['energy_j'], run['energy_std_j'], 'J')}", rows)


def practice_document(command: Sequence[str], instruments: Instruments, trials: Sequence[Trial]) -> Document:
    """The methods of `collect practice` as plain data; unknown values are null."""
    return _document(
        command,
        instruments,
        [note for trial in trials for note in trial.corrected.notes.values()],
        trials=len(trials),
        executions=sum(trial.executions for trial in trials),
        methods=compared(trials),
    )


def practice_lines(document: Document) -> list[str]:
    """The methods as a table, and notes."""
    simulated = document["simulated"]
    rows = [("method", "energy [J]", "spread [J]", "true error [%]" if simulated else "")]
    for one in document["methods"]:
        spread, std = one["spread_j"], one["energy_std_j"]
        energy = _text(one["energy_j"], std) if std else _beside(one["energy_j"], spread)
        rows.append((one["method"], energy, _beside(spread, spread), f"{100.0 * one['true_error']:+.2f}" if simulated else ""))
    return _lines(document, f": one of {document['executions']} executions in {document['trials']} trials", rows)


def _document(command: Sequence[str], instruments: Instruments, notes: Iterable[str], **results: Any) -> Document:
    """Results with the facts that every one needs; unknown values are null."""
    identity = instruments.gpu.identity()
    return {
        "command": list(command),
        "gpu": identity.name,
        "gpu_uuid": identity.uuid,
        "simulated": instruments.simulated,
        **known(results),
        "notes": list(dict.fromkeys([*instruments.notes, *notes])),
    }


def _lines(document: Document, title: str, rows: Sequence[Sequence[str]], *ends: str) -> list[str]:
    """A table between command and board and the notes."""
    return [
        f"{shlex.join(document['command'])}{title}",
        f"{document['gpu']}{', simulated: its energies say nothing of a real one' if document['simulated'] else ''}",
        *aligned(rows, {index for index, name in enumerate(rows[0]) if name in TEXTS}).splitlines(),
        *ends,
        *(f"note: {line}" for line in document["notes"]),
    ]


def _clock_document(asked: float | None, runs: Sequence[ProgramRun]) -> Document:
    """Means over the runs at one clock whose energy is known.  `scatter_std_j` averages out, the rest of the error is common to them.

    The error that the runs state counts as much as one run's distance from the mean.
    """
    executions = sum(run.executions for run in runs)
    runs = [run for run in runs if math.isfinite(run.energy_j)] or runs
    figures = {name: np.array([getattr(run, name) for run in runs], dtype=np.float64) for name in (*MEANS, "scatter_std_j")}
    scatter_std = figures.pop("scatter_std_j")
    mean = {name: float(values.mean()) for name, values in figures.items()}
    several, count = len(runs) > 1, math.sqrt(len(runs))
    common = float(np.mean(np.sqrt(np.maximum(figures["energy_std_j"] ** 2 - scatter_std**2, 0.0))))
    std = math.hypot(common, math.hypot(_rms(scatter_std) / count, float(figures["energy_j"].std())) / count)
    counter_own = math.sqrt(max(_rms(figures["counter_energy_std_j"]) ** 2 - common**2, 0.0))
    return {
        "asked_sm_clock_mhz": asked,
        "runs": executions,
        **mean,
        "latency_std_s": float(figures["latency_s"].std(ddof=1)) / count if several else math.nan,
        "power_w": mean["energy_j"] / mean["latency_s"],
        "power_std_w": std / mean["latency_s"],
        "energy_std_j": std,
        "counter_energy_std_j": math.hypot(common, counter_own / count),
        "throttled": sorted({reason for run in runs for reason in run.throttled}),
    }


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _run_document(run: ProgramRun) -> Document:
    found = {name: getattr(run, name) for name in ("exit_status", "executions", *MEANS, "power_w", "temperature_c")}
    return {**found, "throttled": list(run.throttled), "notes": [*run.notes, *run.doubts]}


def _text(value: float | None, std: float | None, scale: float = 1.0) -> str:
    """A cell: a figure with its error, without spaces for the terminal; - for an unknown value."""
    return "-" if value is None else figure(value * scale, None if std is None else std * scale, "").replace(" ", "")


def _beside(value: float | None, std: float | None) -> str:
    """A cell without an error of its own, to the last digit of the figure beside it."""
    return "-" if value is None else rounded_like(value, math.nan if std is None else std)

"""Results of `collect run`, as JSON data and as lines."""

import math
import shlex
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from collector.bench import Instruments
from collector.programs.program import ProgramRun
from collector.sensing.calibration import SensorCalibration
from collector.sensing.figures import figure, rounded_like

RUN_FIELDS: Final = (
    "exit_status", "executions", "sm_clock_mhz", "latency_s", "power_w", "energy_j", "energy_std_j", "above_rest_j", "rest_w",
    "naive_energy_j", "counter_energy_j", "counter_energy_std_j", "temperature_c", "throttled", "notes",
)  # fmt: skip
"""Fields of a run in the document."""

COLUMNS: Final = ("MHz", "runs", "time [{}]", "power [W]", "energy [J]", "above rest", "naive", "counter [J]")


def run_document(
    command: Sequence[str], instruments: Instruments, calibration: SensorCalibration, runs: Sequence[tuple[float | None, ProgramRun]]
) -> dict[str, Any]:
    """All runs and, for each requested clock, their means, as plain data; unknown values are null."""
    identity = instruments.gpu.identity()
    asked = list(dict.fromkeys(clock for clock, _ in runs))
    notes = dict.fromkeys([*instruments.notes, *(line for _, run in runs for line in run.notes)])
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


def run_lines(document: dict[str, Any]) -> list[str]:
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
    kind = ", simulated: its energies say nothing of a real one" if document["simulated"] else ""
    failed = sorted({run["exit_status"] for run in document["runs"] if run["exit_status"]})
    ends = [f"exit status of the command: {', '.join(map(str, failed))}"] if failed else []
    return [
        f"{shlex.join(document['command'])}",
        f"{document['gpu']}{kind}",
        *table,
        *ends,
        *(f"note: {line}" for line in document["notes"]),
    ]


def _clock_document(asked: float | None, runs: Sequence[ProgramRun]) -> dict[str, Any]:
    """Means over the runs at one clock.  Gain and offset are common to them, the rest averages out."""
    energy = np.array([run.energy_j for run in runs])
    latency = np.array([run.latency_s for run in runs])
    common = float(np.mean([math.sqrt(max(run.energy_std_j**2 - run.scatter_std_j**2, 0.0)) for run in runs]))
    stated = float(np.sqrt(np.mean([run.scatter_std_j**2 for run in runs])))
    seen = float(energy.std(ddof=1)) if len(runs) > 1 else 0.0
    std = math.hypot(common, max(stated, seen) / math.sqrt(len(runs)))
    counted = [run.counter_energy_j for run in runs]
    latency_std = float(latency.std(ddof=1)) / math.sqrt(len(runs)) if len(runs) > 1 else math.nan
    return {
        "asked_sm_clock_mhz": asked,
        "sm_clock_mhz": _known(float(np.mean([run.sm_clock_mhz for run in runs]))),
        "runs": sum(run.executions for run in runs),
        "latency_s": float(latency.mean()),
        "latency_std_s": _known(latency_std),
        "power_w": float(energy.mean() / latency.mean()),
        "power_std_w": _known(std / float(latency.mean())),
        "energy_j": float(energy.mean()),
        "energy_std_j": _known(std),
        "above_rest_j": float(np.mean([run.above_rest_j for run in runs])),
        "rest_w": float(np.mean([run.rest_w for run in runs])),
        "naive_energy_j": _known(float(np.mean([run.naive_energy_j for run in runs]))),
        "counter_energy_j": _known(float(np.mean(counted))),
        "counter_energy_std_j": _known(float(np.sqrt(np.mean(np.square([run.counter_energy_std_j for run in runs])) / len(runs)))),
        "throttled": sorted({reason for run in runs for reason in run.throttled}),
    }


def _run_document(run: ProgramRun) -> dict[str, object]:
    found = {name: getattr(run, name) for name in RUN_FIELDS}
    return {
        name: _known(value) if isinstance(value, float) else list(value) if isinstance(value, tuple) else value
        for name, value in found.items()
    }


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _text(value: float | None, std: float | None, scale: float = 1.0) -> str:
    """A cell: a figure with its error, without spaces for the terminal; - for an unknown value."""
    return "-" if value is None else figure(value * scale, None if std is None else std * scale, "").replace(" ", "")


def _beside(value: float | None, std: float | None) -> str:
    """A cell without an error of its own, to the last digit of the figure beside it."""
    return "-" if value is None else rounded_like(value, math.nan if std is None else std)

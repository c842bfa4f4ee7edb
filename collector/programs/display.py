"""What `collect run` measured, as JSON data and as lines."""

import math
import shlex
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from collector.bench import Instruments
from collector.programs.program import ProgramRun
from collector.sensor.calibration import SensorCalibration

COLUMNS: Final = ("clock MHz", "runs", "time s", "power W", "energy J", "± J", "above rest J", "naive J", "counter J")


def run_document(
    command: Sequence[str], instruments: Instruments, calibration: SensorCalibration, runs: Sequence[tuple[float | None, ProgramRun]]
) -> dict[str, Any]:
    """All runs and, for each clock asked for, their means, as plain data; what is not known is null."""
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
    rows = [COLUMNS]
    for item in document["clocks"]:
        rows.append(
            (
                _text(item["sm_clock_mhz"], "{:.0f}"),
                str(item["runs"]),
                _text(item["latency_s"], "{:.4g}"),
                _text(item["power_w"], "{:.1f}"),
                _text(item["energy_j"], "{:.5g}"),
                _text(item["energy_std_j"], "{:.2g}"),
                _text(item["above_rest_j"], "{:.4g}"),
                _text(item["naive_energy_j"], "{:.5g}"),
                _text(item["counter_energy_j"], "{:.5g}"),
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
        "counter_energy_j": _known(float(np.mean([run.counter_energy_j for run in runs]))),
        "throttled": sorted({reason for run in runs for reason in run.throttled}),
    }


def _run_document(run: ProgramRun) -> dict[str, Any]:
    return {
        "exit_status": run.exit_status,
        "executions": run.executions,
        "sm_clock_mhz": _known(run.sm_clock_mhz),
        "latency_s": run.latency_s,
        "power_w": run.power_w,
        "energy_j": run.energy_j,
        "energy_std_j": _known(run.energy_std_j),
        "above_rest_j": run.above_rest_j,
        "rest_w": run.rest_w,
        "naive_energy_j": _known(run.naive_energy_j),
        "counter_energy_j": _known(run.counter_energy_j),
        "temperature_c": _known(run.temperature_c),
        "throttled": list(run.throttled),
        "notes": list(run.notes),
    }


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)

"""How well sensors are identified: real traces, random simulated sensors, locked loads and lone steps.

    python benchmarks/sensor_identification.py [--data ../shared/data] [--sensors 300] [--first 0] [--special 30]
        [--rows 10000000] [--jobs 1] [--keep FOLDER] [--json]

Each simulated sensor is identified twice, from its readings with an external meter and with load stamps alone.  The world
that makes them (benchmarks/random_sensors.py) shares no equation with the identification.
"""

import json
import os
import pickle
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
from pyarrow import csv
from random_sensors import PlantedSensor, Recording, draw_sensor, record

from collector.recordings.loads import stamps_of_levels
from collector.recordings.run import read_run
from collector.sensing.calibration import SensorCalibration
from collector.sensing.identify import SensorName, SensorRecord, identify_sensor
from estimator.vocabulary.whole_file import write_whole

NAME = SensorName(gpu_uuid="", driver="", sensor="simulated", field="instant")
PERIOD_ERROR_S = 1e-4
WIDTH_ERROR_S = 1e-3
TELLABLE_HOLE = 0.15
TELLABLE_WIDTH_S = 3e-3
TELLABLE_NONE_PERIOD_S = 0.06
PUBLISHED_PERIODS_S = {"a100_10ms_load": 0.101148, "rtx3090_10ms_load": 0.099970}
"""Periods of the two long logs, from all of their 200 s (fits of their own by another method)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One identification: what was planted, what was found, whether the record could tell, and the time that it took [s].

    `mean_period_s` is the period that the clock really had in the recording, wander included.
    """

    planted: PlantedSensor
    mean_period_s: float
    source: str
    found: SensorCalibration
    tellable: bool
    seconds: float


def sensor_record(recording: Recording, source: str) -> SensorRecord:
    """The inputs of an identification; `source` is "meter" (load stamps as well) or "load"."""
    meter = source == "meter"
    return SensorRecord(
        time_s=recording.time_s,
        power_w=recording.reading_w,
        load=stamps_of_levels(recording.edge_s, recording.level),
        meter_s=recording.meter_s if meter else None,
        meter_w=recording.meter_w if meter else None,
    )


def tellable(recording: Recording) -> bool:
    """Whether a meter can tell this sensor: its updates see the load's whole period, and its averaging is no trifle."""
    planted = recording.planted
    if planted.kernel == "none":
        wide = planted.period_s > TELLABLE_NONE_PERIOD_S
    else:
        wide = planted.width_s > (TELLABLE_WIDTH_S if planted.rigid else max(TELLABLE_WIDTH_S, planted.poll_s))
    starts = recording.edge_s[recording.level > 0]
    cycle = np.searchsorted(starts, recording.update_s, side="right") - 1
    inside = (cycle >= 0) & (cycle < len(starts) - 1)
    place = np.sort((recording.update_s[inside] - starts[cycle[inside]]) / np.diff(starts)[cycle[inside]])
    hole = float(np.max(np.diff(np.append(place, place[0] + 1.0)))) if len(place) > 1 else 1.0
    return bool(wide and hole <= TELLABLE_HOLE)


def outcomes(seed: int, change: Callable[[PlantedSensor], PlantedSensor] | None = None) -> list[Outcome]:
    """Both identifications of one random sensor."""
    random = np.random.default_rng(seed)
    planted = draw_sensor(random)
    recording = record(change(planted) if change else planted, random)
    result = []
    for source in ("meter", "load"):
        begun = time.perf_counter()
        found = identify_sensor(sensor_record(recording, source), NAME).calibration
        seconds = time.perf_counter() - begun
        result.append(
            Outcome(
                planted=recording.planted,
                mean_period_s=recording.mean_period_s,
                source=source,
                found=found,
                tellable=tellable(recording),
                seconds=seconds,
            )
        )
    return result


def lone_step(planted: PlantedSensor) -> PlantedSensor:
    """The same sensor under one step."""
    return replace(planted, load_period_s=float("inf"))


def locked(planted: PlantedSensor) -> PlantedSensor:
    """The same sensor under a load of twice its update period."""
    return replace(planted, load_period_s=2.0 * planted.period_s, load_spread=0.0)


def summary(rows: list[Outcome]) -> dict[str, Any]:
    """The numbers of a sample, by source."""
    metered = [row for row in rows if row.source == "meter"]
    timed = [row for row in metered if row.found.update_period_s is not None]
    rigid = [row for row in timed if row.planted.rigid]
    result: dict[str, Any] = {
        "sensors": len(metered),
        "without_a_period": len(metered) - len(timed),
        "rigid_clocks": len(rigid),
        "period_within_0.1ms": _share(abs((row.found.update_period_s or 0.0) - row.planted.period_s) < PERIOD_ERROR_S for row in rigid),
        "mean_period_coverage": _coverage((row.found.update_period_s or np.nan) - row.mean_period_s for row in timed)(
            row.found.update_period_std_s or np.nan for row in timed
        ),
        "card_period_in_68_95": [
            _share(
                abs((row.found.update_period_s or np.nan) - row.planted.period_s) <= (row.found.card_period_68_s or np.nan) for row in timed
            ),
            _share(
                abs((row.found.update_period_s or np.nan) - row.planted.period_s) <= (row.found.card_period_95_s or np.nan) for row in timed
            ),
        ],
    }
    for source in ("meter", "load"):
        result[source] = _averaging_numbers([row for row in rows if row.source == source])
    return result


def _averaging_numbers(rows: list[Outcome]) -> dict[str, Any]:
    claimed = [row for row in rows if row.found.averaging != "undetermined"]
    right = [row for row in claimed if row.found.averaging == row.planted.kernel]
    telling = [row for row in rows if row.tellable]
    width = [row for row in right if row.planted.kernel in ("boxcar", "low-pass")]
    error = np.array([(row.found.window_s or 0.0) - row.planted.width_s for row in width])
    numbers: dict[str, Any] = {
        "claimed": len(claimed),
        "wrong": len(claimed) - len(right),
        "wrong_share": (len(claimed) - len(right)) / max(len(rows), 1),
        "tellable": len(telling),
        "claimed_of_tellable": _share(row.found.averaging != "undetermined" for row in telling),
        "width_within_1ms": _share(np.abs(error) < WIDTH_ERROR_S),
        "width_error_median_ms": float(np.median(np.abs(error))) * 1e3 if len(error) else None,
        "width_within_4_std": _share(np.abs(error) < 4.0 * np.array([row.found.window_std_s or np.nan for row in width])),
        "width_coverage": _coverage(error)(row.found.window_std_s or np.nan for row in width),
        "width_rms_over_std": float(np.sqrt(np.mean((error / [row.found.window_std_s or np.nan for row in width]) ** 2)))
        if width
        else None,
        "seconds_median": float(np.median([row.seconds for row in rows])) if rows else None,
        "wrong_cases": [_case(row) for row in claimed if row not in right],
    }
    gains = [row for row in right if row.found.gain is not None]
    if gains:
        numbers["gain_coverage"] = _coverage((row.found.gain or np.nan) - row.planted.gain for row in gains)(
            row.found.gain_std or np.nan for row in gains
        )
        numbers["offset_coverage"] = _coverage((row.found.offset_w or np.nan) - row.planted.offset_w for row in gains)(
            row.found.offset_std_w or np.nan for row in gains
        )
        numbers["gain_error_p90"] = float(np.quantile([abs((row.found.gain or 0.0) - row.planted.gain) for row in gains], 0.9))
    return numbers


def _share(flags: Iterable[Any]) -> float | None:
    values = [bool(flag) for flag in flags]
    return sum(values) / len(values) if values else None


def _coverage(errors: Iterable[float]) -> Callable[[Iterable[float]], list[float | None]]:
    error = np.abs(np.array(list(errors), dtype=np.float64))

    def covered(stds: Iterable[float]) -> list[float | None]:
        std = np.array(list(stds), dtype=np.float64)
        return [_share(error <= count * std) for count in (1.0, 2.0)]

    return covered


def _case(row: Outcome) -> str:
    planted, found = row.planted, row.found
    width = "" if found.window_s is None else f" {found.window_s * 1e3:.2f} ms"
    clock = "" if planted.rigid else ", free clock"
    ratio = planted.load_period_s / planted.period_s
    planted_text = f"{planted.kernel} {planted.width_s * 1e3:.2f} ms, T {planted.period_s * 1e3:.2f} ms"
    return f"{planted_text}, poll {planted.poll_s * 1e3:g} ms, load {ratio:.2f} T{clock} → {found.averaging}{width}"


def real_traces(data: Path) -> dict[str, Any]:
    """What published traces of two cards give."""
    result: dict[str, Any] = {}
    folder = data / "sensors"
    for name, run, column, meter in (
        ("a100_square_wave, meter", "a100_square_wave", "power.draw.instant", True),
        ("a100_square_wave, load stamps", "a100_square_wave", "power.draw.instant", False),
        ("rtx3090_step, instant", "rtx3090_step", "power.draw.instant", True),
        ("rtx3090_step, average", "rtx3090_step", "power.draw.average", True),
    ):
        begun = time.perf_counter()
        files = folder / run
        read = read_run(files / "gpudata.csv", files / "timestamps.csv", files / "PMD_data.bin" if meter else None, column)
        record_ = SensorRecord(
            time_s=read.time_s,
            power_w=read.power_w,
            load=read.load,
            meter_s=read.meter_s,
            meter_w=read.meter_w,
            meter_rate_std=read.meter_rate_std,
        )
        found = identify_sensor(record_, NAME).calibration
        first = found.candidates[0]
        result[name] = {
            "averaging": found.averaging,
            "likeliest": f"{first['kernel']} {first['window_s'] * 1e3:.1f} ms",
            "window_ms": _ms(found.window_s),
            "window_std_ms": _ms(found.window_std_s),
            "update_period_ms": _ms(found.update_period_s),
            "gain": found.gain,
            "gain_std": found.gain_std,
            "offset_w": found.offset_w,
            "residual_w": found.residual_w,
            "transient": found.transient,
            "seconds": time.perf_counter() - begun,
        }
    for log, published in PUBLISHED_PERIODS_S.items():
        read = read_run(folder / "logs" / f"{log}.csv")
        found = identify_sensor(SensorRecord(time_s=read.time_s, power_w=read.power_w), NAME).calibration
        result[log] = {"update_period_ms": _ms(found.update_period_s), "published_ms": _ms(published), "span_s": float(read.time_s[-1])}
    return result


def long_log(rows: int) -> dict[str, Any]:
    """Time to read a log of so many polls and to find its update clock, and the memory at its highest."""
    random = np.random.default_rng(0)
    period_s = 0.1012
    poll_s = np.cumsum(0.005 * (1.0 + np.abs(random.normal(0.0, 0.08, rows))))
    tick = period_s * np.arange(int(poll_s[-1] / period_s) + 2)
    tick = tick + 2e-3 * np.sin(2.0 * np.pi * tick / 70.0) + random.normal(0.0, 3e-4, len(tick))
    value = np.round(100.0 + 80.0 * (np.sin(2.0 * np.pi * tick / 0.127) > 0.0) + random.normal(0.0, 0.5, len(tick)), 2)
    table = pa.table({"t_s": np.round(poll_s, 6), "power_w": value[np.maximum(np.searchsorted(tick, poll_s, side="right") - 1, 0)]})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "long.csv"
        csv.write_csv(table, path)
        del table, poll_s
        begun = time.perf_counter()
        read = read_run(path)
        middle = time.perf_counter()
        found = identify_sensor(SensorRecord(time_s=read.time_s, power_w=read.power_w), NAME).calibration
    return {
        "rows": rows,
        "read_s": middle - begun,
        "identify_s": time.perf_counter() - middle,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        "period_error_us": abs((found.update_period_s or np.nan) - period_s) * 1e6,
    }


def _ms(value: float | None) -> float | None:
    return None if value is None else value * 1e3


def _lone(seed: int) -> list[Outcome]:
    return outcomes(seed, lone_step)


def _locked(seed: int) -> list[Outcome]:
    return outcomes(seed, locked)


def _sampled(task: Callable[[int], list[Outcome]], seeds: range, jobs: int, keep: Path | None) -> list[Outcome]:
    """Outcomes of many seeds, those in the folder `keep` taken from there; a bar on stderr."""
    rows: list[Outcome] = []
    with ProcessPoolExecutor(jobs) as pool, click.progressbar(length=len(seeds), file=sys.stderr) as bar:
        for found in pool.map(partial(_kept, task, keep), seeds):
            rows += found
            bar.update(1)
    return rows


def _kept(task: Callable[[int], list[Outcome]], keep: Path | None, seed: int) -> list[Outcome]:
    """The outcomes of a seed: from the folder where they are there, else worked out and left there."""
    if keep is None:
        return task(seed)
    path = keep / f"{task.__name__.strip('_')}-{seed}.pickle"
    if not path.is_file():
        keep.mkdir(parents=True, exist_ok=True)
        write_whole(path, pickle.dumps(task(seed)))
    rows: list[Outcome] = pickle.loads(path.read_bytes())  # noqa: S301  the file is this program's own
    return rows


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=Path("../shared/data"), show_default=True)
@click.option("--sensors", default=300, show_default=True, help="Random simulated sensors.")
@click.option("--first", default=0, show_default=True, help="Seed of the first.")
@click.option("--special", default=30, show_default=True, help="Lone steps, and locked loads, each so many.")
@click.option("--rows", default=10_000_000, show_default=True, help="Rows of a long log; 0 for none.")
@click.option("--jobs", default=1, show_default=True)
@click.option(
    "--keep",
    type=click.Path(path_type=Path),
    help="Folder for each sensor's outcome: a stopped run goes on, parts add up.  Of one code only.",
)
@click.option("--json", "as_json", is_flag=True)
def main(data: Path, sensors: int, first: int, special: int, rows: int, jobs: int, keep: Path | None, as_json: bool) -> None:
    """Print the numbers."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    document: dict[str, Any] = {}
    if (data / "sensors").is_dir():
        document["real traces"] = real_traces(data)
    else:
        click.echo(f"real traces skipped: {data / 'sensors'} is not there", err=True)
    if rows:
        document["simulated, long log"] = long_log(rows)
    document["simulated, random"] = summary(_sampled(outcomes, range(first, first + sensors), jobs, keep))
    for name, task in (("simulated, lone step", _lone), ("simulated, load locked at two periods", _locked)):
        sample = _sampled(task, range(first, first + special), jobs, keep)
        kinds = {row.found.averaging for row in sample}
        document[name] = {
            source: {kind: sum(row.found.averaging == kind for row in sample if row.source == source) for kind in kinds}
            for source in ("meter", "load")
        } | {"claims": [_case(row) for row in sample if row.found.averaging != "undetermined"]}
    if as_json:
        click.echo(json.dumps(document, indent=2))
        return
    for title, numbers in document.items():
        click.echo(title)
        _print(numbers, 1)


def _print(numbers: Any, depth: int) -> None:
    for key, value in numbers.items():
        if isinstance(value, dict):
            click.echo(f"{'  ' * depth}{key}")
            _print(value, depth + 1)
        elif isinstance(value, list) and value and isinstance(value[0], str):
            click.echo(f"{'  ' * depth}{key}")
            for line in value:
                click.echo(f"{'  ' * (depth + 1)}{line}")
        else:
            click.echo(f"{'  ' * depth}{key:<24}{_text(value)}")


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return " / ".join(_text(item) for item in value)
    return str(value)


if __name__ == "__main__":
    main()

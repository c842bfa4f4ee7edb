"""Quality of sensor identification: random simulated sensors, single steps, locked loads, and a long log.  All figures are simulated.

    python benchmarks/sensor_identification.py [--sensors 300] [--first 0] [--special 30] [--rows 10000000] [--jobs 1] [--json]

Each sensor is identified twice, from its readings with an external meter and with only load stamps.  The simulation that makes them
(benchmarks/random_sensors.py) shares no equation with the identification; figures are those of `foreign_sensors`.  A single step and a load
of twice the update period give little information: their results are listed.  `figures.py --only recordings` reads real recordings.
"""

import os
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
from foreign_sensors import SOURCES, Figures, Row, figures, judged, said
from pyarrow import csv
from random_sensors import PlantedSensor, Recording, draw_sensor, record

from collector.recordings.run import read_run, stamps_of_levels
from collector.sensing.calibration import SensorCalibration
from collector.sensing.identify import SensorRecord, identify_sensor

NAME = SensorCalibration(gpu_uuid="", driver="", sensor="simulated", field="instant")
KINDS: dict[str, Callable[[PlantedSensor], PlantedSensor]] = {
    "random": lambda planted: planted,
    "lone step": lambda planted: replace(planted, load_period_s=float("inf")),
    "load locked at two periods": lambda planted: replace(planted, load_period_s=2.0 * planted.period_s, load_spread=0.0),
}


def sensor_record(recording: Recording, meter: bool) -> SensorRecord:
    """The inputs of an identification."""
    return SensorRecord(
        time_s=recording.time_s,
        power_w=recording.reading_w,
        load=stamps_of_levels(recording.edge_s, recording.level),
        meter_s=recording.meter_s if meter else None,
        meter_w=recording.meter_w if meter else None,
    )


def rows_of(kind: str, seed: int) -> list[Row]:
    """Both identifications of one random sensor."""
    random = np.random.default_rng(seed)
    recording = record(KINDS[kind](draw_sensor(random)), random)
    planted, rows = recording.planted, []
    truth = {"kernel": planted.kernel, "width_ms": 1e3 * planted.width_s, "recorded_period_ms": 1e3 * recording.mean_period_s}
    truth |= {"delay_ms": 1e3 * (planted.delay_s - recording.early_s), "gain": planted.gain, "offset_w": planted.offset_w}
    for meter in SOURCES:
        begun = time.process_time()
        found = identify_sensor(sensor_record(recording, meter), NAME).calibration.document()
        rows.append(judged(seed, meter, found, truth, time.process_time() - begun))
    return rows


def long_log(rows: int) -> dict[str, object]:
    """Time to read a log of `rows` polls and to find its update clock, and the peak memory."""
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
        read = read_run(path).record
        middle = time.perf_counter()
        found = identify_sensor(read, NAME).calibration
    return {
        "rows": rows,
        "read_s": middle - begun,
        "identify_s": time.perf_counter() - middle,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        "period_error_us": abs((found.update_period_s or np.nan) - period_s) * 1e6,
    }


@click.command()
@click.option("--sensors", default=300, show_default=True, help="Random simulated sensors.")
@click.option("--first", default=0, show_default=True, help="Seed of the first.")
@click.option("--special", default=30, show_default=True, help="Lone steps, and locked loads, each so many.")
@click.option("--rows", default=10_000_000, show_default=True, help="Rows of a long log; 0 for none.")
@click.option("--jobs", default=1, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(sensors: int, first: int, special: int, rows: int, jobs: int, as_json: bool) -> None:
    """Print the figures."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found: Figures = {"long log": long_log(rows)} if rows else {}
    with ProcessPoolExecutor(jobs) as pool:
        for kind in KINDS:
            seeds = range(first, first + (sensors if kind == "random" else special))
            sample = [row for part in pool.map(partial(rows_of, kind), seeds) for row in part]
            if kind == "random":
                found |= {f"random, {source}": own for source, own in figures(sample).items()}
                continue
            for meter, source in SOURCES.items():
                found[f"{kind}, {source}"] = dict(Counter(f"{row['found']} for {row['kernel']}" for row in sample if row["meter"] is meter))
    said(found, as_json)


if __name__ == "__main__":
    main()

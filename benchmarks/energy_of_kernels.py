"""Energy of a repeated kernel on every class of sensor, against the simulated board's own energy.  All figures are simulated.

    python benchmarks/energy_of_kernels.py [--runs 6] [--first 0] [--asked 0.3] [--lengths 10,50,100,325,1000]

Errors are in percent of the true energy, after correction of gain and offset in every column with the planted figures:
errors of time remain.  `naive` integrates the readings over one execution after a rest, `published` is the published
baseline on 5 s of repeats, with 8 pauses of 25 ms if the sensor samples only part of the time, `ours` plans its own repeats.
`z` is the rms of error over stated standard error, `95 %` the share of runs within two of them; `s` the mean time of ours on
the board, and the number of executions that it kept.
"""

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import click
import numpy as np
import pandas as pd
from showing import show

from collector.devices.protocols import Bench, EnergyReading, PowerReadings, PowerSensor
from collector.errors import SensorError
from collector.sampling import Sampler, host_seconds
from collector.sensing.baselines import PRACTICE_PAUSE_S, PRACTICE_S, PRACTICE_SHIFTS, naive_energy, practice_for, published_energy
from collector.sensing.board_power import LoadStamps
from collector.sensing.calibration import SensorCalibration
from collector.sensing.repeated_measurement import Execution, RepeatedMeasurement, measure_repeated
from collector.simulated.board import SimulatedBoard
from collector.simulated.profile import load_board
from estimator.vocabulary.workload import make_operator

LENGTHS_MS = (10.0, 50.0, 100.0, 325.0, 1000.0)
WINDOW_STD_S = 3e-4
DELAY_STD_S = 3e-4
"""Errors of the method's calibrations, typical of a characterisation of some tens of seconds."""
PUBLISHED_LEAST = 32
"""Least repetitions of a short execution: the published practice is 32 repetitions or 5 s, here the longer of the two."""
SM_CLOCK_MHZ = 900.0
REST_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorClass:
    """A simulated board and the changes of its sensor; `average` reads its trailing mean instead of the instant field."""

    name: str
    board: str
    averaging: str
    window_s: float
    period_s: float
    average: bool = False
    clock: str = "rigid"
    jitter_s: float = 4e-4


CLASSES = (
    SensorClass(name="boxcar 100/100", board="rtx-3090", averaging="boxcar", window_s=0.09997, period_s=0.09997),
    SensorClass(name="boxcar 25/100", board="h200-sxm", averaging="boxcar", window_s=0.025, period_s=0.1),
    SensorClass(
        name="boxcar 10/20", board="v100-pcie-32gb", averaging="boxcar", window_s=0.01, period_s=0.02004, clock="renewal", jitter_s=1e-3
    ),
    SensorClass(name="low-pass 12.5/101", board="a100-pcie-40gb", averaging="low-pass", window_s=0.025, period_s=0.1012),
    SensorClass(name="low-pass 53/15", board="a100-pcie-40gb", averaging="low-pass", window_s=0.106, period_s=0.01541),
    SensorClass(name="trailing 1 s", board="rtx-3090", averaging="trailing-mean", window_s=1.105, period_s=0.09997, average=True),
)


class OneField:
    """A sensor with only one field of another; implements PowerSensor."""

    def __init__(self, sensor: PowerSensor, field: str) -> None:
        self._sensor, self._field = sensor, field

    def name(self) -> str:
        """Name of the source."""
        return self._sensor.name()

    def fields(self) -> tuple[str, ...]:
        """The one field."""
        return (self._field,)

    def read(self) -> tuple[PowerReadings, ...]:
        """Readings of the field."""
        return tuple(part for part in self._sensor.read() if part.field == self._field)

    def read_energy(self) -> EnergyReading | None:
        """The sensor's own counter."""
        return self._sensor.read_energy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """A simulated board of one class with its calibration, and an execution of one length on it."""

    board: SimulatedBoard
    bench: Bench
    sampler: Sampler
    calibration: SensorCalibration
    execute: Execution


@contextmanager
def stand(kind: SensorClass, length_s: float, seed: int) -> Iterator[Stand]:
    """A board whose executions are a product, a sum and a product, so that power varies within an execution."""
    profile = load_board(kind.board)
    sensor = replace(
        profile.sensor,
        kind="low-pass" if kind.averaging == "low-pass" else "boxcar",
        window_s=kind.window_s if not kind.average else profile.sensor.window_s,
        update_period_s=kind.period_s,
        clock=kind.clock,
        jitter_s=kind.jitter_s,
        poll_period_s=min(profile.sensor.poll_period_s, 0.3 * kind.period_s),
    )
    board = SimulatedBoard(replace(profile, sensor=sensor), seed)
    board.gpu.lock_clock_mhz(min(board.gpu.supported_clocks_mhz(), key=lambda clock: abs(clock - SM_CLOCK_MHZ)))
    source = OneField(board.sensor, "average") if kind.average else OneField(board.sensor, "instant")
    bench = Bench(
        word=f"sim:{kind.board}",
        gpu=board.gpu,
        sensors=(source,),
        runner=board.runner,
        clock=board.clock,
        gpu_spec=board.world.gpu,
        simulated=True,
    )
    yield Stand(
        board=board,
        bench=bench,
        sampler=Sampler(board.gpu, (source,)),
        calibration=_calibration(kind, board, seed),
        execute=_execution(bench, length_s),
    )


def _calibration(kind: SensorClass, board: SimulatedBoard, seed: int) -> SensorCalibration:
    """The planted sensor in the form of a characterisation: with stated errors; gain and offset are exact."""
    random = np.random.default_rng(seed + 1000)
    sensor = board.world.profile.sensor
    identity = board.gpu.identity()
    exact = kind.averaging == "trailing-mean"
    window = kind.window_s + (0.0 if exact else random.normal(0.0, WINDOW_STD_S))
    return SensorCalibration(
        gpu_uuid=identity.uuid,
        driver=identity.driver,
        sensor="nvml",
        field="average" if kind.average else "instant",
        averaging=kind.averaging,
        n_updates=200,
        update_period_s=kind.period_s,
        update_period_std_s=1e-5,
        update_jitter_s=kind.jitter_s,
        window_s=window,
        window_std_s=0.02 if exact else WINDOW_STD_S,
        tau_s=0.5 * window if kind.averaging == "low-pass" else None,
        delay_s=sensor.delay_s + random.normal(0.0, DELAY_STD_S),
        delay_std_s=DELAY_STD_S,
        settle_s=0.3,
        gain=sensor.gain,
        gain_std=0.0,
        offset_w=sensor.offset_w,
        offset_std_w=0.0,
        reading_noise_w=sensor.noise_w,
        resolution_w=sensor.quantum_w,
    )


def _execution(bench: Bench, length_s: float) -> Execution:
    """A product, a sum, and a product again, together about `length_s` long."""
    product = bench.runner.prepare(make_operator("gemm", "linear", "fp16", batch=1, m=1024, n=1024, k=1024))
    small = bench.runner.prepare(make_operator("elementwise", "add", "fp32", elements=2**20, reads=2**21))
    parts = []
    for prepared, share in ((product, 0.35), (small, 0.25), (product, 0.4)):
        launch_s = float(np.mean(bench.runner.run(prepared, 200).segment_s))
        parts.append((prepared, max(1, round(share * length_s / launch_s))))

    def execute() -> tuple[int, int]:
        start = bench.clock.now_ns()
        for prepared, launches in parts:
            bench.runner.run(prepared, launches)
        return start, bench.clock.now_ns()

    return execute


def true_energy_j(board: SimulatedBoard, load: LoadStamps, discard_s: float) -> float:
    """Mean energy of the executions that start after the discarded rise [J]."""
    kept = load.start_s >= load.start_s[0] + discard_s
    energy = board.world.trace.energy_j(np.concatenate([load.start_s[kept], load.end_s[kept]]))
    count = int(np.count_nonzero(kept))
    return float((energy[count:] - energy[:count]).mean())


def beyond_gain(energy_j: float, duration_s: float, calibration: SensorCalibration) -> float:
    """Energy in the sensor's domain, corrected by the planted gain and offset [J]."""
    return (energy_j - (calibration.offset_w or 0.0) * duration_s) / (calibration.gain or 1.0)


Errors = dict[str, float]
"""Relative errors of one run by method, nan without a result; `stated` errors of ours, time [s] and executions."""


def one_run(kind: SensorClass, length_s: float, seed: int, asked: float) -> Errors:
    """All methods once on one board."""
    with stand(kind, length_s, seed) as here:
        here.bench.clock.wait(REST_S)
        errors = {"naive": _naive(here)}
        here.bench.clock.wait(REST_S)
        errors["published"] = _published(here, kind)
        here.bench.clock.wait(REST_S)
        here.sampler.drain()
        try:
            found = measure_repeated(here.bench, here.sampler, here.execute, here.calibration, asked_std=asked)
        except SensorError as error:
            print(f"{kind.name}, {length_s * 1e3:g} ms, seed {seed}: {error}", file=sys.stderr)
            return errors
        true = _true_of(here, found)
        return errors | {
            "ours": found.energy_j / true - 1.0,
            "ours stated": found.energy_std_j / true,
            "s": found.elapsed_s,
            "kept": found.executions,
        }


def _true_of(here: Stand, found: RepeatedMeasurement) -> float:
    """True energy over all batches, with the weights of the measurement."""
    weight = np.array([1.0 / run.energy.timing_std_j**2 for run in found.runs])
    true = np.array([true_energy_j(here.board, run.load, run.plan.discard_s) for run in found.runs])
    return float(weight @ true / weight.sum())


def _naive(here: Stand) -> float:
    """One execution after a rest, its readings integrated."""
    here.sampler.drain()
    here.bench.clock.wait(0.3)
    start, end = (stamp * 1e-9 for stamp in here.execute())
    here.bench.clock.wait(0.05)
    readings = here.sampler.drain().board
    energy = float(naive_energy(host_seconds(readings.host_ns), readings.power_w, np.array([start]), np.array([end]))[0])
    true = true_energy_j(here.board, LoadStamps(start_s=np.array([start]), end_s=np.array([end])), 0.0)
    return beyond_gain(energy, end - start, here.calibration) / true - 1.0


def _published(here: Stand, kind: SensorClass) -> float:
    """The published baseline: its repeats, its pauses, its evaluation."""
    practice = practice_for(here.calibration)
    here.sampler.drain()
    here.bench.clock.wait(0.3)
    first = here.execute()
    length = (first[1] - first[0]) * 1e-9
    count = min(max(PUBLISHED_LEAST, math.ceil((PRACTICE_S + practice.discard_s) / length)), 2000)
    if length > 0.5:
        count = math.ceil((PRACTICE_S + practice.discard_s) / length)
    stamps = [first]
    for index in range(1, count):
        if practice.partial and index % max(count // PRACTICE_SHIFTS, 1) == 0:
            here.bench.clock.wait(PRACTICE_PAUSE_S)
        stamps.append(here.execute())
    here.bench.clock.wait(0.3)
    readings = here.sampler.drain().board
    table = np.array(stamps, dtype=np.float64) * 1e-9
    load = LoadStamps(start_s=table[:, 0], end_s=table[:, 1])
    energy = published_energy(host_seconds(readings.host_ns), readings.power_w, load, practice)
    true = true_energy_j(here.board, load, practice.discard_s)
    return beyond_gain(energy, float(np.mean(load.end_s - load.start_s)), here.calibration) / true - 1.0


def figures(rows: list[Errors]) -> dict[str, float]:
    """Mean and scatter of each method's errors [%], and the calibration of stated errors."""
    runs = pd.DataFrame(rows)
    found = {}
    for name in ("naive", "published", "ours"):
        found |= {f"{name} %": 100.0 * runs[name].mean(), f"{name} sd": 100.0 * runs[name].std(ddof=0)} if name in runs else {}
    if "ours" in runs:
        z = (runs["ours"] / runs["ours stated"]).dropna()
        found |= {"ours z": float((z**2).mean() ** 0.5), "ours 95 %": float((z.abs() <= 2.0).mean())}
    return found | {name: float(runs[name].mean()) for name in ("s", "kept") if name in runs}


@click.command()
@click.option("--runs", default=6, show_default=True, help="Boards of every class and length.")
@click.option("--first", default=0, show_default=True, help="Seed of the first board.")
@click.option("--asked", default=0.3, show_default=True, help="Standard error that is asked for [%].")
@click.option("--lengths", default=",".join(f"{length:g}" for length in LENGTHS_MS), show_default=True, help="Of an execution [ms].")
@click.option("--json", "as_json", is_flag=True)
def main(runs: int, first: int, asked: float, lengths: str, as_json: bool) -> None:
    """Print the table."""
    seeds = range(first, first + runs)
    show(
        (
            {"sensor": kind.name, "ms": length} | figures([one_run(kind, length * 1e-3, seed, asked / 100.0) for seed in seeds])
            for length in map(float, lengths.split(","))
            for kind in CLASSES
        ),
        as_json,
    )


if __name__ == "__main__":
    main()

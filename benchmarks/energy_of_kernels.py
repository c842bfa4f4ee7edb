"""Energy of a repeated kernel on every class of sensor, against the simulated board's own energy.  All figures are simulated.

    python benchmarks/energy_of_kernels.py [--runs 6] [--first 0] [--asked 0.3] [--lengths 10,50,100,325,1000]

Errors are in percent of the true energy, gain and offset taken out of every column with the planted figures: what is
left is time.  `naive` integrates the readings over one execution after a rest, `published` is the good
practice on 5 s of repeats with 8 pauses of 25 ms where the sensor sees part of the time only, `ours` plans its own repeats,
`counter` is the energy counter over the same run as ours.  `z` is the rms of error over stated standard error, `95 %` the
share of runs within two of them; `s` the time that ours took on the board, mean, and how many executions it kept.
"""

import argparse
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
from msgspec.structs import replace

from collector.bench import Bench
from collector.devices.protocols import EnergyReading, PowerReadings, PowerSensor
from collector.errors import SensorError
from collector.sampling import Sampler, host_seconds
from collector.sensing.baselines import naive_energy, practice_for, published_energy
from collector.sensing.board_power import LoadStamps
from collector.sensing.calibration import SensorCalibration
from collector.sensing.known_sensor import inversion
from collector.sensing.repeated_measurement import Execution, RepeatedMeasurement, measure_repeated
from collector.simulated.board import SimulatedBoard
from collector.simulated.profile import load_board
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.specifications import load_gpu
from estimator.vocabulary.workload import make_operator

LENGTHS_MS = (10.0, 50.0, 100.0, 325.0, 1000.0)
WINDOW_STD_S = 3e-4
DELAY_STD_S = 3e-4
"""Errors of the calibrations that are handed to the method: what a characterisation of some tens of seconds reaches."""
PUBLISHED_RUN_S = 5.0
PUBLISHED_LEAST = 32
PUBLISHED_SHIFTS = 8
PUBLISHED_PAUSE_S = 0.025
"""Yang, Adamek and Armour: 32 repetitions or 5 s, 8 pauses of 25 ms where information is lost."""
SM_CLOCK_MHZ = 900.0
REST_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorClass:
    """A simulated board and what is changed of its sensor; `average` reads its trailing mean instead of the instant field."""

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
    """One field of a sensor, as if it were the only one; implements PowerSensor."""

    def __init__(self, sensor: PowerSensor, field: str) -> None:
        self._sensor, self._field = sensor, field

    def name(self) -> str:
        """What the source is."""
        return self._sensor.name()

    def fields(self) -> tuple[str, ...]:
        """The one field."""
        return (self._field,)

    def read(self) -> tuple[PowerReadings, ...]:
        """Its readings."""
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
    """A board whose executions are a product, a sum and a product again: power that differs within an execution."""
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
    board = SimulatedBoard(replace(profile, sensor=sensor), load_gpu(profile.gpu), seed)
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
    """The planted sensor as a characterisation would give it: with errors, and stating them; gain and offset exact."""
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
    """Energy in the sensor's domain with the planted gain and offset taken out [J]."""
    return (energy_j - (calibration.offset_w or 0.0) * duration_s) / (calibration.gain or 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Relative errors of one run, nan where a method gave nothing; and ours' stated error, time and executions."""

    ours: float
    stated: float
    counter: float
    counter_stated: float
    naive: float
    published: float
    elapsed_s: float
    executions: int


def one_run(kind: SensorClass, length_s: float, seed: int, asked: float) -> Errors:
    """All methods once on one board."""
    with stand(kind, length_s, seed) as here:
        here.bench.clock.wait(REST_S)
        naive = _naive(here)
        here.bench.clock.wait(REST_S)
        published = _published(here, kind)
        here.bench.clock.wait(REST_S)
        here.sampler.drain()
        try:
            found = measure_repeated(here.bench, here.sampler, here.execute, here.calibration, asked_std=asked)
        except SensorError as error:
            print(f"{kind.name}, {length_s * 1e3:g} ms, seed {seed}: {error}", file=sys.stderr)
            nan = math.nan
            return Errors(
                ours=nan, stated=nan, counter=nan, counter_stated=nan, naive=naive, published=published, elapsed_s=nan, executions=0
            )
        true = _true_of(here, found)
        last = found.runs[-1]
        true_last = true_energy_j(here.board, last.load, last.plan.discard_s)
        counted = inversion(here.calibration).energy(last.counter.energy_j, last.counter.energy_std_j, float(np.mean(last.load.length_s)))
        return Errors(
            ours=found.energy_j / true - 1.0,
            stated=found.energy_std_j / true,
            counter=counted[0] / true_last - 1.0,
            counter_stated=counted[1] / true_last,
            naive=naive,
            published=published,
            elapsed_s=found.elapsed_s,
            executions=found.executions,
        )


def _true_of(here: Stand, found: RepeatedMeasurement) -> float:
    """True energy over all batches, weighed as they were."""
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
    """The good practice: its repeats, its pauses, its evaluation."""
    practice = practice_for(here.calibration)
    here.sampler.drain()
    here.bench.clock.wait(0.3)
    first = here.execute()
    length = (first[1] - first[0]) * 1e-9
    count = min(max(PUBLISHED_LEAST, math.ceil((PUBLISHED_RUN_S + practice.discard_s) / length)), 2000)
    if length > 0.5:
        count = math.ceil((PUBLISHED_RUN_S + practice.discard_s) / length)
    partial = practice.shift_s == 0.0
    stamps = [first]
    for index in range(1, count):
        if partial and index % max(count // PUBLISHED_SHIFTS, 1) == 0:
            here.bench.clock.wait(PUBLISHED_PAUSE_S)
        stamps.append(here.execute())
    here.bench.clock.wait(0.3)
    readings = here.sampler.drain().board
    table = np.array(stamps, dtype=np.float64) * 1e-9
    load = LoadStamps(start_s=table[:, 0], end_s=table[:, 1])
    energy = published_energy(host_seconds(readings.host_ns), readings.power_w, load, practice)
    true = true_energy_j(here.board, load, practice.discard_s)
    return beyond_gain(energy, float(np.mean(load.end_s - load.start_s)), here.calibration) / true - 1.0


def table_line(kind: SensorClass, length_ms: float, rows: list[Errors]) -> str:
    """One line of the table."""

    def column(values: Array) -> str:
        known = values[np.isfinite(values)] * 100.0
        return f"{known.mean():+7.2f} ({known.std():5.2f})" if len(known) else "       –       "

    ours, stated = np.array([row.ours for row in rows]), np.array([row.stated for row in rows])
    counter, counter_stated = np.array([row.counter for row in rows]), np.array([row.counter_stated for row in rows])
    z, zc = ours / stated, counter / counter_stated
    naive, published = np.array([row.naive for row in rows]), np.array([row.published for row in rows])
    z_counter = math.sqrt(np.nanmean(zc**2)) if np.isfinite(zc).any() else math.nan
    return (
        f"{length_ms:6.0f}  {kind.name:18s}{column(naive)} {column(published)} {column(ours)}  ± {100.0 * np.nanmean(stated):4.2f}  "
        f"z {math.sqrt(np.nanmean(z**2)):4.2f}  {100.0 * np.nanmean(np.abs(z) <= 2.0):4.0f} %  {column(counter)} z {z_counter:4.2f}  "
        f"{np.nanmean([row.elapsed_s for row in rows]):5.1f} s  {np.mean([row.executions for row in rows]):5.0f}"
    )


SHARES: Final = ((0.68, 1.0), (0.90, 1.645), (0.95, 2.0))
"""What should lie within so many standard errors."""


def coverage_line(name: str, rows: list[Errors]) -> str:
    """How honest the stated errors of some runs are."""
    z = np.array([row.ours / row.stated for row in rows])
    z = z[np.isfinite(z)]
    within = ", ".join(f"{np.mean(np.abs(z) <= reach):.0%} [{share:.0%}]" for share, reach in SHARES)
    rms, largest = math.sqrt(np.mean(z**2)), np.abs(z).max()
    return f"{name:18s} z mean {z.mean():+.2f}, rms {rms:.2f}, largest {largest:.1f}; {within} of {len(z)} runs"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=6, help="boards of every class and length")
    parser.add_argument("--first", type=int, default=0, help="seed of the first board")
    parser.add_argument("--asked", type=float, default=0.3, help="standard error that is asked for [%%]")
    parser.add_argument("--lengths", default=",".join(f"{length:g}" for length in LENGTHS_MS), help="lengths of an execution [ms]")
    arguments = parser.parse_args()
    print("SIMULATED.  Errors of the energy of an execution in %, mean (sd) over runs, gain and offset taken out")
    head = "naive        published            ours   stated      z   95 %       counter                time  kept"
    print("    ms  sensor" + 20 * " " + head)
    of_class: dict[str, list[Errors]] = {kind.name: [] for kind in CLASSES}
    first = arguments.first
    for length_ms in (float(word) for word in arguments.lengths.split(",")):
        for kind in CLASSES:
            rows = [one_run(kind, length_ms * 1e-3, seed, arguments.asked / 100.0) for seed in range(first, first + arguments.runs)]
            of_class[kind.name] += rows
            print(table_line(kind, length_ms, rows), flush=True)
    for name, rows in {**of_class, "all": [row for one in of_class.values() for row in one]}.items():
        print(coverage_line(name, rows))


if __name__ == "__main__":
    main()

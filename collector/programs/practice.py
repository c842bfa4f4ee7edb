"""The published good practice beside this package's own evaluation and the naive reading: one execution's energy by each.

Yang, Adamek and Armour, "Part-time Power Measurements", section V: repeat the program for 5 s (they also take 32 repetitions), in
separate trials with random delays; where averages miss some of the time, 8 pauses of 25 ms shift the program's phase; discard
the rise, shift the readings.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.bench import Instruments
from collector.devices.possible_power import possible_power
from collector.programs.execution import Program, stamped
from collector.sampling import SECONDS_PER_NS, Sampler, host_seconds
from collector.sensing.baselines import (
    PRACTICE_PAUSE_S,
    PRACTICE_S,
    PRACTICE_SHIFTS,
    naive_energy,
    practice_for,
    published_energy,
)
from collector.sensing.board_power import LoadStamps
from collector.sensing.calibration import SensorCalibration
from collector.sensing.repeated import repeated_energy
from collector.sensing.repeated_measurement import Execution, plan_repeats
from collector.sensing.updates import board_updates

LONGEST_DELAY_S: Final = 1.0
"""Longest random delay before a trial (the paper's)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Energy of an execution [J] in one trial, by method: naive from its first execution, the others from those after the rise.

    `timing_std_j` is the part of `corrected_std_j` without gain and offset; `true_j` a simulated board's own energy, nan of a real one.
    """

    executions: int
    naive_j: float
    practice_j: float
    corrected_j: float
    corrected_std_j: float
    timing_std_j: float
    true_j: float
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """Mean over the trials [J], their standard deviation, the stated standard error of the mean, and the true error as a share.

    nan is unknown: the naive reading and the published practice state no error.
    """

    method: str
    energy_j: float
    spread_j: float
    energy_std_j: float
    true_error: float


def measure_practice(
    instruments: Instruments, sampler: Sampler, program: Program, calibration: SensorCalibration, *, trials: int, seed: int
) -> tuple[Trial, ...]:
    """The trials of a program.

    Raises ProgramError for a program that cannot be started or fails, SensorError for too few readings, DeviceError if the board fails.
    """
    execute, random = stamped(program, instruments), np.random.default_rng(seed)
    return tuple(_trial(instruments, sampler, execute, calibration, float(random.uniform(0.0, LONGEST_DELAY_S))) for _ in range(trials))


def compared(trials: Sequence[Trial]) -> tuple[Method, ...]:
    """The methods over all trials."""
    true_j = float(np.mean([one.true_j for one in trials]))
    timing_j = float(np.sqrt(np.mean([one.timing_std_j**2 for one in trials])))
    common_j = math.sqrt(max(float(np.mean([one.corrected_std_j**2 for one in trials])) - timing_j**2, 0.0))
    found = []
    for name in ("naive", "practice", "corrected"):
        values = np.array([getattr(one, f"{name}_j") for one in trials])
        mean_j, spread_j = float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else math.nan
        scatter_j = np.fmax(timing_j, spread_j) / math.sqrt(len(values))
        std_j = math.hypot(common_j, scatter_j) if name == "corrected" else math.nan
        found.append(Method(method=name, energy_j=mean_j, spread_j=spread_j, energy_std_j=std_j, true_error=mean_j / true_j - 1.0))
    return tuple(found)


def _trial(instruments: Instruments, sampler: Sampler, execute: Execution, calibration: SensorCalibration, delay_s: float) -> Trial:
    """Rest for a random time, repeat, and evaluate."""
    practice, padding_s = practice_for(calibration), plan_repeats(1.0, calibration).padding_s
    sampler.drain()
    instruments.clock.wait(padding_s + delay_s)
    stamps = [execute()]
    repeats = math.ceil(PRACTICE_S / max((stamps[0][1] - stamps[0][0]) * SECONDS_PER_NS, SECONDS_PER_NS))
    while (stamps[-1][1] - stamps[0][0]) * SECONDS_PER_NS < PRACTICE_S:
        if practice.partial and len(stamps) % max(repeats // PRACTICE_SHIFTS, 1) == 0:
            instruments.clock.wait(PRACTICE_PAUSE_S)
        stamps.append(execute())
    instruments.clock.wait(padding_s)
    readings = sampler.drain().board
    sane = possible_power(readings.power_w)
    polls = host_seconds(readings.host_ns)[sane], readings.power_w[sane]
    start_s, end_s = np.array(stamps, dtype=np.float64).T * SECONDS_PER_NS
    load = LoadStamps(start_s=start_s, end_s=end_s)
    discard_s = min(plan_repeats(1.0, calibration).discard_s, float(start_s[-1] - start_s[0]))
    found = repeated_energy(polls, board_updates(*polls, calibration), load, calibration, discard_s=discard_s)
    settled = np.append(start_s[:-1] >= start_s[0] + practice.discard_s, True)
    planted = instruments.planted_energy_j
    true_j = [planted(*stamp) for stamp, kept in zip(stamps, settled, strict=True) if kept] if planted else [math.nan]
    return Trial(
        executions=len(stamps),
        naive_j=float(naive_energy(*polls, start_s[:1], end_s[:1])[0]),
        practice_j=published_energy(*polls, load, practice),
        corrected_j=found.energy_j,
        corrected_std_j=found.energy_std_j,
        timing_std_j=found.timing_std_j,
        true_j=float(np.mean(true_j)),
        notes=tuple(found.notes.values()),
    )

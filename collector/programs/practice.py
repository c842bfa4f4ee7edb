"""The published good practice beside this package's own evaluation and the naive reading: one execution's energy by each.

Yang, Adamek and Armour, "Part-time Power Measurements", section V: repeat the program for 5 s (they also take 32 repetitions), in
separate trials with random delays; where averages miss some of the time, 8 pauses of 25 ms shift the program's phase; discard
the rise, shift the readings.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from collector.devices.protocols import Instruments
from collector.programs.program import Program, stamped
from collector.sampling import SECONDS_PER_NS, Sampler, host_spans, possible_polls
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
from collector.sensing.repeated import RepeatedEnergy, repeated_energy
from collector.sensing.repeated_measurement import Execution, plan_repeats
from collector.sensing.updates import board_updates
from estimator.vocabulary.values import frozen

LONGEST_DELAY_S: Final = 1.0
"""Longest random delay before a trial (the paper's)."""


@frozen
class Trial:
    """Energy of an execution [J] in one trial, by method: naive from its first execution, the others from those after the rise.

    `true_j` is a simulated board's own energy, nan of a real one.
    """

    executions: int
    naive_j: float
    practice_j: float
    corrected: RepeatedEnergy
    true_j: float


def measure_practice(
    instruments: Instruments, sampler: Sampler, program: Program, calibration: SensorCalibration, *, trials: int, seed: int
) -> tuple[Trial, ...]:
    """The trials of a program.

    Raises ProgramError for a program that cannot be started or fails, SensorError for too few readings, DeviceError if the board fails.
    """
    execute, random = stamped(program, instruments), np.random.default_rng(seed)
    return tuple(_trial(instruments, sampler, execute, calibration, random.uniform(0.0, LONGEST_DELAY_S)) for _ in range(trials))


def compared(trials: Sequence[Trial]) -> list[dict[str, str | float]]:
    """The methods over all trials as rows: mean and standard deviation [J], standard error of the mean, true error as a share.

    nan is unknown: the naive reading and the published practice state no error.
    """
    true_j = float(np.mean([one.true_j for one in trials]))
    corrected = [one.corrected for one in trials]
    timing_j = float(np.sqrt(np.mean([one.timing_std_j**2 for one in corrected])))
    common_j = math.sqrt(max(float(np.mean([one.energy_std_j**2 for one in corrected])) - timing_j**2, 0.0))
    found: list[dict[str, str | float]] = []
    for name, energies_j in (
        ("naive", [one.naive_j for one in trials]),
        ("practice", [one.practice_j for one in trials]),
        ("corrected", [one.energy_j for one in corrected]),
    ):
        mean_j, spread_j = float(np.mean(energies_j)), float(np.std(energies_j, ddof=1)) if len(trials) > 1 else math.nan
        std_j = math.hypot(common_j, np.fmax(timing_j, spread_j) / math.sqrt(len(trials))) if name == "corrected" else math.nan
        found.append({"method": name, "energy_j": mean_j, "spread_j": spread_j, "energy_std_j": std_j, "true_error": mean_j / true_j - 1.0})
    return found


def _trial(instruments: Instruments, sampler: Sampler, execute: Execution, calibration: SensorCalibration, delay_s: float) -> Trial:
    """Rest for a random time, repeat, and evaluate."""
    practice, plan = practice_for(calibration), plan_repeats(1.0, calibration)
    sampler.drain()
    instruments.clock.wait(plan.padding_s + delay_s)
    stamps = [execute()]
    repeats = math.ceil(PRACTICE_S / max((stamps[0][1] - stamps[0][0]) * SECONDS_PER_NS, SECONDS_PER_NS))
    while (stamps[-1][1] - stamps[0][0]) * SECONDS_PER_NS < PRACTICE_S:
        if practice.partial and len(stamps) % max(repeats // PRACTICE_SHIFTS, 1) == 0:
            instruments.clock.wait(PRACTICE_PAUSE_S)
        stamps.append(execute())
    instruments.clock.wait(plan.padding_s)
    polls, (start_s, end_s), planted = possible_polls(sampler.drain().board), host_spans(stamps), instruments.planted_energy_j
    load, discard_s = LoadStamps(start_s=start_s, end_s=end_s), min(plan.discard_s, float(start_s[-1] - start_s[0]))
    return Trial(
        executions=len(stamps),
        naive_j=float(naive_energy(*polls, start_s[:1], end_s[:1])[0]),
        practice_j=published_energy(*polls, load, practice),
        corrected=repeated_energy(polls, board_updates(*polls, calibration), load, calibration, discard_s=discard_s),
        true_j=float(np.mean([planted(*stamps[index]) for index in practice.settled(load)])) if planted else math.nan,
    )

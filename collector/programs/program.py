"""The energy of any program: run it between two rests, and take the sensor out of the readings; or as often as it takes.

Programs are commands that run on the host, and workload files that a simulated board runs.

A sensor with lag and averaging shows a part of the energy only later: readings are taken from the rest before to the rest after, and
deconvolved with steps at the program's start and end.

A sensor that updates every 100 ms cannot resolve a program of some milliseconds.  Many runs, with pauses that keep
the runs from locking to the sensor's updates, can determine its energy.
"""

import math
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, fields
from functools import partial
from typing import Any, Final

import numpy as np

from collector.campaigns.outcome import CLOCK_TOLERANCE, CLOCK_VARIATION, mean_known, states_within, throttle_union
from collector.devices.protocols import Bench, EnergyReading, Instruments, StateReadings, limiting_reasons
from collector.errors import ClockError, ProgramError, SensorError
from collector.sampling import SECONDS_PER_NS, Polls, Sampler, host_seconds, host_spans
from collector.sensing.baselines import sampled_energies_j
from collector.sensing.calibration import SensorCalibration
from collector.sensing.correct import energies_of
from collector.sensing.figures import figure
from collector.sensing.known_sensor import inversion
from collector.sensing.repeated_measurement import GOLDEN, Execution, measure_repeated
from collector.sensing.steady import settle_time_s, steady_power, update_period_s
from estimator.formats import read_workload
from estimator.vocabulary.frozen import EMPTY
from estimator.vocabulary.values import frozen


@frozen
class KernelRecord:
    """A kernel that ran from one host time to another [ns], `launches` times back to back."""

    name: str
    start_ns: int
    end_ns: int
    launches: int = 1


@frozen
class Program:
    """A command, the receiver of its output, and variables that it gets beside ours.

    `kernels` receives the kernels of a simulated board's program, which is a workload file.
    """

    command: tuple[str, ...]
    stdout: Any = None
    environment: Mapping[str, str] = EMPTY
    kernels: list[KernelRecord] = field(default_factory=list)

    def ready(self, instruments: Instruments) -> Callable[[], int]:
        """The program as a function that runs it and returns its exit status.

        Raises ProgramError, WorkloadError and RunnerError for a workload file that cannot be run.
        """
        if instruments.simulated and self.command[0].endswith(".json"):
            return _workload_program(self.command, instruments, self.kernels)
        return partial(_executed, self.command, instruments, self.stdout, self.environment)


def _executed(command: Sequence[str], instruments: Instruments, stdout: Any, environment: Mapping[str, str]) -> int:
    """Exit status of a command, by shells' rule 128 + signal if one ended it.  It sees only the measured board.  Raises ProgramError."""
    chosen = {} if instruments.simulated else {"CUDA_VISIBLE_DEVICES": instruments.gpu.identity().uuid}
    begun_s, begun = time.monotonic(), list[subprocess.Popen[bytes]]()
    with ThreadPoolExecutor(1) as starter:  # no signal's handler runs in its thread: an interruption loses no program that was started
        try:
            environ = {**os.environ, **chosen, **environment}
            starter.submit(lambda: begun.append(subprocess.Popen(list(command), stdout=stdout, env=environ))).result()
            status = begun[0].wait()
        except FileNotFoundError as error:
            raise ProgramError(f"{command[0]}: command not found", 127) from error
        except (OSError, ValueError) as error:
            raise ProgramError(f"{command[0]}: cannot be run ({getattr(error, 'strerror', None) or error})", 126) from error
        except BaseException:  # an interruption stops the command too, first with a request, then by force
            starter.shutdown()
            for process in begun:
                process.terminate()
                try:
                    process.wait(5.0)  # longest wait for a program that was requested to stop [s]
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            raise
    if instruments.simulated:
        instruments.clock.wait(time.monotonic() - begun_s)  # a simulated board's time does not advance while a program runs on the host
    return status if status >= 0 else 128 - status


def stamped(program: Program, instruments: Instruments) -> Execution:
    """The program as an execution to repeat, with its stamps.  It raises ProgramError if it cannot be started or fails."""
    run = program.ready(instruments)

    def execute() -> tuple[int, int]:
        start_ns = instruments.clock.now_ns()
        if status := run():
            raise ProgramError(f"{program.command[0]}: ended with status {status}; a command that fails is not repeated", status)
        return start_ns, instruments.clock.now_ns()

    return execute


def _workload_program(command: Sequence[str], bench: Instruments, records: list[KernelRecord]) -> Callable[[], int]:
    """The program that a command names, ready to run; its kernels are appended to `records`.

    Raises ProgramError for other arguments, WorkloadError for a file that cannot be read, RunnerError for an operator that the simulated
    library lacks.
    """
    if not isinstance(bench, Bench) or len(command) > 2 or not all(word.isdecimal() and word.strip("0") for word in command[1:]):
        raise ProgramError(f"{' '.join(command)}: no program of a simulated board; write WORKLOAD.json [TIMES], TIMES from 1 on", 1)
    workload = read_workload(command[0])
    counts = [max(1, round(count)) for count in workload.counts]
    kernels = [(bench.runner.prepare(operator), count) for operator, count in zip(workload.operators, counts, strict=True)]
    times = int(command[1]) if command[1:] else 1

    def execute() -> int:
        for _ in range(times):
            for kernel, count in kernels:
                found = bench.runner.run(kernel, count)
                start_ns = max(found.start_ns, found.end_ns - round(found.segment_s.mean() * count * 1e9))  # the GPU's, not the host's
                records.append(KernelRecord(name=kernel.kernel_name, start_ns=start_ns, end_ns=found.end_ns, launches=count))
        return 0

    return execute


LEAST_REST_S: Final = 1.0
"""Least rest before and after a program: power at rest is measured there."""
COUNTER_Z: Final = 3.0
"""Number of standard errors: least energy that the counter determines, and its largest difference from the readings."""


@frozen
class ProgramRun:
    """One run of a program: exit status, time [s], energy [J] and mean power [W] of the board while it ran.

    `energy_std_j` is the standard error, `scatter_std_j` its part that differs from run to run.
    `rest_w` is the board's power before and after, `above_rest_j` the energy beyond it, `naive_energy_j` the energy of the uncorrected
    readings, `counter_energy_j` that of the board's counter (nan without one) and `counter_energy_std_j` its standard error.
    `start_s` is its host time [s] and `polls` are times [s] and readings [W] from rest to rest (nan and empty of several runs).
    `states` are the board's states meanwhile; `doubts` say why the SM clock was not the requested one.  `executions` counts the
    runs; the other fields are their means.
    """

    exit_status: int = 0
    latency_s: float
    energy_j: float
    energy_std_j: float
    scatter_std_j: float
    rest_w: float
    naive_energy_j: float
    counter_energy_j: float = math.nan
    counter_energy_std_j: float = math.nan
    states: StateReadings
    notes: tuple[str, ...]
    doubts: tuple[str, ...] = ()
    executions: int = 1
    start_s: float = math.nan
    polls: Polls = (np.empty(0), np.empty(0))

    @property
    def sm_clock_mhz(self) -> float:
        """Mean SM clock [MHz]."""
        return mean_known(self.states.sm_clock_mhz)

    @property
    def temperature_c(self) -> float:
        """Mean temperature [°C]."""
        return mean_known(self.states.temperature_c)

    @property
    def throttled(self) -> tuple[str, ...]:
        """Reasons for a slower board."""
        return limiting_reasons(throttle_union(self.states))

    @property
    def power_w(self) -> float:
        """Mean power while the program ran [W]."""
        return self.energy_j / self.latency_s

    @property
    def above_rest_j(self) -> float:
        """Energy beyond the board's energy at rest [J]."""
        return self.energy_j - self.rest_w * self.latency_s


def measure_program(
    instruments: Instruments,
    sampler: Sampler,
    program: Program,
    calibration: SensorCalibration,
    *,
    index: int = 0,
    asked_mhz: float | None,
) -> ProgramRun:
    """Run a program once and return the board's time, energy and power.

    `index` counts the runs, `asked_mhz` is the held SM clock (None: none is held).

    Raises ProgramError for a command that cannot be started, SensorError if too few readings came, DeviceError if
    the board fails.  An interruption stops the command too.
    """
    rest_s = settle_time_s(calibration, LEAST_REST_S)
    period_s = calibration.update_period_s or 0.0
    execute, clock = program.ready(instruments), instruments.clock
    sampler.drain()
    begun_ns, first = clock.now_ns(), sampler.energy()
    begun_s = begun_ns * SECONDS_PER_NS
    phase_s = index * GOLDEN * period_s - begun_s - rest_s  # runs begin at new phases of the updates, which fill their period evenly
    clock.wait(rest_s + (phase_s % period_s if period_s else 0.0))
    start_ns = clock.now_ns()
    exit_status = execute()
    end_ns = clock.now_ns()
    clock.wait(rest_s)
    start_s, end_s, ended_s = (stamp_ns * SECONDS_PER_NS for stamp_ns in (start_ns, end_ns, clock.now_ns()))
    last, trace = sampler.energy(), sampler.drain()
    rests_s = (begun_s, start_s), (min(end_s + settle_time_s(calibration, 0.0), ended_s), ended_s)
    rests = [steady_power(trace.board, *rest_s, calibration, instruments.gpu.power_limit_w()) for rest_s in rests_s]
    known = [rest for rest in rests if math.isfinite(rest.power_w)]
    if not known:
        raise SensorError("no reading came while the board was at rest; is the sensor alive? `collect doctor` looks")
    rest_w = min(known, key=lambda rest: rest.raw_std_w if math.isfinite(rest.raw_std_w) else math.inf).power_w
    polls, latency_s = (host_seconds(trace.board.host_ns), trace.board.power_w), end_s - start_s
    spans = [(start_ns, end_ns)], [(begun_ns, start_ns), (end_ns, round(ended_s / SECONDS_PER_NS))]
    found, told = energies_of(polls, calibration, [host_spans(span) for span in spans], (start_s, end_s))
    (energy_j, energy_std_j, scatter_std_j), (*rests_j, _) = found
    counter_j, counter_std_j, note = _counter(first, last, latency_s, rests_j, calibration, (energy_j, energy_std_j))
    states = states_within(trace.states, start_s, end_s)
    return ProgramRun(
        exit_status=exit_status,
        latency_s=latency_s,
        energy_j=energy_j,
        energy_std_j=energy_std_j,
        scatter_std_j=scatter_std_j,
        rest_w=rest_w,
        naive_energy_j=sampled_energies_j(trace.board, start_s, end_s)["mtsm"],
        counter_energy_j=counter_j,
        counter_energy_std_j=counter_std_j,
        states=states,
        notes=tuple(filter(None, (told.get("unread"), note))),
        doubts=_clock_doubts(instruments, states, asked_mhz),
        start_s=start_s,
        polls=polls,
    )


def _counter(
    first: EnergyReading | None,
    last: EnergyReading | None,
    latency_s: float,
    rests_j: Sequence[float],
    calibration: SensorCalibration,
    found_j: tuple[float, float],
) -> tuple[float, float, str]:
    """Energy by the board's counter [J], offset and gain corrected, its standard error, and a note if it disagrees.

    `first` and `last` are from the beginning and the end of the rests around the program, `rests_j` is the energy of these rests and
    `found_j` that of the program by the readings.  nan, and the reason, for a counter that moved too little: it is updated with the
    readings, so that the rests around the program are known to within an update at either end.
    """
    if first is None or last is None:
        return math.nan, math.nan, ""
    back = inversion(calibration)
    counted_s = (last.host_ns - first.host_ns) * SECONDS_PER_NS
    counted = (last.energy_j - first.energy_j - back.offset_w * counted_s) / back.gain - rests_j[0]
    rest_s = counted_s - latency_s
    ends_j = rests_j[0] / rest_s * update_period_s(calibration) * math.sqrt(2.0 / 12.0)  # a time anywhere within an update, at either end
    own_j = math.sqrt(max(rests_j[1] ** 2 - back.common_std_j(rests_j[0], rest_s) ** 2, 0.0))
    std_j = math.hypot(ends_j, own_j, back.common_std_j(counted, latency_s))
    if last.energy_j <= first.energy_j or not counted > COUNTER_Z * ends_j:
        moved = f"{last.energy_j - first.energy_j:.3g} J in {counted_s:.3g} s"
        return math.nan, math.nan, f"the energy counter moved by {moved}: too little to tell this program's energy"
    if abs(counted - found_j[0]) > COUNTER_Z * math.hypot(found_j[1], std_j):
        says = f"{figure(counted, std_j, 'J')}, the readings {figure(*found_j, 'J')}"
        return counted, std_j, f"the energy counter says {says}"
    return counted, std_j, ""


def _clock_doubts(instruments: Instruments, states: StateReadings, asked_mhz: float | None) -> tuple[str, ...]:
    """Reasons why the SM clock differed from the requested one during a program; empty if it did not.  Tolerances of campaigns."""
    if asked_mhz is None:
        return ()
    doubts = []
    known = states.sm_clock_mhz[np.isfinite(states.sm_clock_mhz)]
    mean = mean_known(known)
    if known.size and (abs(mean - asked_mhz) > CLOCK_TOLERANCE * asked_mhz or float(known.std()) > CLOCK_VARIATION * asked_mhz):
        spread = f"{known.min():.0f} to {known.max():.0f} MHz, {mean:.0f} MHz on average"
        doubts.append(f"the SM clock was not the {asked_mhz:g} MHz asked for: {spread}, while the program ran")
    try:
        instruments.gpu.state()
    except ClockError as error:  # the clock helper ended the lease
        doubts.append(f"the SM clock is not held any more: {error}")
    return tuple(doubts)


def measure_program_repeats(
    instruments: Instruments,
    sampler: Sampler,
    program: Program,
    calibration: SensorCalibration,
    *,
    asked_std: float,
    longest_s: float,
    asked_mhz: float | None,
) -> ProgramRun:
    """The mean run of a program, with an energy error within `asked_std` (a share of it), without gain and offset.

    `asked_mhz` is the held SM clock; None if none is held.

    Raises ProgramError for a command that cannot be started or that fails, SensorError if runs are too short or too long for
    `longest_s`, or too few readings came, DeviceError if the board fails.
    """
    execute = stamped(program, instruments)
    found = measure_repeated(instruments, sampler, execute, calibration, asked_std=asked_std, longest_s=longest_s)
    columns = {one.name: np.concatenate([getattr(run.states, one.name) for run in found.runs]) for one in fields(StateReadings)}
    states = StateReadings(**columns)
    notes = dict.fromkeys(text for run in found.runs for text in run.energy.notes.values())
    if not found.reached:
        share = found.timing_std_j / found.energy_j
        notes[f"the asked error of {asked_std:.2%} was not reached in {found.elapsed_s:.0f} s: it is {share:.2%}"] = None
    return ProgramRun(
        latency_s=found.duration_s,
        energy_j=found.energy_j,
        energy_std_j=found.energy_std_j,
        scatter_std_j=found.timing_std_j,
        rest_w=found.rest_w,
        naive_energy_j=found.runs[-1].energy.naive_j,
        states=states,
        notes=tuple(notes),
        doubts=_clock_doubts(instruments, states, asked_mhz),
        executions=found.executions,
    )

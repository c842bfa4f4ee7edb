"""The energy of any program: run it between two rests, and subtract the power at rest from the readings.

A sensor with lag and averaging still shows all of the energy, only later: over a window that begins and ends at rest
nothing is lost.  So the readings are integrated from the rest before to the rest after, deconvolved where that
is well posed, and the power at rest is subtracted for the time outside the program.
"""

import math
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from collector.bench import Instruments
from collector.campaigns.outcome import CLOCK_TOLERANCE, CLOCK_VARIATION
from collector.devices.protocols import EnergyReading, PowerReadings, StateReadings, limiting_reasons
from collector.errors import ClockError, ProgramError, SensorError
from collector.sampling import SECONDS_PER_NS, Sampler, Trace, host_seconds
from collector.sensing.calibration import SensorCalibration
from collector.sensing.correct import correct_recording
from collector.sensing.figures import figure
from collector.sensing.known_sensor import Inversion, inversion
from collector.sensing.steady import SteadyPower, settle_time_s, steady_power, update_period_s
from estimator.vocabulary.quantities import Array

LEAST_REST_S: Final = 1.0
"""Least rest before and after a program: power at rest is measured there."""


COUNTER_Z: Final = 3.0
"""Number of standard errors: least energy that the counter determines, and its largest difference from the readings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRun:
    """One run of a program: exit status, time [s], energy [J] and mean power [W] of the board while it ran.

    `energy_std_j` is the standard error, `scatter_std_j` its part without gain and offset.
    `rest_w` is the board's power before and after, `above_rest_j` the energy beyond it, `naive_energy_j` the energy of the uncorrected
    readings, `counter_energy_j` that of the board's counter (nan without one) and `counter_energy_std_j` its error from the
    counter's steps.  `throttled` names the reasons for a slower board, `clock_held` is false if the SM clock was not the requested one.
    `executions` counts the runs; the other fields are their means.
    """

    exit_status: int
    sm_clock_mhz: float
    latency_s: float
    energy_j: float
    energy_std_j: float
    scatter_std_j: float
    rest_w: float
    naive_energy_j: float
    counter_energy_j: float
    counter_energy_std_j: float
    temperature_c: float
    throttled: tuple[str, ...]
    notes: tuple[str, ...]
    executions: int = 1
    clock_held: bool = True

    @property
    def power_w(self) -> float:
        """Mean power while the program ran [W]."""
        return self.energy_j / self.latency_s

    @property
    def above_rest_j(self) -> float:
        """Energy beyond the board's energy at rest [J]."""
        return self.energy_j - self.rest_w * self.latency_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """A stretch of host time [ns] that begins and ends at rest, the program within it, and all polls meanwhile."""

    begun_ns: int
    start_ns: int
    end_ns: int
    ended_ns: int
    trace: Trace
    counter: tuple[EnergyReading | None, EnergyReading | None]


def measure_program(
    instruments: Instruments,
    sampler: Sampler,
    command: Sequence[str],
    calibration: SensorCalibration,
    *,
    index: int = 0,
    asked_mhz: float | None = None,
    stdout: Any = None,
) -> ProgramRun:
    """Run a command once and return the board's time, energy and power.

    `index` counts the runs, `asked_mhz` is the held SM clock (None: none is held), `stdout` receives the command's output.

    Raises ProgramError for a command that cannot be started, SensorError if too few readings came, DeviceError if
    the board fails.  An interruption stops the command too.
    """
    rest_s = max(LEAST_REST_S, settle_time_s(calibration, LEAST_REST_S))
    period_s = calibration.update_period_s or 0.0
    sampler.drain()
    begun_ns, first = instruments.clock.now_ns(), sampler.energy()
    instruments.clock.wait(rest_s + period_s * ((index + 1) * 0.6180339887498949 % 1.0))  # a new phase of the updates for each run
    start_ns = instruments.clock.now_ns()
    exit_status, ran_s = run_command(command, stdout, program_environment(instruments))
    if instruments.simulated:
        instruments.clock.wait(ran_s)  # the simulated board's time does not advance while a program runs on the host
    end_ns = instruments.clock.now_ns()
    instruments.clock.wait(rest_s)
    ended_ns, last = instruments.clock.now_ns(), sampler.energy()
    span = _Span(begun_ns=begun_ns, start_ns=start_ns, end_ns=end_ns, ended_ns=ended_ns, trace=sampler.drain(), counter=(first, last))
    found = _evaluated(span, exit_status, calibration, instruments.gpu.power_limit_w())
    states = _while_running(span.trace.states, start_ns * SECONDS_PER_NS, end_ns * SECONDS_PER_NS)
    doubts = clock_doubts(instruments, states.sm_clock_mhz, asked_mhz)
    return replace(found, clock_held=not doubts, notes=(*found.notes, *doubts))


def _evaluated(span: _Span, exit_status: int, calibration: SensorCalibration, limit_w: float) -> ProgramRun:
    """Energy of the program's own time, from that of the whole span."""
    readings = span.trace.board
    begun, start, end = (stamp * SECONDS_PER_NS for stamp in (span.begun_ns, span.start_ns, span.end_ns))
    settled_s = end + settle_time_s(calibration, 0.0)
    before = steady_power(readings, begun, start, calibration, limit_w)
    after = steady_power(readings, min(settled_s, span.ended_ns * SECONDS_PER_NS), span.ended_ns * SECONDS_PER_NS, calibration, limit_w)
    rest = _rest(before, after)
    whole = correct_recording(host_seconds(readings.host_ns), readings.power_w, calibration).whole
    padding_s = (whole.end_s - whole.start_s) - (end - start)
    back = inversion(calibration)
    energy_j = whole.energy_j - rest.power_w * padding_s
    rest_scatter_j = rest.raw_std_w / back.gain * padding_s
    common = back.energy(energy_j * back.gain + back.offset_w * (end - start), 0.0, end - start)[1]
    scatter = math.hypot(_scatter(whole.energy_std_j, whole.energy_j, back, whole.end_s - whole.start_s), rest_scatter_j)
    counter_j, counter_std_j, counter_note = _counter(span, rest, calibration, energy_j, math.hypot(common, scatter))
    states = _while_running(span.trace.states, start, end)
    return ProgramRun(
        exit_status=exit_status,
        sm_clock_mhz=mean_known(states.sm_clock_mhz),
        latency_s=end - start,
        energy_j=energy_j,
        energy_std_j=math.hypot(common, scatter),
        scatter_std_j=scatter,
        rest_w=rest.power_w,
        naive_energy_j=_naive_j(readings, start, end),
        counter_energy_j=counter_j,
        counter_energy_std_j=counter_std_j,
        temperature_c=mean_known(states.temperature_c),
        throttled=limiting_reasons(int(np.bitwise_or.reduce(states.throttle_mask)) if states.throttle_mask.size else 0),
        notes=(counter_note,) if counter_note else (),
    )


def _scatter(std_j: float, energy_j: float, back: Inversion, duration_s: float) -> float:
    """The part of an energy's error without that of gain and offset [J]."""
    common = back.energy(energy_j * back.gain + back.offset_w * duration_s, 0.0, duration_s)[1]
    return math.sqrt(max(std_j**2 - common**2, 0.0))


def _rest(before: SteadyPower, after: SteadyPower) -> SteadyPower:
    """The power at rest, from the better of the two rests.  Raises SensorError if neither is usable."""
    known = [rest for rest in (before, after) if rest.samples > 0 and math.isfinite(rest.power_w)]
    if not known:
        raise SensorError("no reading came while the board was at rest; is the sensor alive? `collect doctor` looks")
    return min(known, key=lambda rest: rest.raw_std_w if math.isfinite(rest.raw_std_w) else math.inf)


def _counter(span: _Span, rest: SteadyPower, calibration: SensorCalibration, energy_j: float, std_j: float) -> tuple[float, float, str]:
    """Energy by the board's counter [J], offset and gain corrected, its error from the counter's steps, and a note if it disagrees.

    nan, and the reason, for a counter that moved too little: it is updated with the readings, so that the rests around the program are
    known to within an update at either end.
    """
    first, last = span.counter
    if first is None or last is None:
        return math.nan, math.nan, ""
    back = inversion(calibration)
    counted_s = (last.host_ns - first.host_ns) * SECONDS_PER_NS
    padding_s = counted_s - (span.end_ns - span.start_ns) * SECONDS_PER_NS
    counted = (last.energy_j - first.energy_j - back.offset_w * counted_s) / back.gain - rest.power_w * padding_s
    ends_j = rest.power_w * update_period_s(calibration) * math.sqrt(2.0 / 12.0)  # a time anywhere within an update, at either end
    if last.energy_j <= first.energy_j or not counted > COUNTER_Z * ends_j:
        moved = f"{last.energy_j - first.energy_j:.3g} J in {counted_s:.3g} s"
        return math.nan, math.nan, f"the energy counter moved by {moved}: too little to tell this program's energy"
    if abs(counted - energy_j) > COUNTER_Z * math.hypot(std_j, ends_j):
        says = f"{figure(counted, ends_j, 'J')}, the readings {figure(energy_j, std_j, 'J')}"
        return counted, ends_j, f"the energy counter says {says}"
    return counted, ends_j, ""


def clock_doubts(instruments: Instruments, sm_clock_mhz: Array, asked_mhz: float | None) -> tuple[str, ...]:
    """Reasons why the SM clock differed from the requested one during a program, from the polled clocks [MHz]; empty if it did not.

    The tolerances are those of campaigns.
    """
    if asked_mhz is None:
        return ()
    doubts = []
    known = sm_clock_mhz[np.isfinite(sm_clock_mhz)]
    mean = mean_known(known)
    if known.size and (abs(mean - asked_mhz) > CLOCK_TOLERANCE * asked_mhz or float(known.std()) > CLOCK_VARIATION * asked_mhz):
        spread = f"{known.min():.0f} to {known.max():.0f} MHz, {mean:.0f} MHz on average"
        doubts.append(f"the SM clock was not the {asked_mhz:g} MHz asked for: {spread}, while the program ran")
    try:
        instruments.gpu.state()
    except ClockError as error:  # the clock helper ended the lease
        doubts.append(f"the SM clock is not held any more: {error}")
    return tuple(doubts)


def _naive_j(readings: PowerReadings, start_s: float, end_s: float) -> float:
    """Integral of the uncorrected readings between two times [J]; nan without two readings."""
    time_s = host_seconds(readings.host_ns)
    inside = (time_s >= start_s) & (time_s <= end_s) & np.isfinite(readings.power_w)
    return float(np.mean(readings.power_w[inside])) * (end_s - start_s) if np.count_nonzero(inside) > 1 else math.nan


def _while_running(states: StateReadings, start_s: float, end_s: float) -> StateReadings:
    """The states polled between two times."""
    time_s = host_seconds(states.host_ns)
    inside = (time_s >= start_s) & (time_s <= end_s)
    return StateReadings(
        host_ns=states.host_ns[inside],
        sm_clock_mhz=states.sm_clock_mhz[inside],
        temperature_c=states.temperature_c[inside],
        voltage_v=states.voltage_v[inside],
        throttle_mask=states.throttle_mask[inside],
    )


def mean_known(column: Any) -> float:
    """The mean of a column's known values; nan without any."""
    known = column[np.isfinite(column)]
    return float(known.mean()) if known.size else math.nan


def run_command(command: Sequence[str], stdout: Any, environment: Mapping[str, str]) -> tuple[int, float]:
    """Exit status of a command, by shells' rule 128 + signal if one ended it, and its time [s].  Raises ProgramError."""
    begun = time.monotonic()
    try:
        process = subprocess.Popen(list(command), stdout=stdout, env=environment)
    except FileNotFoundError as error:
        raise ProgramError(f"{command[0]}: command not found", 127) from error
    except (OSError, ValueError) as error:
        raise ProgramError(f"{command[0]}: cannot be run ({getattr(error, 'strerror', None) or error})", 126) from error
    with _stopped_with_us(process):
        status = process.wait()
    return (status if status >= 0 else 128 - status), time.monotonic() - begun


@contextmanager
def _stopped_with_us(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Stops the command on an interruption, first with a request, then by force."""
    try:
        yield
    except BaseException:
        process.terminate()
        try:
            process.wait(5.0)  # longest wait for a program that was requested to stop [s]
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise


def program_environment(instruments: Instruments) -> dict[str, str]:
    """A program's environment: it sees only the measured board, unless the variable is set already."""
    chosen = {} if instruments.simulated else {"CUDA_VISIBLE_DEVICES": instruments.gpu.identity().uuid}
    return {**chosen, **os.environ}

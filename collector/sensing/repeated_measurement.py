"""Measuring the energy of any load that can be repeated: run, fit, and run again for longer while the error is too large.

If the sensor sees part of the time only, updates could fall on the same places of every execution (a length near a simple fraction of
the update period): pauses between blocks of executions then move the phase by golden parts of the smaller of the two periods, because
every such lock is a fraction of it.
"""

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from collector.devices.protocols import Instruments, StateReadings
from collector.errors import SensorError
from collector.sampling import SECONDS_PER_NS, Sampler, host_spans, possible_polls
from collector.sensing.board_power import LoadStamps
from collector.sensing.calibration import SensorCalibration
from collector.sensing.executions import BINS
from collector.sensing.known_sensor import possible_responses
from collector.sensing.repeated import RepeatedEnergy, repeated_energy
from collector.sensing.steady import corrected_power, settle_time_s
from collector.sensing.updates import board_updates
from estimator.vocabulary.values import frozen

Execution = Callable[[], tuple[int, int]]
"""Runs once and returns the host's stamps before its first launch and after its end [ns]."""

LEAST_SETTLE_S: Final = 0.3
"""Least rise to discard: the boards' own takes 100 to 250 ms (published recordings)."""
LEAST_LENGTH_S: Final = 1e-3
"""Least length of an execution: for shorter kernels the caller repeats the kernel within one execution."""
GOLDEN: Final = 0.3819660112501051
"""1 − 1/φ: its multiples fill a circle more evenly than those of any other number."""
SHIFTS: Final = 13
"""Number of pauses (Fibonacci: after this many golden steps the circle is filled evenly)."""
FULL_PERIODS: Final = {"boxcar": 0.98, "low-pass": 3.0}
"""Windows of this many update periods leave no part of an execution unseen, at any length: no pauses are needed."""
MOST_BATCHES: Final = 4
"""Most batches of one measurement."""


@frozen
class RepeatPlan:
    """`executions` in a batch, a pause of `pause_s` after every `block` of them (0 for none), the first `discard_s` left out.

    `padding_s` is the rest before, and the time polled after; `update_period_s` is the sensor's period, or its upper bound if unknown.
    """

    executions: int
    block: int
    pause_s: float
    discard_s: float
    padding_s: float
    update_period_s: float

    def pause_after(self, index: int) -> float:
        """Pause after execution `index`, counted from 0 [s]."""
        last = index + 1 >= self.executions
        return self.pause_s if not last and (index + 1) % self.block == 0 else 0.0


def plan_repeats(duration_s: float, calibration: SensorCalibration, span_s: float = 0.0) -> RepeatPlan:
    """A batch of executions of `duration_s` that lasts `span_s` after the rise, or as long as a sensor needs at least."""
    responses = possible_responses(calibration)
    period = calibration.update_period_s or max(response.width_s for response in responses.responses)
    full = all(response.width_s >= FULL_PERIODS[response.kernel] * period for response in responses.responses)
    discard_s = settle_time_s(calibration, LEAST_SETTLE_S) + responses.reach_s
    shifts_s = 0.0 if full else (SHIFTS + 1) * min(duration_s, BINS * period)  # each part is seen at all phases of the updates
    settled = max(3, math.ceil(max(span_s, 0.3, 2.0 * responses.reach_s, 6.0 * period, shifts_s) / duration_s))
    return RepeatPlan(
        executions=settled + math.ceil(discard_s / duration_s),
        block=settled if full else max(1, settled // (SHIFTS + 1)),
        pause_s=0.0 if full else min(GOLDEN * min(period, duration_s), 0.1),
        discard_s=discard_s,
        padding_s=responses.reach_s + 2.0 * period,
        update_period_s=period,
    )


@frozen
class Run:
    """One batch: the plan, the executions' stamps, the energy found, and the board's states meanwhile."""

    plan: RepeatPlan
    load: LoadStamps
    energy: RepeatedEnergy
    states: StateReadings


@frozen
class RepeatedMeasurement:
    """Energy [J] and length [s] of an execution over all batches, weighted by their errors; gain and offset are common to them.

    `timing_std_j` is the part of `energy_std_j` that remains if gain and offset are exact; `reached` whether it meets
    the request.  `rest_w` is the board's power before.
    """

    energy_j: float
    energy_std_j: float
    timing_std_j: float
    duration_s: float
    executions: int
    elapsed_s: float
    rest_w: float
    reached: bool
    runs: tuple[Run, ...]


def measure_repeated(
    bench: Instruments,
    sampler: Sampler,
    execute: Execution,
    calibration: SensorCalibration,
    *,
    asked_std: float = 0.003,
    longest_s: float = 60.0,
) -> RepeatedMeasurement:
    """Energy of an execution to within `asked_std` (a share of it), with as few repetitions as possible.

    Raises SensorError if executions are too short to stand alone, or too few readings came; DeviceError if the board fails.
    """
    begun_ns = bench.clock.now_ns()
    sampler.drain()
    rest_w = _rest_w(bench, sampler, calibration)
    duration_s = _ranged(execute)
    plan = plan_repeats(duration_s, calibration)
    if plan.executions * duration_s > 1.5 * longest_s:
        raise SensorError(
            f"one execution takes {duration_s:.3g} s and {plan.executions} are needed, more than {longest_s:.3g} s allow; allow more time"
        )
    runs: list[Run] = []
    while len(runs) < MOST_BATCHES:
        runs.append(_batch(bench, sampler, execute, plan, calibration))
        executions = sum(run.energy.executions for run in runs)
        energy, timing_std, length_s = _combined(runs)
        left_s = longest_s - (bench.clock.now_ns() - begun_ns) * SECONDS_PER_NS
        if timing_std <= asked_std * energy or left_s < 0.0:
            break
        # Errors fall with the root of the number of executions; a few of them tell their error too roughly for a much longer batch.
        missing = min((timing_std / (asked_std * energy)) ** 2 - 1.0, 4.0)
        span_s = missing * duration_s * executions
        plan = plan_repeats(duration_s, calibration, min(span_s, left_s))
    common = max(runs[-1].energy.energy_std_j ** 2 - runs[-1].energy.timing_std_j ** 2, 0.0)
    return RepeatedMeasurement(
        energy_j=energy,
        energy_std_j=math.sqrt(timing_std**2 + common),
        timing_std_j=timing_std,
        duration_s=length_s,
        executions=executions,
        elapsed_s=longest_s - left_s,
        rest_w=corrected_power(rest_w, 0.0, calibration)[0],
        reached=timing_std <= asked_std * energy,
        runs=tuple(runs),
    )


def _rest_w(bench: Instruments, sampler: Sampler, calibration: SensorCalibration) -> float:
    """The last reading at rest [W]."""
    bench.clock.wait(2.0 * (calibration.update_period_s or LEAST_SETTLE_S))
    known = possible_polls(sampler.drain().board)[1]
    return float(known[-1]) if len(known) else math.nan


def _ranged(execute: Execution) -> float:
    """Length of an execution [s], from a few of them."""
    stamps = [execute()]
    while len(stamps) < 3 and (stamps[0][1] - stamps[0][0]) * SECONDS_PER_NS < 2.0:
        stamps.append(execute())
    duration = float(np.median([(end - start) * SECONDS_PER_NS for start, end in stamps]))
    if not duration >= LEAST_LENGTH_S:
        raise SensorError(
            f"an execution takes {duration * 1e3:.3g} ms; stamps tell less than {LEAST_LENGTH_S * 1e3:g} ms badly: "
            "repeat the kernel within one"
        )
    return duration


def _batch(bench: Instruments, sampler: Sampler, execute: Execution, plan: RepeatPlan, calibration: SensorCalibration) -> Run:
    """Rest, run, rest; then the fit.

    No column of the fit describes loads before the rest: readings that remember them would count as noise.
    """
    begun_s = bench.clock.now_ns() * SECONDS_PER_NS
    bench.clock.wait(max(plan.padding_s + plan.update_period_s, LEAST_SETTLE_S))
    stamps: list[tuple[int, int]] = []
    # Executions shorter than during ranging continue until enough updates follow the rise.
    least_ns = (plan.discard_s + 6.0 * plan.update_period_s) / SECONDS_PER_NS
    most = 1000 * plan.executions
    while len(stamps) < plan.executions or (len(stamps) < most and stamps[-1][1] - stamps[0][0] < least_ns):
        index = len(stamps)
        stamps.append(execute())
        pause = plan.pause_after(index)
        if pause > 0.0:
            bench.clock.wait(pause)
    bench.clock.wait(plan.padding_s)
    trace, (start_s, end_s) = sampler.drain(), host_spans(stamps)
    polls, load = possible_polls(trace.board), LoadStamps(start_s=start_s, end_s=end_s, known_from_s=begun_s)
    energy = repeated_energy(polls, board_updates(*polls, calibration), load, calibration, discard_s=plan.discard_s)
    return Run(plan=plan, load=load, energy=energy, states=trace.states)


def _combined(runs: list[Run]) -> tuple[float, float, float]:
    """Weighted means over batches of the energy of an execution, its error without gain and offset [J], and its length [s]."""
    energy, length = np.array([(run.energy.energy_j, (run.load.end_s - run.load.start_s).mean()) for run in runs]).T
    weight = 1.0 / np.maximum([run.energy.timing_std_j for run in runs], 1e-12) ** 2
    return float(weight @ energy / weight.sum()), 1.0 / math.sqrt(weight.sum()), float(weight @ length / weight.sum())

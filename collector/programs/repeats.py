"""The energy of one run of a program, from as few runs as the requested error permits.

A sensor that updates every 100 ms cannot resolve a program of some milliseconds.  Many runs, with pauses that keep
the runs from locking to the sensor's updates, can determine its energy.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from collector.bench import Instruments
from collector.devices.protocols import limiting_reasons
from collector.errors import ProgramError
from collector.programs.program import ProgramRun, clock_doubts, mean_known, program_environment, run_command
from collector.sampling import Sampler
from collector.sensing.calibration import SensorCalibration
from collector.sensing.repeated_measurement import measure_repeated


def measure_program_repeats(
    instruments: Instruments,
    sampler: Sampler,
    command: Sequence[str],
    calibration: SensorCalibration,
    *,
    asked_std: float,
    longest_s: float,
    asked_mhz: float | None = None,
    stdout: Any = None,
) -> ProgramRun:
    """The mean run of a command, with an energy error within `asked_std` (a share of it), without gain and offset.

    `asked_mhz` is the held SM clock; None if none is held.

    Raises ProgramError for a command that cannot be started or that fails, SensorError if runs are too short or too long for
    `longest_s`, or too few readings came, DeviceError if the board fails.
    """
    environment = program_environment(instruments)

    def execute() -> tuple[int, int]:
        start_ns = instruments.clock.now_ns()
        status, ran_s = run_command(command, stdout, environment)
        if status:
            raise ProgramError(f"{command[0]}: ended with status {status}; a command that fails is not repeated", status)
        if instruments.simulated:
            instruments.clock.wait(ran_s)  # the simulated board's time does not advance while a program runs on the host
        return start_ns, instruments.clock.now_ns()

    found = measure_repeated(instruments, sampler, execute, calibration, asked_std=asked_std, longest_s=longest_s)
    durations = np.concatenate([run.load.end_s - run.load.start_s for run in found.runs])
    clock, temperature = (np.concatenate([getattr(run.states, name) for run in found.runs]) for name in ("sm_clock_mhz", "temperature_c"))
    masks = np.concatenate([run.states.throttle_mask for run in found.runs])
    notes = dict.fromkeys(text for run in found.runs for text in run.energy.notes.values())
    doubts = clock_doubts(instruments, clock, asked_mhz)
    notes.update(dict.fromkeys(doubts))
    if not found.reached:
        share = found.timing_std_j / found.energy_j
        notes[f"the asked error of {asked_std:.2%} was not reached in {found.elapsed_s:.0f} s: it is {share:.2%}"] = None
    return ProgramRun(
        exit_status=0,
        sm_clock_mhz=mean_known(clock),
        latency_s=float(durations.mean()),
        energy_j=found.energy_j,
        energy_std_j=found.energy_std_j,
        scatter_std_j=found.timing_std_j,
        rest_w=found.rest_w,
        naive_energy_j=found.runs[-1].energy.naive_j,
        counter_energy_j=math.nan,
        counter_energy_std_j=math.nan,
        temperature_c=mean_known(temperature),
        throttled=limiting_reasons(int(np.bitwise_or.reduce(masks)) if masks.size else 0),
        notes=tuple(notes),
        executions=found.executions,
        clock_held=not doubts,
    )

"""Programs: commands that run on the host, and workload files that a simulated board runs."""

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any

from collector.bench import Instruments
from collector.devices.protocols import Bench
from collector.errors import ProgramError
from collector.sensing.repeated_measurement import Execution
from estimator.formats import read_workload
from estimator.vocabulary.frozen import FrozenMapping
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
    environment: Mapping[str, str] = FrozenMapping({})
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
    begun_s = time.monotonic()
    try:
        process = subprocess.Popen(list(command), stdout=stdout, env={**chosen, **os.environ, **environment})
    except FileNotFoundError as error:
        raise ProgramError(f"{command[0]}: command not found", 127) from error
    except (OSError, ValueError) as error:
        raise ProgramError(f"{command[0]}: cannot be run ({getattr(error, 'strerror', None) or error})", 126) from error
    try:
        status = process.wait()
    except BaseException:  # an interruption stops the command too, first with a request, then by force
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

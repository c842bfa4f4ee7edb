"""Kernels that killed the context: remembered on disk, skipped by the resumed run.

A kernel that reads an invalid address or crashes its library ends the whole process's context, sometimes the process.  So the
name of every kernel that has never finished is on disk before its launch.  If an error of the board ends the run, the kernel is on the
list at once; if the process just disappeared, the kernel is tried once more before it is listed.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from collector.boards import SIMULATED
from collector.devices.protocols import Bench, KernelRunner, LaunchRecord, PreparedKernel
from collector.errors import CampaignError, DeviceError, RunnerError
from collector.simulated.profile import load_board
from estimator.vocabulary.frozen import EMPTY
from estimator.vocabulary.reader import plain, read_file
from estimator.vocabulary.values import frozen
from estimator.vocabulary.whole_file import write_whole
from estimator.vocabulary.workload import Operator
from microbench.layouts import other_layout
from microbench.loads.generated import Load

Result = TypeVar("Result")

SUFFIX: Final = ".killers.json"
SILENT_ENDS: Final = 2
"""Number of process ends without a message at which a kernel counts as the cause: a single one may have been stopped from outside."""


@frozen
class Killers:
    """The list beside a dataset: the kernel that is about to run ("" without one), and kernels under suspicion.

    `ends` counts processes that ended in a kernel without a message, `broke` has the error messages of kernels.
    """

    running: str
    ends: Mapping[str, int]
    broke: Mapping[str, str]


NONE: Final = Killers(running="", ends=EMPTY, broke=EMPTY)


def killers_path(output: Path) -> Path:
    """Path of the list beside a dataset."""
    return output.with_name(output.name + SUFFIX)


@contextmanager
def guarded_bench(bench: Bench, output: Path) -> Iterator[Bench]:
    """The same bench with a runner guarded by the list beside `output`.

    A simulated board that plants neither kill nor hang is not guarded.  Raises CampaignError for a damaged list.
    """
    if bench.simulated:
        faults = load_board(bench.word.removeprefix(SIMULATED)).faults
        if not (faults.kills or faults.hangs):
            yield bench
            return
    runner = GuardedRunner(bench.runner, killers_path(output))
    try:
        yield replace(bench, runner=runner)
    finally:
        runner.clear()


class GuardedRunner:
    """A runner that keeps the list; implements KernelRunner.

    Kernels on the list raise RunnerError when they are prepared, so that a campaign counts and names them and continues.
    """

    def __init__(self, runner: KernelRunner, path: Path) -> None:
        """Reads the list.  Raises CampaignError for one that is damaged or cannot be read."""
        self._runner = runner
        self._path = path
        left = read_file(Killers, path, "list of kernels that broke the context", CampaignError) if path.exists() else NONE
        self._list, self._finished = left, set[str]()
        if left.running:
            self._write(ends={**left.ends, left.running: left.ends.get(left.running, 0) + 1})

    def supports(self, operator: Operator, transpose: str = "") -> bool:
        """Whether `prepare` would accept the operator; a kernel on the list is known, and rejected only when it is prepared."""
        return self._runner.supports(operator, transpose)

    def prepare(self, operator: Operator, l2_state: str = "warm", transpose: str = "") -> PreparedKernel:
        """The kernel for an operator.  Raises RunnerError for one on the list, and the errors of the runner."""
        return self._guarded(_operator_name(operator, l2_state, transpose), lambda: self._runner.prepare(operator, l2_state, transpose))

    def prepare_generated(self, load: Load) -> PreparedKernel:
        """A generated kernel or a copy.  Raises RunnerError for one on the list, and the errors of the runner."""
        return self._guarded(load.operator.operator, lambda: self._runner.prepare_generated(load))

    def run(self, prepared: PreparedKernel, launches: int) -> LaunchRecord:
        """Launches a kernel.  Raises the errors of the runner."""
        name = _operator_name(prepared.operator, prepared.l2_state, prepared.transpose)
        return self._guarded(name, lambda: self._runner.run(prepared, launches), ran=True)

    def clear(self) -> None:
        """Removes the suspicion from the kernel that was about to run: the program continues, or ends in order."""
        if self._list.running:
            self._write()

    def _guarded(self, name: str, work: Callable[[], Result], *, ran: bool = False) -> Result:
        """Does work that may end the context, with its name on disk from its preparation to the end of its first run."""
        ends, said = self._list.ends.get(name, 0), self._list.broke.get(name, "")
        if said or ends >= SILENT_ENDS:
            why = f"it broke the context before ({said})" if said else f"{ends} processes ended while it ran"
            raise RunnerError(f"{name}: {why}; passed over (delete its entry in {self._path} to try again)")
        if name in self._finished:
            return work()
        if self._list.running != name:
            self._write(name)
        try:
            result = work()
        except RunnerError:
            self._write()
            raise
        except DeviceError as error:
            self._write(broke={**self._list.broke, name: str(error)[:300]})
            raise
        if ran:
            self._finished.add(name)
            self._write(ends={other: count for other, count in self._list.ends.items() if other != name})
        return result

    def _write(self, running: str = "", **changes: Mapping[str, Any]) -> None:
        """Writes the list, changed, and the kernel that is about to run, to disk; removes the file if both are empty."""
        self._list = replace(self._list, running=running, **changes)
        try:
            if self._list != NONE:
                write_whole(self._path, json.dumps(plain(self._list), indent=0).encode())
            else:
                self._path.unlink(missing_ok=True)
        except OSError as error:
            raise CampaignError(str(error)) from error


def _operator_name(operator: Operator, l2_state: str, transpose: str) -> str:
    """A kernel's name on the list; it includes a layout other than the natural one.  Generated kernels have a name of their own."""
    if not operator.shape:
        return operator.operator
    shape = " ".join(f"{name}={value:g}" for name, value in operator.named_shape().items())
    formats = (operator.precision, operator.precision_out, operator.precision_kv, "cuda-cores" if operator.cuda_cores else "")
    words = (f"{operator.family}.{operator.operator}", *formats, shape, l2_state, other_layout(operator, transpose))
    return " ".join(filter(None, words))

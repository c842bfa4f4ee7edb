"""The collector's runner of a real board: its errors state whether a campaign can continue."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from collector.devices.tracer import open_tracer
from collector.errors import DeviceError, RunnerError
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.workload import Operator
from microbench.check import verify
from microbench.errors import DeviceLostError, MicrobenchError, ResultError
from microbench.kernel import Kernel, Launch, PreparedKernel
from microbench.loads.copies import CopyLoad
from microbench.loads.generated import GeneratedLoad
from microbench.runners.generated_runner import GeneratedRun, load_copy, load_generated
from microbench.runners.library_runner import Libraries, LibraryRunner, open_library_runner
from microbench.runners.runner import BoundKernel, KernelTracer, LaunchRecord


class BoardRunner:
    """Runs kernels on a real board; implements KernelRunner.

    A kernel that cannot run here is a RunnerError: a campaign counts it and continues.  A lost board, or a context that a kernel has
    broken, is a DeviceError: the campaign stops, its rows are on disk, and a new process resumes it.
    """

    def __init__(self, runner: LibraryRunner, now_ns: Callable[[], int]) -> None:
        self._runner = runner
        self._now_ns = now_ns
        self._generated: tuple[PreparedKernel, Callable[[int], LaunchRecord]] | None = None
        self._complaints: dict[tuple[str, ...], str] = {}

    def supports(self, operator: Operator, transpose: str = "") -> bool:
        """Whether `prepare` would accept the operator, in a layout of its inputs."""
        with collector_errors():
            return self._runner.supports(operator, transpose)

    def prepare(self, operator: Operator, l2_state: str = "warm", transpose: str = "") -> PreparedKernel:
        """The kernel for an operator, its operands in place, in a layout.  Raises RunnerError, DeviceError."""
        with collector_errors():
            return self._runner.prepare(operator, l2_state, transpose)

    def prepare_generated(self, load: GeneratedLoad | CopyLoad) -> PreparedKernel:
        """A generated kernel, loaded and its buffers filled, or a copy; the memory of the previous kernel is freed first.

        The results are checked before, once for each kernel, code and kind of operands.  Raises RunnerError, DeviceError.
        """
        self._generated = None
        with collector_errors():
            if isinstance(load, CopyLoad):
                copy = load_copy(self._runner.device, load, self._now_ns)
                key: tuple[str, ...] = (load.name,)
                if key not in self._complaints:
                    self._complaints[key] = copy.complaint()
                run = copy.run
            else:
                key = (load.kernel.name, load.module.digest, load.launch.pattern)
                if key not in self._complaints:
                    self._complaints[key] = self._complaint(load)
                run = self.load_generated(load.kernel, load.launch, load.module.cubin).run
        prepared = load.prepared(self._complaints[key])
        self._generated = (prepared, run)
        return prepared

    def _complaint(self, load: GeneratedLoad) -> str:
        """The fault in the results of a small launch of a kernel on this board; "" for right results."""
        kernel, pattern = load.kernel, load.launch.pattern
        try:
            verify(kernel, pattern, self.load_generated(kernel, kernel.check_launch(pattern), load.module.cubin).results())
        except ResultError as error:
            return str(error)
        return ""

    def run(self, prepared: PreparedKernel, launches: int) -> LaunchRecord:
        """Launches a kernel back to back and waits for the end.  Raises RunnerError, DeviceError."""
        with collector_errors():
            if self._generated is not None and self._generated[0] == prepared:
                return self._generated[1](launches)
            return self._runner.run(prepared, launches)

    def bound(self, prepared: PreparedKernel) -> BoundKernel:
        """Operands and results of a prepared kernel, to check them."""
        with collector_errors():
            return self._runner.bound(prepared)

    def load_generated(self, kernel: Kernel, launch: Launch, cubin: bytes) -> GeneratedRun:
        """A generated kernel in the same context, its buffers filled.  Raises RunnerError, DeviceError.

        Its methods raise the load's errors: call them within `collector_errors`.
        """
        with collector_errors():
            return load_generated(self._runner.device, kernel, launch, cubin, self._now_ns)


@contextmanager
def open_board_runner(
    pci_address: str,
    gpu: GpuSpec,
    now_ns: Callable[[], int],
    *,
    seed: int = 0,
    attention: str = "flash",
    tracer: KernelTracer | None = None,
    libraries: Libraries | None = None,
) -> Iterator[BoardRunner]:
    """The runner on the board at a PCI address, with CUPTI's tracer if available.

    Raises DeviceError if the board or the libraries are missing.
    """
    with (
        collector_errors(opening=True),
        open_library_runner(
            pci_address, gpu, open_tracer() if tracer is None else tracer, now_ns, seed=seed, attention=attention, libraries=libraries
        ) as runner,
    ):
        yield BoardRunner(runner, now_ns)


@contextmanager
def collector_errors(*, opening: bool = False) -> Iterator[None]:
    """Converts the load's errors to the collector's; while `opening`, every error is the board's."""
    try:
        yield
    except DeviceLostError as error:
        raise DeviceError(f"{error}; the same command goes on where this one stopped") from error
    except MicrobenchError as error:
        if opening:
            raise DeviceError(str(error)) from error
        raise RunnerError(str(error)) from error

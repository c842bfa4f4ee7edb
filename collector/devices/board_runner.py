"""The collector's runner of a real board: its errors state whether a campaign can continue."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from collector.devices.tracer import open_tracer
from collector.errors import DeviceError, RunnerError
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.values import frozen
from microbench.errors import DeviceLostError, MicrobenchError, UnsupportedError
from microbench.runners.cublas import open_cublas
from microbench.runners.cupy_device import open_cupy_device
from microbench.runners.library_runner import LibraryRunner
from microbench.runners.runner import KernelTracer
from microbench.runners.torch_device import TorchDevice, load_torch, open_torch_device


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


class BoardRunner(LibraryRunner):
    """Runs kernels on a real board; implements KernelRunner.

    A kernel that cannot run here is a RunnerError: a campaign counts it and continues.  A lost board, or a context that a kernel has
    broken, is a DeviceError: the campaign stops, its rows are on disk, and a new process resumes it.
    What `bound` and `load_generated` give raises the load's errors: call it within `collector_errors`.
    """

    supports = collector_errors()(LibraryRunner.supports)
    prepare = collector_errors()(LibraryRunner.prepare)
    prepare_generated = collector_errors()(LibraryRunner.prepare_generated)
    run = collector_errors()(LibraryRunner.run)
    bound = collector_errors()(LibraryRunner.bound)
    load_generated = collector_errors()(LibraryRunner.load_generated)


@frozen
class Libraries:
    """The modules CuPy and PyTorch, and libcublas as ctypes loads it; None: the installed one."""

    cupy: Any = None
    cublas: Any = None
    torch: Any = None


@contextmanager
def open_board_runner(
    pci_address: str,
    gpu: GpuSpec,
    now_ns: Callable[[], int],
    *,
    seed: int = 0,
    attention: str = "pytorch",
    tracer: KernelTracer | None = None,
    libraries: Libraries | None = None,
) -> Iterator[BoardRunner]:
    """The runner on the board at a PCI address, with CUPTI's tracer if available; all memory is released at the end.

    `now_ns` is the host clock of the sensors' stamps.  Without PyTorch the runner has only cuBLAS's kernels.
    Raises DeviceError without CuPy or cuBLAS, and for a board that does not answer.
    """
    given = libraries or Libraries()
    opened: TorchDevice | str = ""
    with collector_errors(opening=True), ExitStack() as stack:
        try:
            torch = given.torch or load_torch()  # first: its CUDA libraries match each other, and CuPy uses loaded libraries
        except UnsupportedError as error:
            torch, opened = None, str(error)
        device = stack.enter_context(open_cupy_device(pci_address, given.cupy))
        products = stack.enter_context(open_cublas(given.cublas or str(device.cublas_file()), device))
        try:
            if torch:
                opened = stack.enter_context(open_torch_device(torch, device.ordinal, device.stream_pointer))
        except UnsupportedError as error:
            opened = str(error)
        runner = BoardRunner(gpu, products, opened, tracer or open_tracer(), now_ns, attention, seed)
        yield runner
        runner.close()  # not after an error: a lost board does not answer

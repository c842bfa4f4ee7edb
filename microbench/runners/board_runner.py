"""A runner on a real board: CuPy's context, cuBLAS and PyTorch on its stream, put together."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from estimator.gpu import GpuSpec
from estimator.workload import Operator
from microbench.errors import UnsupportedError
from microbench.layouts import layout_of
from microbench.runners.cublas import DATA_TYPES, Cublas, load_cublas, open_cublas
from microbench.runners.cupy_device import CupyDevice, open_cupy_device
from microbench.runners.cupy_kernels import cupy_kernel
from microbench.runners.library_runner import LibraryRunner
from microbench.runners.runner import KernelTracer, LibraryKernel
from microbench.runners.torch_device import TorchDevice, load_torch, open_torch_device
from microbench.runners.torch_kernels import torch_kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """The libraries that are here: cuBLAS for products, PyTorch for the rest, CuPy where there is no PyTorch.

    `torch` is None where PyTorch cannot be used, and `without_torch` says why.  `attention` chooses PyTorch's backend.
    """

    gpu: GpuSpec
    cublas: Cublas
    cupy: CupyDevice
    torch: TorchDevice | None
    without_torch: str = ""
    attention: str = "flash"

    def kernel(self, operator: Operator, transpose: str = "") -> LibraryKernel:
        """The kernel for an operator, a product's in a layout ("": the natural one).  Raises UnsupportedError where no library has one."""
        capability = float(self.gpu.compute_capability)
        layout_of(operator, transpose)  # a layout that cannot be is refused before anything that is missing
        if operator.family == "gemm" and operator.precision in DATA_TYPES:
            return self.cublas.kernel(operator, capability, transpose)
        if self.torch is not None:
            return torch_kernel(operator, self.torch, capability, self.attention)
        try:
            return cupy_kernel(operator, self.cupy)
        except UnsupportedError as error:
            raise UnsupportedError(f"{error} ({self.without_torch})" if self.without_torch else str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBoard:
    """The one context on a board: the runner of library kernels, and the device for generated ones (`load_generated`)."""

    library: LibraryRunner
    device: CupyDevice


@contextmanager
def open_library_runner(
    pci_address: str,
    gpu: GpuSpec,
    tracer: KernelTracer,
    now_ns: Callable[[], int],
    *,
    seed: int = 0,
    attention: str = "flash",
    cupy: Any = None,
    cublas: Any = None,
    torch: Any = None,
) -> Iterator[OpenBoard]:
    """The runner on the board at a PCI address; all memory is given back at the end.

    `now_ns` is the host clock that sensors are stamped with.  `cupy`, `torch` are modules and `cublas` the loaded library (None: the
    installed ones).  Without PyTorch the runner has cuBLAS's and CuPy's kernels alone.
    Raises UnsupportedError without CuPy or cuBLAS, DeviceLostError where the board does not answer.
    """
    pytorch, without = None, ""
    try:
        torch = load_torch() if torch is None else torch  # first: its CUDA libraries fit each other, and CuPy takes what is loaded
    except UnsupportedError as error:
        without = str(error)
    with ExitStack() as stack:
        device = stack.enter_context(open_cupy_device(pci_address, cupy))
        library = load_cublas(str(device.library_file("libcublas.so"))) if cublas is None else cublas
        products = stack.enter_context(open_cublas(library, device))
        try:
            if torch is not None:
                pytorch = stack.enter_context(open_torch_device(device.ordinal, device.stream_pointer, torch))
        except UnsupportedError as error:
            without = str(error)
        catalogue = Catalogue(gpu=gpu, cublas=products, cupy=device, torch=pytorch, without_torch=without, attention=attention)
        runner = LibraryRunner(
            device=device,
            choose=catalogue.kernel,
            errors=_errors(device, pytorch),
            gpu=gpu,
            tracer=tracer,
            trim=_trim(device, pytorch),
            now_ns=now_ns,
            seed=seed,
        )
        yield OpenBoard(library=runner, device=device)
        runner.close()  # not after an error: a lost board answers nothing


def _errors(device: CupyDevice, torch: TorchDevice | None) -> Callable[[str], Any]:
    """The errors of both libraries mapped; CuPy's innermost, for they are RuntimeErrors as PyTorch's are."""

    @contextmanager
    def errors(what: str) -> Iterator[None]:
        with ExitStack() as stack:
            if torch is not None:
                stack.enter_context(torch.errors(what))
            stack.enter_context(device.errors(what))
            yield

    return errors


def _trim(device: CupyDevice, torch: TorchDevice | None) -> Callable[[], None]:
    def trim() -> None:
        device.trim()
        if torch is not None:
            torch.trim()

    return trim

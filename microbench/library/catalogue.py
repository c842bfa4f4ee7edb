"""Which library computes an operator."""

from dataclasses import dataclass

from estimator.gpu import GpuSpec
from estimator.workload import Operator
from microbench.cupy_runner import CupyDevice
from microbench.errors import UnsupportedError
from microbench.layouts import layout_of
from microbench.library.cublas import DATA_TYPES, Cublas
from microbench.library.cupy_kernels import cupy_kernel
from microbench.library.torch_kernels import torch_kernel
from microbench.runner import LibraryKernel
from microbench.torch_runner import TorchDevice


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

"""Matrix products by cuBLAS, called in the library that CuPy has loaded.

cuBLAS is column-major.  The row-major product C[m, n] = A[m, k] · B[k, n] is its C' = B' · A' with the outputs n along
its rows, so its first operand is our B and its second our A, in the order of the letters of a layout (`microbench.layouts`).

Source: cuBLAS manual, cublasGemmEx, cublasGemmStridedBatchedEx, and "CUDA graphs support" for the workspace.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from estimator.vocabulary.quantities import Array
from estimator.vocabulary.workload import Operator
from microbench.errors import DeviceLostError, DeviceMemoryError, KernelFailedError, UnsupportedError
from microbench.layouts import layout_of
from microbench.runners.cupy_device import CupyDevice
from microbench.runners.runner import BoundKernel, HostValues, LibraryKernel
from microbench.sizing import operator_bytes

DATA_TYPES: Final[dict[str, int]] = {"fp32": 0, "tf32": 0, "fp64": 1, "fp16": 2, "bf16": 14}
"""cudaDataType of a precision."""

COMPUTE_TYPES: Final[dict[str, int]] = {"fp16": 68, "bf16": 68, "fp32": 68, "tf32": 77, "fp64": 70}
"""cublasComputeType of a precision: accumulation in fp32 (68), on tensor cores with tf32 operands (77), in fp64 (70)."""

WIDER_OUTPUTS: Final[dict[str, tuple[str, ...]]] = {"fp16": ("fp16", "fp32"), "bf16": ("bf16", "fp32")}
"""Output precisions that cublasGemmEx offers beyond the operands' own."""


WORKSPACE_BYTES: Final = 32 << 20
"""Workspace that cuBLAS recommends for compute capability 9.0; we allocate it, so that graphs hold no allocations."""

LARGEST_DIMENSION: Final = 2**31 - 1

NOT_ON_TENSOR_CORES_BEFORE: Final[dict[str, float]] = {"bf16": 8.0, "tf32": 8.0}
"""Compute capability from which cuBLAS has kernels of a precision."""

STATUS: Final = {
    1: "not initialised",
    3: "allocation failed",
    7: "invalid value",
    13: "execution failed",
    15: "not supported",
}
"""Names of cublasStatus_t; other statuses are shown as numbers."""

NOT_SUPPORTED: Final = frozenset({7, 8, 15})
EXECUTION_FAILED: Final = frozenset({1, 11, 13})


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """`batch` products of m × n × k in a layout, with the precisions of operands and output."""

    batch: int
    m: int
    n: int
    k: int
    layout: str
    precision: str
    precision_out: str


class Cublas:
    """One cuBLAS handle on one stream; `open_cublas` makes it."""

    def __init__(self, library: Any, device: CupyDevice, handle: ctypes.c_void_p) -> None:
        self._library = library
        self._device = device
        self._handle = handle

    def version(self) -> int:
        """cuBLAS's version, for example 130100."""
        version = ctypes.c_int()
        check(self._library.cublasGetVersion_v2(self._handle, ctypes.byref(version)), "cublasGetVersion")
        return version.value

    def kernel(self, operator: Operator, compute_capability: float, transpose: str = "") -> LibraryKernel:
        """cuBLAS's kernel for a GEMM operator in a layout; the default is tn for linear layers, nn for products of activations.

        Raises UnsupportedError for a precision, a size, a layout or a combination that cuBLAS does not have here.
        """
        return self.product_kernel(_product(operator, compute_capability, transpose), int(operator_bytes(operator)))

    def product_kernel(self, product: Product, working_set_bytes: int) -> LibraryKernel:
        """cuBLAS's kernel for a product in any layout."""
        batch, m, n, k, precision = product.batch, product.m, product.n, product.k, product.precision
        stored_a, stored_b = (k, m) if product.layout[1] == "t" else (m, k), (n, k) if product.layout[0] == "t" else (k, n)
        device = self._device

        def bind(buffer_sets: int, seed: int) -> BoundKernel:
            left = device.normal_sets(buffer_sets, batch * m * k, precision, seed)
            right = device.normal_sets(buffer_sets, batch * n * k, precision, seed + 1)
            sets = list(zip(left, right, device.empty_sets(buffer_sets, batch * m * n, product.precision_out), strict=True))

            def host_values(index: int) -> HostValues:
                a, b, c = sets[index]
                inputs = (
                    device.to_host(a, precision).reshape(batch, *stored_a), device.to_host(b, precision).reshape(batch, *stored_b)
                )  # fmt: skip
                return HostValues(inputs=inputs, output=device.to_host(c, product.precision_out).reshape(batch, m, n))

            launches = tuple(self._launch(product, *operands) for operands in sets)
            return BoundKernel(launches=launches, capture=device.capture, host_values=host_values)

        return LibraryKernel(
            library="cublas",
            transpose=product.layout,
            working_set_bytes=working_set_bytes,
            scratch_bytes=WORKSPACE_BYTES,
            bind=bind,
        )

    def _launch(self, product: Product, a: Any, b: Any, c: Any) -> Callable[[], None]:
        """The call for one set of operands."""
        scale = ctypes.c_double if product.precision == "fp64" else ctypes.c_float
        alpha, beta = ctypes.byref(scale(1.0)), ctypes.byref(scale(0.0))
        m, n, k = product.m, product.n, product.k
        kind, kind_out = DATA_TYPES[product.precision], DATA_TYPES[product.precision_out]
        transposed_b, lead_b = (1, k) if product.layout[0] == "t" else (0, n)
        transposed_a, lead_a = (1, m) if product.layout[1] == "t" else (0, k)
        batched = product.batch > 1
        operands = [
            (ctypes.c_void_p(int(array.data.ptr)), type_, lead, *([ctypes.c_longlong(stride)] if batched else []))
            for array, type_, lead, stride in ((b, kind, lead_b, n * k), (a, kind, lead_a, m * k), (c, kind_out, n, m * n))
        ]
        arguments = (
            *(self._handle, transposed_b, transposed_a, n, m, k, alpha),
            *(*operands[0], *operands[1], beta, *operands[2]),
            *([product.batch] if batched else []),
            *(COMPUTE_TYPES[product.precision], -1),  # cUBLAS_GEMM_DEFAULT: the library's own choice
        )
        function = self._library.cublasGemmStridedBatchedEx if batched else self._library.cublasGemmEx
        what = f"cuBLAS product {m}x{n}x{k} in {product.precision}"

        def launch(_kept: tuple[Any, ...] = (a, b, c)) -> None:  # addresses do not keep memory alive
            status = function(*arguments)
            if status:
                check(status, what)

        return launch


@contextmanager
def open_cublas(library: Any, device: CupyDevice) -> Iterator[Cublas]:
    """A handle on the device's stream with a workspace of its own; destroyed at the end.

    `library` is libcublas as loaded by ctypes.  Raises UnsupportedError if it cannot be initialised.
    """
    handle = ctypes.c_void_p()
    check(library.cublasCreate_v2(ctypes.byref(handle)), "cublasCreate")
    try:
        check(library.cublasSetStream_v2(handle, ctypes.c_void_p(device.stream_pointer)), "cublasSetStream")
        workspace = device.empty(WORKSPACE_BYTES, "int8")
        address = ctypes.c_void_p(int(workspace.data.ptr))
        check(library.cublasSetWorkspace_v2(handle, address, ctypes.c_size_t(WORKSPACE_BYTES)), "cublasSetWorkspace")
        yield Cublas(library, device, handle)
    finally:
        library.cublasDestroy_v2(handle)


def load_cublas(file: str) -> Any:
    """libcublas from a file.  Raises UnsupportedError if it cannot be loaded."""
    try:
        return ctypes.CDLL(file)
    except OSError as error:
        raise UnsupportedError(f"{file} cannot be loaded: {error}") from error


def check(status: int, what: str) -> None:
    """Raise the error of a cuBLAS status."""
    if not status:
        return
    message = f"{what}: {STATUS.get(status, f'status {status}')}"
    if status == 3:
        raise DeviceMemoryError(message)
    if status in NOT_SUPPORTED:
        raise UnsupportedError(message)
    if status in EXECUTION_FAILED:
        raise DeviceLostError(f"{message}; this process cannot use the board any more")
    raise KernelFailedError(message)


def _product(operator: Operator, compute_capability: float, transpose: str) -> Product:
    """The product of an operator.  Raises UnsupportedError for a product that cuBLAS does not support."""
    precision = operator.precision
    where = f"gemm.{operator.operator} in {precision}"
    if precision not in DATA_TYPES:
        raise UnsupportedError(f"{where}: cublasGemmEx has {', '.join(DATA_TYPES)}")
    least = NOT_ON_TENSOR_CORES_BEFORE.get(precision, 0.0)
    if compute_capability < least:
        raise UnsupportedError(f"{where}: needs compute capability {least:g}, this board has {compute_capability:g}")
    if operator.cuda_cores and precision not in ("fp32", "fp64"):
        raise UnsupportedError(f"{where}: cuBLAS runs it on tensor cores; cuda_cores cannot be had")
    precision_out = operator.precision_out or precision
    if precision_out not in WIDER_OUTPUTS.get(precision, (precision,)):
        raise UnsupportedError(f"{where}: no output in {precision_out}")
    batch, m, n, k = (int(size) for size in operator.shape)
    if max(batch, m, n, k) > LARGEST_DIMENSION:
        raise UnsupportedError(f"{where}: dimensions up to {LARGEST_DIMENSION}, got {max(batch, m, n, k)}")
    layout = layout_of(operator, transpose)
    return Product(batch=batch, m=m, n=n, k=k, layout=layout, precision=precision, precision_out=precision_out)


def reference_product(values: HostValues, layout: str) -> Array:
    """Expected result of a product, in float64 on the host; shape (batch, m, n)."""
    a, b = values.inputs
    left, right = np.swapaxes(a, 1, 2) if layout[1] == "t" else a, np.swapaxes(b, 1, 2) if layout[0] == "t" else b
    product: Array = left @ right
    return product

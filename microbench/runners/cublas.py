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

from estimator.vocabulary.work import operator_work
from estimator.vocabulary.workload import Operator
from microbench.errors import UnsupportedError
from microbench.layouts import layout_of, refuse
from microbench.runners.cupy_device import CupyDevice, device_failure
from microbench.runners.runner import BoundKernel, LibraryKernel

TYPES: Final = {"fp32": (0, 68), "tf32": (0, 77), "fp64": (1, 70), "fp16": (2, 68), "bf16": (14, 68)}
"""cudaDataType and cublasComputeType of a precision: accumulation in fp32 (68), on tensor cores with tf32 operands (77), in fp64 (70)."""

WORKSPACE_BYTES: Final = 32 << 20
"""Workspace that cuBLAS recommends for compute capability 9.0; we allocate it, so that graphs hold no allocations."""

STATUS: Final = {
    1: "not initialised",
    3: "allocation failed",
    7: "invalid value",
    8: "no kernel for this architecture",
    11: "no access to the memory",
    13: "execution failed",
    15: "not supported",
}
"""Name of a cublasStatus_t."""

LOST: Final = (1, 11, 13)
"""Statuses of a lost board; the others are failed kernels."""


@dataclass(frozen=True, slots=True)
class Cublas:
    """One cuBLAS handle on a device's stream; `open_cublas` makes it.  `library` is libcublas as ctypes loads it."""

    library: Any
    device: CupyDevice
    handle: ctypes.c_void_p

    def kernel(self, operator: Operator, compute_capability: float, transpose: str = "") -> LibraryKernel:
        """cuBLAS's kernel for a GEMM operator in a layout; the default is tn for linear layers, nn for products of activations.

        Raises UnsupportedError for a precision, a size, a layout or a combination that cuBLAS does not have here.
        """
        _check_product(operator, compute_capability)
        layout, device = layout_of(operator, transpose), self.device
        batch, m, n, k = (int(size) for size in operator.shape)
        stored_a, stored_b = (k, m) if layout[1] == "t" else (m, k), (n, k) if layout[0] == "t" else (k, n)

        def bind(buffer_sets: int, seed: int) -> BoundKernel:
            left = device.normal_sets(buffer_sets, (batch, *stored_a), operator.precision, seed)
            right = device.normal_sets(buffer_sets, (batch, *stored_b), operator.precision, seed + 1)
            results = device.empty_sets(buffer_sets, (batch, m, n), operator.out_precision)
            sets = list(zip(left, right, results, strict=True))
            launches = tuple(self._launch(operator, layout, *operands) for operands in sets)
            return BoundKernel(launches=launches, capture=device.capture, arrays=sets.__getitem__)

        return LibraryKernel(
            library="cublas",
            transpose=layout,
            working_set_bytes=int(sum(operator_work(operator)[1:])),
            scratch_bytes=WORKSPACE_BYTES,
            bind=bind,
        )

    def _launch(self, operator: Operator, layout: str, a: Any, b: Any, c: Any) -> Callable[[], None]:
        """The call for one set of operands."""
        batch, m, n, k = (int(size) for size in operator.shape)
        kind, compute = TYPES[operator.precision]
        scale = ctypes.c_double if operator.precision == "fp64" else ctypes.c_float
        transposed_b, lead_b = (1, k) if layout[0] == "t" else (0, n)
        transposed_a, lead_a = (1, m) if layout[1] == "t" else (0, k)
        batched = batch > 1
        operands = [
            (ctypes.c_void_p(int(array.data.ptr)), type_, lead, *([ctypes.c_longlong(stride)] if batched else []))
            for array, type_, lead, stride in (
                (b, kind, lead_b, n * k),
                (a, kind, lead_a, m * k),
                (c, TYPES[operator.out_precision][0], n, m * n),
            )
        ]
        arguments = (
            *(self.handle, transposed_b, transposed_a, n, m, k, ctypes.byref(scale(1.0))),
            *(*operands[0], *operands[1], ctypes.byref(scale(0.0)), *operands[2]),
            *([batch] if batched else []),
            *(compute, -1),  # cUBLAS_GEMM_DEFAULT: the library's own choice
        )
        function = self.library.cublasGemmStridedBatchedEx if batched else self.library.cublasGemmEx
        what = f"cuBLAS product {m}x{n}x{k} in {operator.precision}"

        def launch(_kept: tuple[Any, ...] = (a, b, c)) -> None:  # addresses do not keep memory alive
            check(function(*arguments), what)

        return launch


@contextmanager
def open_cublas(library: Any, device: CupyDevice) -> Iterator[Cublas]:
    """A handle on the device's stream with a workspace of its own; destroyed at the end.

    `library` is libcublas as loaded by ctypes, or its file.  Raises UnsupportedError if it cannot be loaded or initialised.
    """
    if isinstance(library, str):
        try:
            library = ctypes.CDLL(library)
        except OSError as error:
            raise UnsupportedError(f"{library} cannot be loaded: {error}") from error
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


def check(status: int, what: str) -> None:
    """Raise the error of a cuBLAS status."""
    if status:
        raise device_failure(status in LOST, f"{what}: {STATUS.get(status, f'status {status}')}")


def _check_product(operator: Operator, compute_capability: float) -> None:
    """Raise UnsupportedError for a product that cuBLAS does not support."""
    precision, precision_out = operator.precision, operator.out_precision
    least = 8.0 if precision in ("bf16", "tf32") else 0.0
    outputs = (precision, "fp32") if precision in ("fp16", "bf16") else (precision,)
    refuse(precision not in TYPES, operator, f"cublasGemmEx has {', '.join(TYPES)}")
    refuse(compute_capability < least, operator, f"needs compute capability {least:g}, this board has {compute_capability:g}")
    only_tensor = operator.cuda_cores and precision not in ("fp32", "fp64")
    refuse(only_tensor, operator, "cuBLAS runs it on tensor cores; cuda_cores cannot be had")
    refuse(precision_out not in outputs, operator, f"no output in {precision_out}")
    refuse(max(operator.shape) >= 2**31, operator, f"dimensions below 2^31, got {max(operator.shape):.0f}")

"""Kernels by CuPy, where PyTorch is not installed: element-wise work, reductions, copies, in fp16, fp32 and fp64."""

import math
from collections.abc import Callable
from typing import Any, Final, Protocol

from estimator.quantities import BYTES_PER_ELEMENT, Array
from estimator.workload import Operator
from microbench.errors import UnsupportedError
from microbench.runners.runner import BoundKernel, HostValues, Launch, LibraryKernel
from microbench.sizing import operator_bytes

PRECISIONS: Final = ("fp16", "fp32", "fp64")
SCALAR: Final = 1.5


class CupyOperands(Protocol):
    """The part of a CuPy device that these kernels need."""

    @property
    def module(self) -> Any:
        """The CuPy module."""

    def empty_sets(self, sets: int, elements: int, precision: str) -> list[Any]:
        """Pieces of uninitialised memory."""

    def normal_sets(self, sets: int, elements: int, precision: str, seed: int) -> list[Any]:
        """Pieces of random numbers."""

    def to_host(self, values: Any, precision: str) -> Array:
        """Numbers on the host."""

    def capture(self, work: Launch) -> Launch:
        """A graph of what `work` launches."""


Into = Callable[[Any, list[Any], Any], None]
"""Computes from the inputs into the output with the CuPy module."""

BINARY: Final[dict[str, Into]] = {
    "add": lambda cupy, inputs, out: cupy.add(*inputs, out=out),
    "mul": lambda cupy, inputs, out: cupy.multiply(*inputs, out=out),
    "div": lambda cupy, inputs, out: cupy.divide(*inputs, out=out),
}
UNARY: Final[dict[str, Into]] = {
    "scalar_add": lambda cupy, inputs, out: cupy.add(inputs[0], SCALAR, out=out),
    "scalar_mul": lambda cupy, inputs, out: cupy.multiply(inputs[0], SCALAR, out=out),
    "scalar_div": lambda cupy, inputs, out: cupy.divide(inputs[0], SCALAR, out=out),
    "relu": lambda cupy, inputs, out: cupy.maximum(inputs[0], 0, out=out),
    "tanh": lambda cupy, inputs, out: cupy.tanh(inputs[0], out=out),
    "exp": lambda cupy, inputs, out: cupy.exp(inputs[0], out=out),
}
REDUCTIONS: Final[dict[str, Into]] = {
    "sum": lambda cupy, inputs, out: inputs[0].sum(axis=-1, out=out),
    "mean": lambda cupy, inputs, out: inputs[0].mean(axis=-1, out=out),
    "max": lambda cupy, inputs, out: inputs[0].max(axis=-1, out=out),
}


def cupy_kernel(operator: Operator, device: CupyOperands) -> LibraryKernel:
    """CuPy's kernel for an operator.  Raises UnsupportedError where it has none; PyTorch has more."""
    where = f"{operator.family}.{operator.operator} in {operator.precision}"
    if operator.precision not in PRECISIONS or operator.precision_out not in ("", operator.precision):
        raise UnsupportedError(
            f"{where}: CuPy is used for {', '.join(PRECISIONS)} without conversion; pip install 'wattprint[torch]' for more"
        )
    shapes, out_elements, into = _describe(operator, where)
    precision = operator.precision

    def bind(buffer_sets: int, seed: int) -> BoundKernel:
        drawn = [
            [values.reshape(shape) for values in device.normal_sets(buffer_sets, math.prod(shape), precision, seed + i)]
            for i, shape in enumerate(shapes)
        ]
        outputs = device.empty_sets(buffer_sets, out_elements, precision)
        sets = [(list(inputs), out) for inputs, out in zip(zip(*drawn, strict=True), outputs, strict=True)]

        def launch_of(index: int) -> Launch:
            inputs, out = sets[index]
            return lambda: into(device.module, inputs, out)

        def host_values(index: int) -> HostValues:
            inputs, out = sets[index]
            return HostValues(inputs=tuple(device.to_host(values, precision) for values in inputs), output=device.to_host(out, precision))

        return BoundKernel(
            launches=tuple(launch_of(index) for index in range(buffer_sets)), capture=device.capture, host_values=host_values
        )

    return LibraryKernel(
        library="cupy",
        transpose="",
        working_set_bytes=max(1, int(operator_bytes(operator))),
        scratch_bytes=int(out_elements * BYTES_PER_ELEMENT[precision]),
        bind=bind,
    )


def _describe(operator: Operator, where: str) -> tuple[tuple[tuple[int, ...], ...], int, Into]:
    """Shapes of the inputs, elements of the output, and the computation."""
    name = operator.operator
    if operator.family == "reduction":
        rows, dim = (int(size) for size in operator.shape)
        return ((rows, dim),), rows, REDUCTIONS[name]
    if operator.family in ("elementwise", "copy"):
        elements, reads = int(operator["elements"]), int(operator["reads"])
        if operator.family == "elementwise" and name in BINARY and reads == 2 * elements:
            return ((elements,), (elements,)), elements, BINARY[name]
        if operator.family == "elementwise" and name in UNARY and reads == elements:
            return ((elements,),), elements, UNARY[name]
        if operator.family == "copy" and name in ("contiguous", "transpose") and reads == elements:
            rows = next(size for size in range(math.isqrt(elements), 0, -1) if elements % size == 0)
            return ((rows, elements // rows),), elements, _transposed
    raise UnsupportedError(f"{where}: CuPy has no single kernel for it; pip install 'wattprint[torch]'")


def _transposed(cupy: Any, inputs: list[Any], out: Any) -> None:
    """Writes the transpose of a matrix."""
    rows, columns = inputs[0].shape
    cupy.copyto(out.reshape(columns, rows), inputs[0].T)

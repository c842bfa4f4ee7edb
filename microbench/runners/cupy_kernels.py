"""Kernels by CuPy, where PyTorch is not installed: element-wise work, reductions, copies, in fp16, fp32 and fp64."""

import math
from collections.abc import Callable
from typing import Any, Final

from estimator.vocabulary.quantities import BYTES_PER_ELEMENT
from estimator.vocabulary.workload import Operator
from microbench.errors import UnsupportedError
from microbench.runners.cupy_device import CupyDevice
from microbench.runners.runner import BoundKernel, HostValues, Launch, LibraryKernel
from microbench.sizing import operator_bytes, output_elements

PRECISIONS: Final = ("fp16", "fp32", "fp64")
SCALAR: Final = 1.5

Into = Callable[..., None]
"""Computes with the CuPy module from the inputs into the output."""

BINARY: Final[dict[str, str]] = {"add": "add", "mul": "multiply", "div": "divide"}
UNARY: Final[dict[str, tuple[str, tuple[float, ...]]]] = {
    "scalar_add": ("add", (SCALAR,)),
    "scalar_mul": ("multiply", (SCALAR,)),
    "scalar_div": ("divide", (SCALAR,)),
    "relu": ("maximum", (0,)),
    "tanh": ("tanh", ()),
    "exp": ("exp", ()),
}
"""CuPy's function of an operator, with its further arguments."""


def cupy_kernel(operator: Operator, device: CupyDevice) -> LibraryKernel:
    """CuPy's kernel for an operator.  Raises UnsupportedError where it has none; PyTorch has more."""
    precision = operator.precision
    where = f"{operator.family}.{operator.operator} in {precision}"
    if precision not in PRECISIONS or operator.precision_out not in ("", precision):
        raise UnsupportedError(f"{where}: CuPy has {', '.join(PRECISIONS)} without conversion; pip install 'wattprint[torch]' for more")
    shapes, into = _describe(operator, device.module, where)
    elements = int(output_elements(operator))

    def bind(buffer_sets: int, seed: int) -> BoundKernel:
        drawn = [
            [values.reshape(shape) for values in device.normal_sets(buffer_sets, math.prod(shape), precision, seed + i)]
            for i, shape in enumerate(shapes)
        ]
        sets = list(zip(*drawn, device.empty_sets(buffer_sets, elements, precision), strict=True))

        def launch_of(index: int) -> Launch:
            return lambda: into(*sets[index])

        def host_values(index: int) -> HostValues:
            *inputs, output = (device.to_host(values, precision) for values in sets[index])
            return HostValues(inputs=tuple(inputs), output=output)

        return BoundKernel(launches=tuple(map(launch_of, range(buffer_sets))), capture=device.capture, host_values=host_values)

    return LibraryKernel(
        library="cupy",
        transpose="",
        working_set_bytes=max(1, int(operator_bytes(operator))),
        scratch_bytes=int(elements * BYTES_PER_ELEMENT[precision]),
        bind=bind,
    )


def _describe(operator: Operator, cupy: Any, where: str) -> tuple[tuple[tuple[int, ...], ...], Into]:
    """Shapes of the inputs, and the computation."""
    name = operator.operator
    if operator.family == "reduction":
        rows, dim = (int(size) for size in operator.shape)
        return ((rows, dim),), lambda x, out: getattr(x, name)(axis=-1, out=out)
    if operator.family in ("elementwise", "copy"):
        elements, reads = int(operator["elements"]), int(operator["reads"])
        if operator.family == "elementwise" and name in BINARY and reads == 2 * elements:
            return ((elements,), (elements,)), lambda x, y, out: getattr(cupy, BINARY[name])(x, y, out=out)
        if operator.family == "elementwise" and name in UNARY and reads == elements:
            function, more = UNARY[name]
            return ((elements,),), lambda x, out: getattr(cupy, function)(x, *more, out=out)
        if operator.family == "copy" and name in ("contiguous", "transpose") and reads == elements:
            rows = next(size for size in range(math.isqrt(elements), 0, -1) if elements % size == 0)
            return ((rows, elements // rows),), lambda x, out: cupy.copyto(out.reshape(elements // rows, rows), x.T)
    raise UnsupportedError(f"{where}: CuPy has no single kernel for it; pip install 'wattprint[torch]'")

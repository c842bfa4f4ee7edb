"""How the two inputs of a matrix product lie in memory, as cuBLAS names it.

The product is C[m, n] = A[m, k] · B[k, n], all of it row by row.  A layout is two letters, of B and then of A:

    tn   B stored as [n, k] (the weights of a linear layer), A as [m, k]
    nn   B stored as [k, n], A as [m, k]
    nt   B stored as [k, n], A as [k, m]
    tt   B stored as [n, k], A as [k, m]
"""

from typing import Final

from estimator.vocabulary.workload import Operator
from microbench.errors import UnsupportedError

LAYOUTS: Final = ("nn", "nt", "tn", "tt")

ONLY_TN: Final = frozenset({"fp8"})
"""Precisions that are multiplied in layout tn alone.  Source: cuBLAS manual, cublasLtMatmul, requirements of fp8 kernels; PyTorch,
torch._scaled_mm, which wants its second operand column by column."""


def natural_layout(operator: Operator) -> str:
    """The layout in which a framework computes a product: weights lie as [outputs, inputs], activations as they came; "" for no product."""
    if operator.family != "gemm":
        return ""
    return "tn" if operator.operator == "linear" or operator.precision in ONLY_TN else "nn"


def layout_of(operator: Operator, transpose: str) -> str:
    """The layout that an operator runs in where `transpose` is asked for, "" for the natural one.

    Raises UnsupportedError for a layout that is none, that this precision is not multiplied in, and for an operator that is no product.
    """
    where = f"{operator.family}.{operator.operator} in {operator.precision}"
    if not transpose:
        return natural_layout(operator)
    if operator.family != "gemm":
        raise UnsupportedError(f"{where}: has no layout {transpose!r}; matrix products alone have layouts")
    if transpose not in LAYOUTS:
        raise UnsupportedError(f"{where}: layout {transpose!r} is unknown; known: {', '.join(LAYOUTS)}")
    if operator.precision in ONLY_TN and transpose != "tn":
        raise UnsupportedError(f"{where}: is multiplied in layout tn alone, not in {transpose}")
    return transpose


def other_layout(operator: Operator, transpose: str) -> str:
    """A layout as something that tells a kernel from others: "" for the natural one, whether it was asked for or not."""
    return "" if transpose == natural_layout(operator) else transpose

"""Memory layouts of the two inputs of a matrix product, with cuBLAS's names.

The product is C[m, n] = A[m, k] · B[k, n], all row-major.  A layout has two letters, for B and then for A:

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
"""Precisions with layout tn only.  Source: cuBLAS manual, cublasLtMatmul, requirements of fp8 kernels; PyTorch, torch._scaled_mm, which
needs a column-major second operand."""


def natural_layout(operator: Operator) -> str:
    """The layout of a product in a framework: weights are [outputs, inputs], activations keep their order; "" for other operators."""
    if operator.family != "gemm":
        return ""
    return "tn" if operator.operator == "linear" or operator.precision in ONLY_TN else "nn"


def layout_of(operator: Operator, transpose: str) -> str:
    """The layout of an operator for a requested `transpose`; "" requests the natural one.

    Raises UnsupportedError for an unknown layout, a layout that this precision does not support, and an operator that is not a product.
    """
    if not transpose:
        return natural_layout(operator)
    refuse(operator.family != "gemm", operator, f"has no layout {transpose!r}; matrix products alone have layouts")
    refuse(transpose not in LAYOUTS, operator, f"layout {transpose!r} is unknown; known: {', '.join(LAYOUTS)}")
    refuse(operator.precision in ONLY_TN and transpose != "tn", operator, f"is multiplied in layout tn alone, not in {transpose}")
    return transpose


def refuse(broken: bool, operator: Operator, reason: str) -> None:
    """Raise UnsupportedError with the operator and the reason if a condition is broken."""
    if broken:
        raise UnsupportedError(f"{operator.family}.{operator.operator} in {operator.precision}: {reason}")


def other_layout(operator: Operator, transpose: str) -> str:
    """A layout as part of a kernel's identity: "" for the natural one, requested or not."""
    return "" if transpose == natural_layout(operator) else transpose

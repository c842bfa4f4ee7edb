"""Operators as the tracing rules make them: origin, launch share and precision of a product in one place."""

from typing import Final, NamedTuple

from estimator.forms.host_shares import LAYER, LIGHT
from estimator.quantities import BYTES_PER_ELEMENT
from estimator.tracing.calls import Call, Tensor
from estimator.workload import TRACED, Operator, make_operator

ON_CUDA_CORES: Final = frozenset({"fp32", "fp64"})
"""Precisions in which PyTorch multiplies matrices without tensor cores unless told otherwise."""


class Part(NamedTuple):
    """`times` times `operator`: what one call launches, or a part of it; `reads`: what of its `reads` each tensor is."""

    operator: Operator
    times: float = 1.0
    reads: tuple[float, ...] = ()


def product(name: str, precision: str, *, batch: int, m: int, n: int, k: int, out: str = "", origin: str = TRACED) -> Part:
    """A matrix product C[m, n] = A[m, k]·B[k, n], `batch` of them."""
    return Part(
        make_operator(
            "gemm",
            name,
            precision,
            batch=batch,
            m=m,
            n=n,
            k=k,
            precision_out="" if out == precision else out,
            cuda_cores=precision in ON_CUDA_CORES,
            host_share=LAYER,
            origin=origin,
        )
    )


def rows_of(
    family: str, name: str, precision: str, rows: float, dim: float, *, share: float = LAYER, out: str = "", origin: str = TRACED
) -> Part:
    """A softmax, a norm or a reduction over `rows` of `dim`."""
    precision_out = "" if out == precision else out
    return Part(make_operator(family, name, precision, rows=rows, dim=dim, precision_out=precision_out, host_share=share, origin=origin))


def moved(
    family: str,
    name: str,
    precision: str,
    elements: float,
    reads: float | tuple[float, ...],
    *,
    share: float = LIGHT,
    out: str = "",
    times: float = 1.0,
    origin: str = TRACED,
) -> Part:
    """An element-wise operator or a copy that writes `elements` and reads `reads` elements of `precision`, at least one.

    `reads`: all together, or of each tensor.
    """
    precision_out = "" if out == precision else out
    terms = reads if isinstance(reads, tuple) else (reads,)
    return Part(
        make_operator(
            family,
            name,
            precision,
            elements=elements,
            reads=max(sum(terms), 1.0),
            precision_out=precision_out,
            host_share=share,
            origin=origin,
        ),
        times,
        terms,
    )


def stored_bytes(tensors: tuple[Tensor, ...]) -> float:
    """Bytes that tensors occupy; what an expanded tensor repeats counts once."""
    return sum(tensor.stored * BYTES_PER_ELEMENT[tensor.precision] for tensor in tensors)


def read_elements(call: Call, precision: str) -> tuple[float, ...]:
    """What a call reads of each tensor, in elements of `precision`."""
    return tuple(stored_bytes((tensor,)) / BYTES_PER_ELEMENT[precision] for _, tensor in call.inputs)

"""Operators as the tracing rules make them, and the names of operations (`operations.toml`)."""

import tomllib
from pathlib import Path
from typing import Any, Final, NamedTuple

from estimator.tracing.calls import Call, Tensor
from estimator.transforms import LAYER, LIGHT
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT
from estimator.vocabulary.workload import TRACED, Operator, make_operator

OPERATIONS: Final[dict[str, dict[str, Any]]] = tomllib.loads(Path(__file__).with_name("operations.toml").read_text(encoding="utf-8"))

BACKWARD: Final = f"{TRACED}:backward"

ON_CUDA_CORES: Final = frozenset({"fp32", "fp64"})
"""Precisions in which PyTorch multiplies matrices without tensor cores unless told otherwise."""


class Part(NamedTuple):
    """`times` times `operator`: what one call launches, or a part of it."""

    operator: Operator
    times: float = 1.0


def part(
    kind: str, precision: str, *, out: str = "", share: float = LAYER, origin: str = TRACED, times: float = 1.0, **shape: float
) -> Part:
    """An operator `kind`, such as "gemm.linear", from the fields of its shape; out: precision of its result."""
    family, _, name = kind.partition(".")
    cuda_cores = family in ("gemm", "conv", "attention") and precision in ON_CUDA_CORES
    details = {"precision_out": "" if out == precision else out, "cuda_cores": cuda_cores, "host_share": share, "origin": origin}
    return Part(make_operator(family, name, precision, **shape, **details), times)  # type: ignore[arg-type]


def moved(kind: str, precision: str, elements: float, reads: float, *, share: float = LIGHT, **details: Any) -> Part:
    """An element-wise operator or a copy that writes `elements` and reads `reads` elements of `precision`, at least one."""
    return part(kind, precision, elements=elements, reads=max(reads, 1.0), share=share, **details)


def stored_bytes(*tensors: Tensor) -> float:
    """Bytes that tensors occupy; what an expanded tensor repeats counts once."""
    return sum(tensor.stored * BYTES_PER_ELEMENT[tensor.precision] for tensor in tensors)


def read_elements(call: Call, precision: str) -> float:
    """What a call reads, in elements of `precision`."""
    return stored_bytes(*(tensor for _, tensor in call.inputs)) / BYTES_PER_ELEMENT[precision]


def base_name(call: Call) -> str:
    """The operation's name without its library, the mark of one that works in place, and that of one on lists."""
    return call.name.removeprefix("aten.").removesuffix("_").removeprefix("_foreach_")

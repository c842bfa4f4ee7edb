"""Dispatched operations in plain terms (names, tensors, numbers), their names (`operations.toml`), and the operators made from them."""

import math
import tomllib
from dataclasses import field
from pathlib import Path
from typing import Any, Final, NamedTuple

from estimator.transforms import LAYER, LIGHT
from estimator.vocabulary.errors import WorkloadError
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT
from estimator.vocabulary.values import frozen
from estimator.vocabulary.workload import TRACED, Operator, make_operator

ATTENTION: Final = "wattprint.attention"
ATTENTION_BACKWARD: Final = "wattprint.attention_backward"
"""Names of fused attention and of its backward pass, which the tracer records as one call each; all others are the framework's."""

Numbers = tuple[tuple[str, tuple[int, ...]], ...]
"""Whole numbers by the name of their argument: one, or one for each axis."""


@frozen
class Tensor:
    """A tensor at the time of a call: sizes, strides [element], and the name of its type ("bfloat16")."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        """Number of elements of the shape."""
        return math.prod(self.shape)

    @property
    def stored(self) -> int:
        """Number of elements in memory: an expanded tensor (stride 0) repeats its elements."""
        return math.prod(size for size, stride in zip(self.shape, self.strides, strict=True) if stride or size == 0)

    @property
    def precision(self) -> str:
        """The precision's name.  Raises WorkloadError for a type without a precision."""
        known: dict[str, str] = OPERATIONS["precisions"]
        if self.dtype not in known:
            raise WorkloadError(f"tensors of type {self.dtype} cannot be described; known: {', '.join(known)}")
        return known[self.dtype]

    @property
    def innermost(self) -> int:
        """The axis whose neighbours are adjacent in memory; the last axis longer than 1 of several."""
        axes = [axis for axis, size in enumerate(self.shape) if size > 1]
        return min(axes, key=lambda axis: (self.strides[axis] or math.inf, -axis), default=0)


class Place(NamedTuple):
    """Where a tensor lies: the number of its storage, its start there [element], and the size of the storage [byte]."""

    number: int
    start: int
    storage_byte: int


@frozen
class Call:
    """One dispatched operation.

    `name` is the operation's without its overload ("aten.addmm"); `inputs` have the names of the operation's
    arguments, a list of tensors repeats its name; `numbers` are its arguments of whole numbers; `pointwise`: the framework declares
    that each output element depends only on input elements at its position; `read`, `written`: places of the inputs and outputs.
    """

    name: str
    inputs: tuple[tuple[str, Tensor], ...]
    outputs: tuple[Tensor, ...]
    numbers: Numbers = ()
    pointwise: bool = False
    read: tuple[Place, ...] = field(default=(), compare=False)
    written: tuple[Place, ...] = field(default=(), compare=False)

    @property
    def output(self) -> Tensor:
        """The first output."""
        return self.outputs[0]

    def tensor(self, name: str) -> Tensor:
        """The input of a name, the first member of a list.  Raises WorkloadError if it is not on the model's device."""
        found = self.tensors(name)
        if not found:
            raise WorkloadError(f"{self.name} has no {name} on the model's device: make it there (device=x.device)")
        return found[0]

    def tensors(self, name: str) -> tuple[Tensor, ...]:
        """All inputs of a name: the members of a list."""
        return tuple(tensor for key, tensor in self.inputs if key == name)

    def axes(self, name: str, *default: int) -> tuple[int, ...]:
        """The numbers of a name."""
        return dict(self.numbers).get(name, default)

    def number(self, name: str, default: int = 0) -> int:
        """The number of a name, the first of several."""
        return self.axes(name, default)[0]

    @property
    def largest(self) -> Tensor:
        """The input with most elements, the first of equals; the first output if there is no input."""
        tensors = [tensor for _, tensor in self.inputs] or list(self.outputs)
        return max(tensors, key=lambda tensor: tensor.elements)


# Operators ------------------------------------------------------------------------------------------------------------

OPERATIONS: Final[dict[str, dict[str, Any]]] = tomllib.loads(Path(__file__).with_name("operations.toml").read_text(encoding="utf-8"))

BACKWARD: Final = f"{TRACED}:backward"

ON_CUDA_CORES: Final = frozenset({"fp32", "fp64"})
"""Precisions in which PyTorch by default multiplies matrices without tensor cores."""


class Part(NamedTuple):
    """`times` times `operator`: the kernels of one call, or a part of them."""

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
    """Bytes that tensors occupy; repeated elements of an expanded tensor count once."""
    return sum(tensor.stored * BYTES_PER_ELEMENT[tensor.precision] for tensor in tensors)


def read_elements(call: Call, precision: str) -> float:
    """Data that a call reads, in elements of `precision`."""
    return stored_bytes(*(tensor for _, tensor in call.inputs)) / BYTES_PER_ELEMENT[precision]


def base_name(call: Call) -> str:
    """The operation's name without its library and without the marks of in-place operations and of operations on lists."""
    return call.name.removeprefix("aten.").removesuffix("_").removeprefix("_foreach_")

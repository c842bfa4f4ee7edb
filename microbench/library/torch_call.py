"""How PyTorch computes an operator: what is drawn, and the call on it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Call = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchCall:
    """How PyTorch computes an operator: `shapes` of the random inputs, each with its precision, and `call` on them.

    `prepare` turns the drawn inputs into what `call` takes (layouts, masks); `library` supplies the kernel, `transpose`
    is the layout of a product's inputs, `scratch_bytes` what it needs beyond operands and result.
    """

    shapes: tuple[tuple[tuple[int, ...], str], ...]
    call: Call
    prepare: Callable[[list[Any]], list[Any]] = lambda inputs: inputs
    library: str = "pytorch"
    transpose: str = ""
    scratch_bytes: int = 0

"""Element-wise work, copies, gathers, softmax, norms, reductions and optimizer steps from their calls."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from estimator.tracing import products
from estimator.tracing.calls import BACKWARD, OPERATIONS, Call, Part, Tensor, base_name, moved, part, read_elements, stored_bytes
from estimator.transforms import INNER, LAYER, LIGHT
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT
from estimator.vocabulary.workload import TRACED

Rule = Callable[[Call], list[Part]]

INSIDE: Final = frozenset({"neg"})
"""Element-wise operations inside another operation, like copies (the half that a rotary embedding rotates)."""

CHUNK_ELEMENTS: Final = 65536
LAUNCH_CHUNKS: Final = 320
LAUNCH_TENSORS: Final = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
"""Limits of one launch over a list of tensors: elements of a chunk, chunks, tensors by the number of joint lists.
Source: PyTorch, MultiTensorApply.cuh."""


def _name(call: Call, tensors: int) -> str:
    """Our name of an element-wise operation that reads `tensors` tensors."""
    name: str = OPERATIONS["pointwise"].get(base_name(call), "other")
    return f"elementwise.{OPERATIONS['with_a_number'].get(name, name) if tensors < 2 else name}"


def pointwise(call: Call, origin: str = TRACED) -> list[Part]:
    """An element-wise operation: reads all inputs, broadcast tensors once, and writes its results."""
    precision, results = call.largest.precision, call.outputs or (call.largest,)
    name = _name(call, sum(tensor.elements > 1 for _, tensor in call.inputs))
    share = INNER if base_name(call) in INSIDE else LIGHT
    out, reads = results[0].precision, read_elements(call, precision)
    return [moved(name, precision, stored_bytes(*results) / BYTES_PER_ELEMENT[out], reads, share=share, out=out, origin=origin)]


def _fill(call: Call) -> list[Part]:
    out = call.output
    return [moved("elementwise.other", out.precision, out.elements, 1.0)]


# Copies ---------------------------------------------------------------------------------------------------------------


def _copied(call: Call) -> list[Part]:
    """A conversion or a copy; into another order of elements it is a transposing copy.  One from the host has no source on the device."""
    target = call.output
    source = (*call.tensors("src"), *call.tensors("self"), target)[0]
    converts = source.dtype != target.dtype
    turned = len(source.shape) == len(target.shape) and source.stored == source.elements and source.innermost != target.innermost
    name = "elementwise.typecast" if converts else "copy.transpose" if turned else "copy.contiguous"
    out = target.precision if converts else ""
    return [moved(name, source.precision, target.elements, source.stored, share=INNER, out=out)]


def _assembled(kind: str, call: Call) -> list[Part]:
    """A tensor made of others, or of parts of them."""
    out, stored = call.output, sum(tensor.stored for _, tensor in call.inputs)
    return [moved(kind, out.precision, out.elements, min(stored, out.elements), share=INNER)]


def _placed(call: Call) -> list[Part]:
    """A tensor copied into a larger one, which is filled before: a padded one, the gradient of a slice."""
    out, copied = call.output, min(call.largest.stored, call.output.elements)
    copy = [moved("copy.contiguous", out.precision, copied, copied, share=INNER)] if copied else []  # a slice may be empty
    return [*_fill(call), *copy]


def _gather(call: Call) -> list[Part]:
    """A gather: reads as many elements as it writes, at most its table, and their indices."""
    out, table = call.output, call.inputs[0][1]
    return [moved("copy.gather", out.precision, out.elements, min(out.elements, table.stored) + _index_elements(call))]


def _index_elements(call: Call) -> float:
    """The indices of an operator, in elements of its output."""
    return stored_bytes(*call.tensors("indices"), *call.tensors("index")) / BYTES_PER_ELEMENT[call.output.precision]


def _embedding(call: Call) -> list[Part]:
    """Rows of a table, or sums over bags of them: reads every row that is asked for, and the indices."""
    out = call.output
    reads = call.tensor("indices").elements * out.shape[-1] + _index_elements(call)
    return [moved("copy.gather", out.precision, out.elements, reads, share=LAYER)]


def _scatter(call: Call) -> list[Part]:
    """A scatter of rows by indices; one that adds reads what is there, an out-of-place one first copies the whole tensor."""
    target = call.output
    rows = call.tensors(OPERATIONS["scatter"][base_name(call)]) or call.tensors("index")
    elements = max((tensor.elements for tensor in rows), default=target.elements)
    around = moved("copy.contiguous", target.precision, target.elements, target.elements, share=INNER)
    adds = "add" in call.name or call.number("accumulate", 0)
    reads = (2.0 if adds else 1.0) * elements + _index_elements(call)
    return [moved("copy.gather", target.precision, elements, reads), *([] if call.name.endswith("_") else [around])]


def _embedding_backward(call: Call) -> list[Part]:
    """Rows of the gradient, those of bags repeated, added into a table of zeros."""
    table = call.output
    elements = call.tensor("indices").elements * table.shape[-1]
    return [*_fill(call), moved("copy.gather", table.precision, elements, 2.0 * elements)]


# Rows -----------------------------------------------------------------------------------------------------------------


def _row_length(call: Call, tensor: Tensor) -> int:
    """Elements of a row: the length of the axis `dim`, by default the last."""
    return tensor.shape[call.number("dim", -1)] if tensor.shape else 1


def _over_rows(kind: str, call: Call, share: float = LAYER) -> list[Part]:
    """An operator on rows of the first input."""
    tensor = call.inputs[0][1]
    dim = math.prod(call.axes("normalized_shape", _row_length(call, tensor)))
    return [part(kind, tensor.precision, rows=tensor.elements // dim, dim=dim, share=share, out=call.output.precision)]


def _channel_norm(call: Call, share: float = LIGHT) -> list[Part]:
    """A scale and a shift for each channel, after the statistics of each group or, in training, of each channel."""
    tensor, trains = call.tensor("input"), call.number("training") or call.number("train")
    channels = tensor.shape[1]
    groups = call.number("N") * call.number("group")
    kind, rows = ("moments", groups) if groups else ("mean", channels * trains)
    gathered = [part(f"reduction.{kind}", tensor.precision, rows=rows, dim=tensor.elements // rows, share=INNER)] if rows else []
    return [*gathered, part("norm.batchnorm", tensor.precision, rows=tensor.elements // channels, dim=channels, share=share)]


def _norm_backward(call: Call) -> list[Part]:
    """The gradient of the input, from the gradient of the output and the input; sums over the rows for scale and shift."""
    gradient, tensor = call.tensor("grad_out"), call.tensor("input")
    dim = math.prod(call.axes("normalized_shape", *tensor.shape[1:2]))
    reads = gradient.elements + tensor.elements
    return [
        moved("elementwise.other", tensor.precision, tensor.elements, reads, share=LAYER, origin=BACKWARD),
        part("reduction.sum", tensor.precision, rows=2 * dim, dim=tensor.elements // dim, share=INNER, origin=BACKWARD),
    ]


def _reduction(kind: str, call: Call) -> list[Part]:
    tensor, out = call.largest, call.output
    rows = max(out.elements, 1)
    return [part(kind, tensor.precision, rows=rows, dim=max(tensor.elements // rows, 1), share=INNER, out=out.precision)]


def _sorted(call: Call) -> list[Part]:
    """A sort: copies values and numbers their positions; then sorts a short row at once, a longer one by a pass for each key byte."""
    tensor, places = call.tensor("self"), call.outputs[-1]
    width = BYTES_PER_ELEMENT[tensor.precision]
    pairs = tensor.elements + stored_bytes(places) / width
    # PyTorch sorts such rows within one block of threads.  Source: ATen, native/cuda/Sort.cpp.
    passes = 1.0 if _row_length(call, tensor) <= 4096 else width
    return [
        moved("copy.contiguous", tensor.precision, tensor.elements, tensor.stored),
        moved("elementwise.other", places.precision, places.elements, 1.0, share=INNER),
        moved("elementwise.other", tensor.precision, pairs, pairs, share=INNER, times=passes),
    ]


def _loss(call: Call) -> list[Part]:
    """A loss: one value selected from each row, and their mean."""
    return [part("reduction.mean", call.tensor("self").precision, rows=1, dim=max(call.tensor("target").elements, 1), share=LIGHT)]


def _loss_by_element(call: Call) -> list[Part]:
    """A loss of each element, and their mean if one number is asked for."""
    each = pointwise(replace(call, outputs=(call.largest,)))
    return each if call.output.shape else [*each, *_reduction("reduction.mean", call)]


# Lists of tensors -----------------------------------------------------------------------------------------------------


def over_lists(call: Call) -> list[Part]:
    """One operation on every tensor of a list (an optimizer's step), in as few launches as the framework needs."""
    lists = list(dict.fromkeys(name for name, _ in call.inputs))
    members = [tensor for tensor in call.tensors(lists[0]) if tensor.elements]
    total = sum(tensor.elements for tensor in members)
    if not total:
        return []
    precision = members[0].precision
    chunks = sum(math.ceil(tensor.elements / CHUNK_ELEMENTS) for tensor in members)
    most = LAUNCH_TENSORS[min(len(lists), max(LAUNCH_TENSORS))]
    launches = max(math.ceil(chunks / LAUNCH_CHUNKS), math.ceil(len(members) / most))
    elements = max(round(total / launches), 1)
    return [moved(_name(call, len(lists)), precision, elements, read_elements(call, precision) * elements / total, times=float(launches))]


RULES: Final[dict[str, Rule]] = {
    "silent": lambda _call: [],
    "fill": _fill,
    "copied": _copied,
    "contiguous": partial(_assembled, "copy.contiguous"),
    "placed": _placed,
    "cat": partial(_assembled, "copy.cat"),
    "gather": _gather,
    "embedding": _embedding,
    "embedding_bag": _embedding,
    "embedding_backward": _embedding_backward,
    "softmax": partial(_over_rows, "softmax.softmax"),
    "layernorm": partial(_over_rows, "norm.layernorm"),
    "rmsnorm": partial(_over_rows, "norm.rmsnorm"),
    "group_norm": partial(_channel_norm, share=LAYER),
    "batch_norm": _channel_norm,
    "norm_backward": _norm_backward,
    "ranked": partial(_over_rows, "reduction.max", share=LIGHT),
    "sorted": _sorted,
    "loss": _loss,
    "loss_by_element": _loss_by_element,
    "other": pointwise,
    "gradient": partial(pointwise, origin=BACKWARD),
    "grouped": products.grouped,
    "convolution": products.convolution,
    "convolution_backward": products.convolution_backward,
    "attention": products.attention,
    "attention_backward": products.attention_backward,
    **{kind: partial(_reduction, f"reduction.{kind}") for kind in ("sum", "mean", "max")},
}
"""Rules by the names that `operations.toml` gives them."""

RULE_OF: Final[dict[str, Rule]] = {
    **{name: RULES[rule] for rule, names in OPERATIONS["rules"].items() for name in names},
    **dict.fromkeys(OPERATIONS["linear"], products.linear),
    **dict.fromkeys(OPERATIONS["batched"], products.batched),
    **dict.fromkeys(OPERATIONS["scatter"], _scatter),
}


def rule_of(call: Call) -> Rule | None:
    """The rule for a call, None without a rule."""
    if "._foreach_" in call.name:
        return over_lists
    found = RULE_OF.get(base_name(call))
    return found or (pointwise if call.inputs and (call.pointwise or base_name(call) in OPERATIONS["pointwise"]) else None)

"""The runtime `compiled`: which calls of a trace one generated kernel computes, as PyTorch's compiler (Inductor) merges them.

Rules of `compiled-5`.  Element-wise operations, copies, gathers, norms, softmax and reductions merge with the operation that reads their
result; matrix products, convolutions, fused attention, sorts, scatters and optimizer steps stay as they are.  A merged kernel

    reads each tensor from outside once and writes each that is used outside once
    has tensors of which each larger one is a multiple of the smaller
    runs as a sum does if it holds a reduction and writes less than its largest input
    holds no two calls with another kernel between them that needs the first and is needed by the second

A backward pass computes again what a kernel of the forward pass alone needed, from the tensors that this read.

A convolution's bias is an element-wise operation of its own.
The trace knows which storage a call reads and writes, so that branches are told apart; an operator list does not, and is not compiled.
Each kernel costs the host one launch, as without CUDA graphs: that of the operations that stay, an element-wise one's of merged ones.

Published speed-ups (docs of Transformers 4, perf_torch_compile: four image models, fp32, PyTorch 2.0.1, 1, 4 and 16 images) err by 4.9 % on
an A100 (at most 24: ResNet, which that version kept channels first).  Forecasts err by 8.9 % on a V100 (at most 36) and 3.3 % on a T4.

Not modelled: products that merge with what follows (`max-autotune`).
Source of the rules: PyTorch, torch/_inductor (scheduler.py, lowering.py) and docs of torch.compile.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from estimator.tracing.calls import OPERATIONS, Call, Part, Place, Tensor, base_name, part, stored_bytes
from estimator.tracing.products import LOADED
from estimator.transforms import LIGHT
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT, SIXTEEN_BIT
from estimator.vocabulary.work import operator_work
from estimator.vocabulary.workload import TRACED

RULE_SET: Final = "compiled-5"
"""Name of these rules; its meaning never changes."""

MERGED: Final = frozenset({"elementwise", "copy", "norm", "reduction", "softmax"})
"""Families of operators that merge."""

APART: Final = frozenset(
    {*OPERATIONS["scatter"]}.union(*(OPERATIONS["rules"][rule] for rule in ("ranked", "sorted", "embedding_bag", "embedding_backward")))
)
"""Operations of these families that do not."""

OVERWRITING: Final = frozenset({"copy", "fill", "zero"})
"""Operations that write a tensor without reading it."""

GROUPED_LAST, OTHER_LAST = 1.358, 0.823
"""Time of convolutions with channels last over that with channels first by which the compiler decides.  Small and narrowing ones, which it
tells apart and in training keeps channels first, are taken as all others.  Source: torch/_inductor/graph.py, decide_layout_opt."""


INTENSE: Final = 128.0
"""Multiply-adds for each number moved from which the compiler pads a product: between half of an A100's ratio of rates, 100, and of an
H100's, 150 (assumed).  Source: pad_mm.py, is_mm_compute_bound."""

Parts = Sequence[Sequence[Part]]
"""The kernels of each call, as launched one by one."""
Views = dict[int, dict[int, float]]
"""Sizes of views [byte] by their storage and their start in it."""


@dataclass(slots=True, eq=False)
class _Kernel:
    """Calls that one kernel computes: their places in the trace, the kernels that it needs, its largest tensor [element]."""

    places: list[int]
    merges: bool
    needs: "set[_Kernel]" = field(default_factory=set)
    elements: int = 0
    into: "_Kernel | None" = None

    def found(self) -> "_Kernel":
        """The kernel that this one has become a part of, or itself."""
        kernel = self
        while kernel.into is not None:
            kernel = kernel.into
        return kernel


def without_biases(calls: Iterable[Call]) -> Iterator[Call]:
    """The calls with each convolution's bias added by a call of its own.  Source: torch/_inductor/kernel/conv.py, convolution."""
    for call in calls:
        biased = base_name(call) == "convolution" and len(call.inputs) > 2
        yield replace(call, inputs=call.inputs[:2], read=call.read[:2]) if biased else call
        if biased:
            inputs, read = (("self", call.output), *call.inputs[2:]), (*call.written, *call.read[2:])
            yield Call(name="aten.add", inputs=inputs, outputs=call.outputs, pointwise=True, read=read, written=call.written)


def compiled(calls: Sequence[Call], parts: Parts) -> list[Part]:
    """Kernels of a compiled model, in the order of their last calls; parts: the kernels of each call as launched one by one.

    Where convolutions are channels last, merged kernels write their images so; only those that the model is given are converted.
    """
    known, calls = {at.number for call in calls for at in call.read}, _kept(calls, parts)
    kernels, last, made = merged_calls(calls, parts), _channels_last(calls), {at.number for call in calls for at in call.written}
    readers: dict[int, set[int]] = {number: set() for number in known}
    for kernel, places in enumerate(kernels):
        for place in places:
            for at in calls[place].read:
                readers[at.number].add(kernel)
    found: list[Part] = []
    for kernel, places in enumerate(kernels):
        numbers = {at.number for place in places for at in calls[place].written}
        read_by_others = {number: bool(readers[number] - {kernel}) for number in numbers & readers.keys()}
        if len(places) > 1 or base_name(calls[places[0]]) in OPERATIONS["rules"]["placed"]:  # one kernel, which fills and copies
            found.append(_merged(places, read_by_others, calls, parts))
            continue
        own, read = parts[places[0]], calls[places[0]].read
        given = not read or read[0].number not in made  # then its conversion, which follows the convolution, stays
        left = (one for at, one in enumerate(own) if one.operator.operator != "layout" or not last or (given and at == 1))
        found += [launched for one in left for launched in _padded(one)]
    return found


def _padded(product: Part) -> list[Part]:
    """A product whose rows are no multiple of a load, with copies of operands that are padded to one, where it computes rather than moves.

    Source: torch/_inductor/fx_passes/pad_mm.py, which pads what its benchmark finds faster.
    """
    operator = product.operator
    if operator.family != "gemm" or operator.precision not in SIXTEEN_BIT:
        return [product]
    batch, m, n, k = operator.shape
    m8, n8, k8 = (float(math.ceil(size / LOADED) * LOADED) for size in (m, n, k))
    if m * n * k < INTENSE * (m * k + k * n + m * n):
        return [product]
    operands = [batch * size for size, own in ((m8 * k8, m * k), (k8 * n8, k * n)) if size > own]
    copies = [part("copy.contiguous", operator.precision, elements=size, reads=size, share=LIGHT, times=product.times) for size in operands]
    return [*copies, product._replace(operator=replace(operator, shape=(batch, m8, n8, k8)))]


def _kept(calls: Sequence[Call], parts: Parts) -> list[Call]:
    """The calls of a training step whose backward pass computes element-wise results again, if one kernel of the forward pass alone needs
    them: its merging calls read what that kernel read.  Source: torch/_functorch/partitioners.py (min_cut_…_partition).
    """
    start = next((place for place, call in enumerate(calls) if _begins_backward(call)), 0)
    own = {place: kernel for kernel, places in enumerate(merged_calls(calls[:start], parts[:start])) for place in places}
    merging = [0 < start <= place and _merges(call, parts[place]) for place, call in enumerate(calls)]
    readers: dict[int, set[int]] = {}
    for place, call in enumerate(calls):
        for at in () if merging[place] else call.read:
            readers.setdefault(at.number, set()).add(own.get(place, -1))
    again: dict[int, dict[Place, Tensor]] = {}

    def reads(call: Call) -> dict[Place, tuple[str, Tensor]]:
        given = zip(call.read, call.inputs, strict=True)
        return {origin: (name, one) for at, (name, tensor) in given for origin, one in again.get(at.number, {at: tensor}).items()}

    for place, call in enumerate(calls[:start]):
        needed = {origin: one for origin, (_, one) in reads(call).items()}
        repeats = place in own and all(one.operator.family in ("elementwise", "softmax") for one in parts[place])
        for at in call.written:
            again.pop(at.number, None)
            if repeats and all(one.number != at.number for one in needed) and readers.get(at.number, set()) <= {own[place]}:
                again[at.number] = needed
    return [
        replace(call, read=tuple(found), inputs=tuple(found.values())) if merges and (found := reads(call)) else call
        for call, merges in zip(calls, merging, strict=True)
    ]


def _channels_last(calls: Sequence[Call]) -> bool:
    """Whether the compiler lays out images channels last; those of a training step not with any grouped convolution."""
    longer, trained = 0.0, any(base_name(call) == "convolution_backward" for call in calls)
    for call in calls:
        if base_name(call) == "convolution":
            channels = call.tensor("weight").shape[1:]
            grouped = call.number("groups", 1) > 1 < channels[0]
            if grouped and trained:
                return False
            longer += ((GROUPED_LAST if grouped else OTHER_LAST) - 1.0) * call.output.elements * math.prod(channels)
    return longer <= 0.0


def merged_calls(calls: Sequence[Call], parts: Parts) -> list[list[int]]:
    """Places of the calls that each kernel computes, ascending; kernels in the order of their last calls, calls without parts left out."""
    return sorted((sorted(kernel.places) for kernel in _kernels(calls, parts) if kernel.into is None), key=lambda places: places[-1])


def _kernels(calls: Sequence[Call], parts: Parts) -> list[_Kernel]:
    """A kernel for each call with parts, merged ones pointing to what they are part of."""
    kernels: list[_Kernel] = []
    writer: dict[int, _Kernel] = {}
    for place, (call, own) in enumerate(zip(calls, parts, strict=True)):
        if _begins_backward(call):  # a graph of its own
            writer = {}
        if not own:  # launches nothing: its result, if any, is that of nobody
            continue
        merges = _merges(call, own)
        tensors = [tensor for _, tensor in call.inputs if own[0].operator.operator != "gather"]
        kernel = _Kernel(places=[place], merges=merges, elements=max((tensor.elements for tensor in (*call.outputs, *tensors)), default=1))
        kernel.needs = {writer[place.number].found() for place in call.read if place.number in writer}
        kernels.append(kernel)
        if merges:
            _join(kernel)
        writer |= {place.number: kernel for place in call.written}
    return kernels


def _begins_backward(call: Call) -> bool:
    """Whether a call makes the gradient of a loss, with which a backward pass begins."""
    return base_name(call) == "ones_like" and call.output.shape == ()


def _merges(call: Call, own: Sequence[Part]) -> bool:
    """Whether a call merges with others."""
    return base_name(call) not in APART and "_foreach_" not in call.name and all(one.operator.family in MERGED for one in own)


def _join(kernel: _Kernel) -> None:
    """Merge the kernels whose results this one reads into it, where nothing else stands between and their sizes agree."""
    for before in sorted(kernel.needs, key=lambda one: -max(one.places)):
        large, small = max(kernel.elements, before.elements), min(kernel.elements, before.elements)
        if before.merges and small and large % small == 0 and not _reached(before, kernel.needs - {before}):
            before.into = kernel
            kernel.places += before.places
            kernel.needs = {one.found() for one in kernel.needs | before.needs} - {kernel}
            kernel.elements = large


def _reached(target: _Kernel, kernels: Iterable[_Kernel]) -> bool:
    """Whether any of the kernels needs the target, directly or through others."""
    waiting, seen, first = [one.found() for one in kernels], set(), min(target.places)
    while waiting:
        one = waiting.pop()
        if one is target:
            return True
        if one not in seen and max(one.places) >= first:
            seen.add(one)
            waiting += [before.found() for before in one.needs]
    return False


def _merged(places: Sequence[int], read_by_others: Mapping[int, bool], calls: Sequence[Call], parts: Parts) -> Part:
    """One element-wise operator with the bytes that a merged kernel reads and writes; read_by_others: storages
    written here and read anywhere, and whether by another kernel.
    """
    inside: set[int] = set()
    results: set[int] = set()
    read: Views = {}
    written: Views = {}
    for place in places:
        call, own = calls[place], parts[place]
        if own[0].operator.operator == "gather":  # only some rows of its table
            read[-place - 1] = {0: sum(operator_work(one.operator).read_byte * one.times for one in own)}
        else:
            overwritten = "self" if base_name(call) in OVERWRITING else ""
            sources = zip(call.read, call.inputs, strict=True)
            _add(read, [(at, one) for at, (name, one) in sources if name != overwritten and at.number not in inside])
        inside.update(at.number for at in call.written)
        results.update(at.number for at in call.written[:1])
        _add(written, zip(call.written, call.outputs, strict=True))
    # Read by others; or by nobody, as a result of the model, not a norm's means that an inference drops.
    used = [number for number in written if read_by_others.get(number, number in results)]
    largest = max((one for place in places for _, one in calls[place].inputs), key=lambda tensor: tensor.elements)
    precision, width = largest.precision, BYTES_PER_ELEMENT[largest.precision]
    elements = sum(sum(written[number].values()) for number in used or written) / width
    reads = sum(sum(views.values()) for views in read.values()) / width
    rows, origin = max(round(elements), 1), f"{TRACED}:{RULE_SET}"
    pairs = (pair for place in places for pair in zip(calls[place].written, calls[place].outputs, strict=True))
    smaller = all(one.elements < largest.elements for at, one in pairs if at.number in used)
    if smaller and any(one.operator.family == "reduction" for place in places for one in parts[place]):
        return part("reduction.sum", precision, rows=rows, dim=max(round(reads / rows), 1), share=LIGHT, origin=origin)
    return part("elementwise.other", precision, elements=rows, reads=max(reads, 1.0), share=LIGHT, origin=origin)


def _add(views: Views, tensors: Iterable[tuple[Place, Tensor]]) -> None:
    """Add views of storages [byte] by their start: none twice, and of a storage at most its size."""
    for place, tensor in tensors:
        known = views.setdefault(place.number, {})
        rest = place.storage_byte - sum(size for start, size in known.items() if start != place.start)
        known[place.start] = max(known.get(place.start, 0.0), min(stored_bytes(tensor), rest))

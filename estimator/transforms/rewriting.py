"""A workload in another form: attention fused or written out, another precision.

These functions work on merged workloads from any file; shapes and the rule that added an operator identify attention.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Final, NamedTuple

from estimator.transforms import INNER, LIGHT
from estimator.vocabulary.errors import WorkloadError, require
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT, FORMATS, SIXTEEN_BIT, canonical_precision
from estimator.vocabulary.workload import (
    COMPLETED,
    CORRECTED,
    Footprint,
    Operator,
    Workload,
    is_of_convolution,
    main_precision,
    make_operator,
    merge_counts,
)

ATTENTION_FORMS: Final = ("eager", "flash")

REWRITTEN: Final = "rewritten:attention"
"""`Operator.origin` of operators that replace attention by its other form."""

COPY_RULES: Final = frozenset(f"{COMPLETED}{rule}" for rule in ("operand_copies", "context_copy", "repeat_kv"))
"""Copies that separate products need and a fused kernel does not."""

SCORE_RULES: Final = frozenset({f"{COMPLETED}causal_where", f"{CORRECTED}causal_where", f"{CORRECTED}broadcast_mask"})
"""Rules that correct operators on scores."""

SCALINGS: Final = ("scalar_pow", "scalar_mul", "scalar_div", "div", "other")
"""Element-wise operators that scale scores; at most one of them runs in each block."""

NARROW: Final = frozenset(name for name, one in FORMATS.items() if one.weight_byte < 2.0)
"""Precisions that only linear layers, convolutions and stored keys and values support."""


class Block(NamedTuple):
    """Attention written out in a merged workload: indices of its operators, and the number of such blocks."""

    score: int
    softmax: int
    product: int
    times: float


# Attention ------------------------------------------------------------------------------------------------------------


def with_attention(workload: Workload, form: str) -> Workload:
    """The workload with its attention as separate kernels ("eager") or as one kernel ("flash").

    Fusing removes the products, the scaling, masking, softmax and conversions of the scores, and the copies that
    separate products need.  The mask decides whether a fused kernel skips masked scores (a note reports it).
    Attention that already has the form does not change.

    Raises WorkloadError for an unknown form, and if there is no attention to fuse.
    """
    if form not in ATTENTION_FORMS:
        raise WorkloadError(f"unknown form of attention {form!r}; known: {', '.join(ATTENTION_FORMS)}")
    fused = any(operator.family == "attention" for operator in workload.operators)
    if form == "eager":
        return _written_out(workload) if fused else workload
    blocks = _blocks(workload)
    if not fused and not blocks:
        raise WorkloadError(f"{workload.name}: no attention to fuse: no softmax stands between two batched products of its shape")
    return _fused(workload, blocks) if blocks else workload


def _blocks(workload: Workload) -> list[Block]:
    """Softmaxes with the batched products before and after them, identified by their shapes."""
    products = [(i, operator.shape) for i, operator in enumerate(workload.operators) if operator.operator == "bmm"]
    blocks = []
    for i, operator in enumerate(workload.operators):
        if operator.family != "softmax":
            continue
        found = (
            Block(score, i, after, workload.counts[i])
            for score, (batch, queries, context, depth) in products
            if (batch * queries, context) == operator.shape
            for after, shape in products
            if shape == (batch, queries, depth, context)
        )
        blocks += [block for block in [next(found, None)] if block is not None]
    return blocks


def _fused(workload: Workload, blocks: list[Block]) -> Workload:
    counts = list(workload.counts)
    added: dict[Operator, float] = {}
    notes: dict[str, None] = {}
    for found in blocks:
        products = counts[found.score] / 2.0 if found.score == found.product else min(counts[found.score], counts[found.product])
        block = found._replace(times=min(products, counts[found.softmax]))
        mask = _mask_kind(workload, block)
        if mask:
            notes[f"attention fused, its mask taken as {mask}"] = None
        kernel = _fused_operator(workload, block, mask == "causal")
        added[kernel] = added.get(kernel, 0.0) + block.times
        for number, times in _parts(workload, block, counts):
            counts[number] -= times
    kept = [0.0 if operator.origin in COPY_RULES else count for operator, count in zip(workload.operators, counts, strict=True)]
    return _in_other_form(workload, (*workload.operators, *added), (*kept, *added.values()), tuple(notes))


def _fused_operator(workload: Workload, block: Block, causal: bool) -> Operator:
    score = workload.operators[block.score]
    batch, queries, context, head_dim = score.shape
    sequences, keys = sequences_of(workload.operators, score), batch * context * head_dim
    heads = batch / sequences
    repeats = (o.shape for o in workload.operators if o.origin == f"{COMPLETED}repeat_kv" and o.shape[0] == keys)
    return make_operator(
        "attention",
        "prefill" if queries > 1 else "decode",
        score.precision,
        batch=sequences,
        queries=queries,
        context=context,
        heads=heads,
        kv_heads=heads * next(repeats, (keys, keys))[1] / keys,
        head_dim=head_dim,
        window=0,
        causal=float(causal and queries > 1),
        cuda_cores=score.cuda_cores,
        origin=REWRITTEN,
    )


def sequences_of(operators: Sequence[Operator], score: Operator) -> float:
    """Sequences in a batch: tokens of a linear layer as wide as all heads over a sequence's length; 1 if no layer matches.

    score: the product of queries and keys, as a batched product.
    """
    batch, queries, context, head_dim = score.shape
    for operator in operators:
        for length in (queries, context) if operator.operator == "linear" else ():
            sequences, rest = divmod(operator["m"], length)
            if sequences and rest == batch % sequences == 0.0 and batch * head_dim / sequences in (operator["n"], operator["k"]):
                return sequences
    return 1.0


def _mask_kind(workload: Workload, block: Block) -> str:
    """The mask of the scores: "causal", "padding", or "" for no mask.

    A `where` is causal, and so is a divisor that is a tensor.  An added mask is an encoder's if the workload has a pooler
    (a square linear layer with one row a sequence), else causal.
    """
    size, score = prod(workload.operators[block.softmax].shape), workload.operators[block.score]
    sized = {(o.operator, o.origin) for o in workload.operators if o.family == "elementwise" and o.shape[0] == size}
    names, origins = {name for name, _ in sized}, {origin for _, origin in sized}
    if "where" in names or f"{CORRECTED}causal_where" in origins:
        return "causal"
    if "add" not in names:
        return "causal" if "other" in names else ""
    rows = sequences_of(workload.operators, score)
    pooler = any(o.operator == "linear" and o["m"] == rows < rows * score["m"] and o["n"] == o["k"] for o in workload.operators)
    return "padding" if pooler else "causal"


def _parts(workload: Workload, block: Block, counts: list[float]) -> Iterator[tuple[int, float]]:
    """Operators of the blocks and the number of runs of each in them.

    The number of equal-sized element-wise operators is limited to the number of blocks, with only one scaling: others
    of that size may belong to other layers.
    """
    operators, times = workload.operators, block.times
    score, softmax = operators[block.score], operators[block.softmax]
    size = prod(softmax.shape)
    sized = {i: o for i, o in enumerate(operators) if o.family == "elementwise" and o.shape[0] == size and counts[i] >= times}
    corrected = [i for i, operator in sized.items() if operator.origin in SCORE_RULES]
    listed = {i: operator.operator for i, operator in sized.items() if i not in corrected}

    def first(*names: str) -> list[int]:
        """The first listed operator, with names in order of preference."""
        return sorted((i for i, name in listed.items() if name in names), key=lambda i: names.index(listed[i]))[:1]

    taken = [block.score, block.softmax, block.product, *corrected]
    if not any(operators[i].operator == "scalar_div" for i in corrected):
        taken += first(*SCALINGS)
    if not corrected:
        taken += [*first("where"), *first("add")]
    if softmax.precision != score.precision:
        taken += [i for i, name in listed.items() if name == "typecast"]
    yield from ((number, times) for number in taken)
    batch, queries, context, head_dim = score.shape
    for number, operator in enumerate(operators):  # listed copies of the size of Q, K or V
        # Most copies of Q, K, V and of the result that separate products need.
        most = {"contiguous": 3.0, "transpose": 1.0}.get(operator.operator, 0.0)
        if most and operator.origin not in COPY_RULES and operator.shape[0] in (batch * queries * head_dim, batch * context * head_dim):
            yield number, min(counts[number], most * times)


def _written_out(workload: Workload) -> Workload:
    operators: list[Operator] = []
    counts: list[float] = []
    for operator, count in zip(workload.operators, workload.counts, strict=True):
        for part, times in _eager_parts(operator) if operator.family == "attention" else [(operator, 1.0)]:
            operators.append(part)
            counts.append(count * times)
    return _in_other_form(workload, operators, counts, ())


def _in_other_form(workload: Workload, operators: Sequence[Operator], counts: Sequence[float], notes: tuple[str, ...]) -> Workload:
    """The workload with other operators for its attention; the memory of its intermediate tensors is unknown then."""
    held = None if workload.footprint is None else replace(workload.footprint, passing_byte=0.0)
    merged, totals = merge_counts(operators, counts)
    return replace(workload, operators=merged, counts=totals, notes=(*workload.notes, *notes), footprint=held)


def _eager_parts(operator: Operator) -> Iterator[tuple[Operator, float]]:
    """Operators that replace one fused attention kernel; a window limits the context."""
    batch, queries, context, heads, kv_heads, head_dim, window, causal = operator.shape
    context = min(context, window) if window else context
    products, precision = batch * heads, operator.precision
    query_elements, key_elements, scores = (products * size for size in (queries * head_dim, context * head_dim, queries * context))

    def matrix(n: float, k: float) -> Operator:
        return make_operator(
            "gemm", "bmm", precision, batch=products, m=queries, n=n, k=k, cuda_cores=operator.cuda_cores, origin=REWRITTEN
        )

    def move(family: str, name: str, elements: float, reads: float | None = None) -> Operator:
        share = INNER if family == "copy" else LIGHT
        read = elements if reads is None else reads
        return make_operator(family, name, precision, elements=elements, reads=read, host_share=share, origin=REWRITTEN)

    if kv_heads < heads:
        yield move("copy", "contiguous", key_elements, key_elements * kv_heads / heads), 2.0
    if batch > 1:
        yield move("copy", "contiguous", query_elements), 1.0
        if kv_heads == heads:
            yield move("copy", "transpose", key_elements), 1.0
            yield move("copy", "contiguous", key_elements), 1.0
    yield matrix(context, head_dim), 1.0
    yield move("elementwise", "scalar_mul", scores), 1.0
    if causal:
        yield move("elementwise", "add", scores), 1.0
    yield make_operator("softmax", "softmax", precision, rows=products * queries, dim=context, origin=REWRITTEN), 1.0
    yield matrix(head_dim, context), 1.0
    yield move("copy", "contiguous", query_elements), 1.0


# Precision ------------------------------------------------------------------------------------------------------------


def checked_formats(workload: Workload) -> Workload:
    """The workload with notes on kernels of 32-bit numbers.  Raises WorkloadError for fused attention in fp64."""
    found = {(operator.family, operator.precision) for operator in workload.operators}
    if ("attention", "fp64") in found:
        raise WorkloadError(f"{workload.name}: no kernel fuses attention in fp64; choose --attention eager")
    return replace(workload, notes=(*workload.notes, *(note for note, kinds in WIDE_NOTES.items() if found & kinds)))


WIDE: Final = ("fp32", "tf32")
"""Precisions of operators on 32-bit tensors."""

WIDE_NOTES: Final = {
    "attention in fp32: PyTorch's memory-efficient kernel, taken as FlashAttention's blocks at the rate of fp32 or tf32": {
        ("attention", "fp32"), ("attention", "tf32"),
    },
    "convolutions of fp32 tensors in tf32, as PyTorch runs them from Ampere on (torch.backends.cudnn.allow_tf32)": {("conv", "tf32")},
}  # fmt: skip
"""Notes on workloads that have operators of these families and precisions."""


def with_precision(workload: Workload, precision: str, wide: Collection[tuple[int, ...]] | None = None) -> Workload:
    """The workload with the precision of most of its matrix products replaced by another.

    Operators in a third precision (a softmax in fp32) do not change, and a conversion without effect is removed.
    In fp32 and fp64 matrix products run on CUDA cores, but for convolutions, which PyTorch runs in tf32; tf32 uses tensor cores, and leaves
    all operators except matrix products in fp32.  Only linear layers and dense convolutions use 8-bit and 4-bit precisions;
    their results and all else are 16-bit, and where `wide` is given convolutions and layers of outputs and inputs (n, k) in it.  In fp64
    convolutions convert no layouts, in tf32 half of those in 16 bits.

    Raises WorkloadError for an unknown precision, and for a training step in 8 or 4 bits.
    """
    require(workload, Workload, "workload", "a Workload, as read_workload gives it")
    require(precision, str, "precision", "a text such as bf16")
    new = canonical_precision(precision)
    if new is None:
        raise WorkloadError(f"unknown precision {precision!r}; known: {', '.join(BYTES_PER_ELEMENT)}")
    old = main_precision(workload.operators, workload.counts)
    if new == old != "tf32":
        return workload
    if new in NARROW and workload.footprint is not None and workload.footprint.optimizer_byte:
        wide_ones = ", ".join(name for name in FORMATS if name not in NARROW)
        raise WorkloadError(f"{workload.name}: a training step in {new} is not modelled; choose one of {wide_ones}")
    if new in NARROW and BYTES_PER_ELEMENT[old] > 2.0:
        return with_precision(with_precision(workload, "bf16"), new, wide)
    operators: list[Operator] = []
    counts: list[float] = []
    for operator, count in zip(workload.operators, workload.counts, strict=True):
        stays = wide is not None and (operator.family == "conv" or (operator.operator == "linear" and operator.shape[2:] in wide))
        changed = operator if stays and new in NARROW else _recast(operator, old, new)
        if changed is not None:
            operators.append(changed)
            counts.append(count * _sides(changed) / _sides(operator))
    merged, totals = merge_counts(operators, counts)
    footprint = None if workload.footprint is None else _recast_footprint(workload.footprint, old, new)
    return replace(workload, operators=merged, counts=totals, footprint=footprint)


def widened(product: Operator, weight_byte: float) -> tuple[Operator, ...]:
    """A 16-bit product whose 4-bit weights, of `weight_byte` each, a kernel widens before it, or in registers for a single row."""
    if product["m"] == 1.0:
        return (replace(product, precision="int4_wo"),)
    size = product["n"] * product["k"]
    shape = (size, size * weight_byte / BYTES_PER_ELEMENT[product.precision])
    return replace(product, family="elementwise", operator="other", shape=shape), product


def _recast_footprint(held: Footprint, old: str, new: str) -> Footprint:
    """Least memory of the model: narrow precisions apply only to the layers' operands; memory in a third precision is unknown."""
    ratio = BYTES_PER_ELEMENT[new] / BYTES_PER_ELEMENT[old]
    weights = FORMATS[new].weight_byte / FORMATS[old].weight_byte
    return Footprint(
        weights_byte=held.weights_byte * weights,
        optimizer_byte=held.optimizer_byte * weights,
        cache_byte=held.cache_byte * (1.0 if new in NARROW else ratio),
        passing_byte=held.passing_byte * min(ratio, 1.0),
    )


def _sides(operator: Operator) -> float:
    """Sides of a convolution whose layouts are converted: image and result in 16 bits, in tf32 the image alone, here as large; else 1."""
    return 2.0 if operator.operator == "layout" and operator.precision in SIXTEEN_BIT else 1.0


def _recast(operator: Operator, old: str, new: str) -> Operator | None:
    """The operator in the new precision, None if it becomes unnecessary."""
    layer, before = operator.operator in ("linear", "conv2d"), WIDE if old in WIDE else (old,)
    if new in NARROW:
        if layer and operator.precision in before:
            return replace(operator, precision=new, precision_out=operator.precision_out or (old if old in SIXTEEN_BIT else "bf16"))
        return operator
    turned = operator.operator == "layout"
    products = turned or operator.family in ("gemm", "conv", "attention")
    if turned and new not in (*SIXTEEN_BIT, *WIDE):
        return None
    plain = "fp32" if new == "tf32" else new
    product = "tf32" if new == "fp32" and is_of_convolution(operator) else new

    def other(name: str) -> str:
        return (product if products else plain) if name in before else name

    changed = replace(
        operator,
        precision=other(operator.precision),
        precision_out=plain if operator.precision_out in before else operator.precision_out,
        precision_kv=other(operator.precision_kv),
        cuda_cores=product in ("fp32", "fp64") if products and operator.precision in before else operator.cuda_cores,
    )
    if changed.operator == "typecast" and changed.precision_out in ("", changed.precision):
        return None
    return changed

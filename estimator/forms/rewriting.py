"""A workload in another form: attention fused or written out, another precision.

These work on merged workloads, whatever file they came from; what belongs to attention is told by shapes and by the
rule that added it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from estimator.errors import WorkloadError
from estimator.forms.footprints import footprint_in_other_form, recast_footprint
from estimator.forms.host_shares import INNER, LIGHT
from estimator.forms.stored_growth import without_growth
from estimator.quantities import BYTES_PER_ELEMENT, canonical_precision
from estimator.workload import COMPLETED, CORRECTED, Operator, Workload, make_operator, merge_counts

ATTENTION_FORMS: Final = ("eager", "flash")

REWRITTEN: Final = "rewritten:attention"
"""`Operator.origin` of what takes the place of attention in its other form."""

COPY_RULES: Final = frozenset(f"{COMPLETED}{rule}" for rule in ("operand_copies", "context_copy", "repeat_kv"))
"""Copies that separate products need and a fused kernel does not."""

WHERE: Final = f"{COMPLETED}causal_where"
MASK: Final = f"{CORRECTED}broadcast_mask"

COPIES_IN_A_BLOCK: Final = {"contiguous": 3.0, "transpose": 1.0}
"""Most copies of Q, K, V and of the result that separate products need."""

SCALINGS: Final = ("scalar_pow", "scalar_mul", "scalar_div", "div", "other")
"""Element-wise operators that scale scores; one of them runs in each block, or none."""

SIXTEEN_BIT: Final = frozenset({"bf16", "fp16"})
NARROW: Final = frozenset({"fp8", "int8", "nvfp4"})
"""Precisions that only linear layers, convolutions and stored keys and values take."""


WRITTEN_OUT: Final = "attention written out in one precision; models that convert scores to fp32 and back (Llama, OPT) take longer"
"""What a workload says whose attention was fused: how a model writes it out is not known from that."""


class Block(NamedTuple):
    """Attention written out in a merged workload: indices of its operators, and how many such blocks there are."""

    score: int
    softmax: int
    product: int
    times: float


# Attention ------------------------------------------------------------------------------------------------------------


def with_attention(workload: Workload, form: str, causal: bool | None = None) -> Workload:
    """The workload with its attention as separate kernels ("eager") or as one kernel ("flash").

    Fusing takes away the products, the scaling, masking, softmax and conversions of the scores, and the copies that
    separate products need.  `causal` says whether a fused kernel leaves masked scores out; None decides by the mask
    (a note says how).  Attention that has the form already stays.

    Raises WorkloadError for an unknown form, and where there is no attention that could be fused.
    """
    if form not in ATTENTION_FORMS:
        raise WorkloadError(f"unknown form of attention {form!r}; known: {', '.join(ATTENTION_FORMS)}")
    plain = without_growth(workload)  # what takes the place of attention states none
    fused = [operator for operator in plain.operators if operator.family == "attention"]
    blocks = _blocks(plain)
    if form == "flash" and not fused and not blocks:
        raise WorkloadError(f"{workload.name}: no attention to fuse: no softmax stands between two batched products of its shape")
    if form == "flash":
        return _fused(plain, blocks, causal) if blocks else workload
    return _written_out(plain) if fused else workload


def _blocks(workload: Workload) -> list[Block]:
    """Softmaxes with the batched products before and after them, told by their shapes."""
    products = [(i, o.shape) for i, o in enumerate(workload.operators) if o.family == "gemm" and o.operator == "bmm"]
    blocks = []
    for i, operator in enumerate(workload.operators):
        if operator.family != "softmax":
            continue
        rows, dim = operator.shape
        for score, (batch, queries, context, depth) in products:
            if (batch * queries, context) != (rows, dim):
                continue
            wanted = (batch, queries, depth, context)
            after = next((number for number, shape in products if shape == wanted and (number != score or depth == context)), None)
            if after is not None:
                blocks.append(Block(score, i, after, workload.counts[i]))
                break
    return blocks


def _fused(workload: Workload, blocks: list[Block], causal: bool | None) -> Workload:
    counts = list(workload.counts)
    added: list[tuple[Operator, float]] = []
    notes: list[str] = []
    for found in blocks:
        block = found._replace(times=_complete_blocks(found, counts))
        if block.times <= 0.0:
            continue
        mask = _mask_kind(workload, block)
        is_causal = mask == "causal" if causal is None else causal
        if causal is None and mask:
            notes.append(f"attention fused, its mask taken as {mask}")
        added.append((_fused_operator(workload, block, is_causal), block.times))
        for number, times in _parts(workload, block, counts):
            counts[number] -= times
    for number, operator in enumerate(workload.operators):
        if operator.origin in COPY_RULES:
            counts[number] = 0.0
    operators, totals = merge_counts((*workload.operators, *(operator for operator, _ in added)), (*counts, *(times for _, times in added)))
    footprint = footprint_in_other_form(workload.footprint)
    return replace(workload, operators=operators, counts=totals, notes=(*workload.notes, *dict.fromkeys(notes)), footprint=footprint)


def _complete_blocks(block: Block, counts: list[float]) -> float:
    """Blocks for which all three operators are there."""
    products = counts[block.score] / 2.0 if block.score == block.product else min(counts[block.score], counts[block.product])
    return min(products, counts[block.softmax])


def _fused_operator(workload: Workload, block: Block, causal: bool) -> Operator:
    score = workload.operators[block.score]
    batch, queries, context, head_dim = score.shape
    sequences = _sequences(workload, score)
    heads = batch / sequences
    return make_operator(
        "attention",
        "prefill" if queries > 1 else "decode",
        score.precision,
        batch=sequences,
        queries=queries,
        context=context,
        heads=heads,
        kv_heads=_kv_heads(workload, score, heads),
        head_dim=head_dim,
        window=0,
        causal=float(causal and queries > 1),
        cuda_cores=score.cuda_cores,
        origin=REWRITTEN,
    )


def _sequences(workload: Workload, score: Operator) -> float:
    """Sequences at once: tokens of a linear layer as wide as all heads over a sequence's length; 1 where none fits."""
    batch, queries, context, head_dim = score.shape
    for operator in workload.operators:
        if operator.operator == "linear":
            for length in (queries, context):
                sequences, rest = divmod(operator["m"], length)
                width = batch * head_dim / sequences if sequences else 0.0
                if rest == 0.0 and width in (operator["n"], operator["k"]) and batch % sequences == 0.0:
                    return sequences
    return 1.0


def _kv_heads(workload: Workload, score: Operator, heads: float) -> float:
    """Heads of keys and values, from the copies that repeat them or from a linear layer that makes them."""
    batch, _, context, head_dim = score.shape
    keys = batch * context * head_dim
    for operator in workload.operators:
        if operator.origin == f"{COMPLETED}repeat_kv" and operator.shape[0] == keys:
            return heads * operator.shape[1] / keys
    return heads


def _mask_kind(workload: Workload, block: Block) -> str:
    """What masks the scores: "causal", "padding", or "" for nothing.

    A `where` is causal, and so is a divisor that is a tensor.  An added mask is that of an encoder where the workload
    ends with a pooler (a tanh after a linear layer with one row a sequence), else causal.
    """
    rows, dim = workload.operators[block.softmax].shape
    sized = [operator for operator in workload.operators if operator.family == "elementwise" and operator.shape[0] == rows * dim]
    added = any(operator.operator == "add" for operator in sized)
    if any(operator.operator == "where" or operator.origin == f"{CORRECTED}causal_where" for operator in sized):
        return "causal"
    if not added:
        return "causal" if any(operator.operator == "other" for operator in sized) else ""
    score = workload.operators[block.score]
    pooled = _sequences(workload, score)
    pooler = any(o.operator == "linear" and o["m"] == pooled < pooled * score["m"] and o["n"] == o["k"] for o in workload.operators)
    tanh = any(o.operator == "tanh" and o.shape[0] < rows * dim for o in workload.operators)
    return "padding" if pooler and tanh else "causal"


def _parts(workload: Workload, block: Block, counts: list[float]) -> Iterator[tuple[int, float]]:
    """Operators of the blocks and how often each runs in them.

    Of equal-sized element-wise operators only as many are taken as there are blocks, and only one scaling: others of
    that size may belong to other layers.
    """
    rows, dim = workload.operators[block.softmax].shape
    for number in (block.score, block.softmax, block.product):
        yield number, block.times
    sized = [
        (number, operator)
        for number, operator in enumerate(workload.operators)
        if operator.family == "elementwise" and operator.shape[0] == rows * dim and counts[number] >= block.times
    ]
    corrected = [number for number, operator in sized if operator.origin in (WHERE, MASK, f"{CORRECTED}causal_where")]
    for number in corrected:
        yield number, block.times
    listed = [(number, operator) for number, operator in sized if number not in corrected]
    if not any(workload.operators[number].operator == "scalar_div" for number in corrected):
        yield from _first(listed, SCALINGS, block.times)
    if not corrected:
        yield from _first(listed, ("where",), block.times)
        yield from _first(listed, ("add",), block.times)
    if workload.operators[block.softmax].precision != workload.operators[block.score].precision:
        for number, operator in listed:
            if operator.operator == "typecast":
                yield number, block.times
    yield from _listed_copies(workload, block, counts)


def _listed_copies(workload: Workload, block: Block, counts: list[float]) -> Iterator[tuple[int, float]]:
    """Copies of the size of Q, K or V that a list states itself."""
    batch, queries, context, head_dim = workload.operators[block.score].shape
    sizes = (batch * queries * head_dim, batch * context * head_dim)
    for number, operator in enumerate(workload.operators):
        most = COPIES_IN_A_BLOCK.get(operator.operator, 0.0) if operator.family == "copy" else 0.0
        if most and operator.origin not in COPY_RULES and operator.shape[0] in sizes:
            yield number, min(counts[number], most * block.times)


def _first(candidates: Iterable[tuple[int, Operator]], names: tuple[str, ...], times: float) -> Iterator[tuple[int, float]]:
    """The first candidate with one of `names`, names in order of preference."""
    found = [(names.index(operator.operator), number) for number, operator in candidates if operator.operator in names]
    if found:
        yield min(found)[1], times


def _written_out(workload: Workload) -> Workload:
    operators: list[Operator] = []
    counts: list[float] = []
    for operator, count in zip(workload.operators, workload.counts, strict=True):
        for part, times in _eager_parts(operator) if operator.family == "attention" else [(operator, 1.0)]:
            operators.append(part)
            counts.append(count * times)
    merged, totals = merge_counts(operators, counts)
    notes = (*workload.notes, WRITTEN_OUT)
    return replace(workload, operators=merged, counts=totals, notes=notes, footprint=footprint_in_other_form(workload.footprint))


def _eager_parts(operator: Operator) -> Iterator[tuple[Operator, float]]:
    """What runs instead of one fused attention kernel; a window limits the context."""
    batch, queries, context, heads, kv_heads, head_dim, window, causal = operator.shape
    context = min(context, window) if window else context
    products, precision = batch * heads, operator.precision
    query_elements, key_elements, scores = (products * size for size in (queries * head_dim, context * head_dim, queries * context))

    def matrix(n: float, k: float) -> Operator:
        return make_operator(
            "gemm", "bmm", precision, batch=products, m=queries, n=n, k=k, cuda_cores=operator.cuda_cores, origin=REWRITTEN
        )

    def move(family: str, name: str, elements: float, reads: float, share: float) -> Operator:
        return make_operator(family, name, precision, elements=elements, reads=reads, host_share=share, origin=REWRITTEN)

    if kv_heads < heads:
        yield move("copy", "contiguous", key_elements, key_elements * kv_heads / heads, INNER), 2.0
    if batch > 1:
        yield move("copy", "contiguous", query_elements, query_elements, INNER), 1.0
        if kv_heads == heads:
            yield move("copy", "transpose", key_elements, key_elements, INNER), 1.0
            yield move("copy", "contiguous", key_elements, key_elements, INNER), 1.0
    yield matrix(context, head_dim), 1.0
    yield move("elementwise", "scalar_mul", scores, scores, LIGHT), 1.0
    if causal:
        yield move("elementwise", "add", scores, scores, LIGHT), 1.0
    yield make_operator("softmax", "softmax", precision, rows=products * queries, dim=context, origin=REWRITTEN), 1.0
    yield matrix(head_dim, context), 1.0
    yield move("copy", "contiguous", query_elements, query_elements, INNER), 1.0


# Precision ------------------------------------------------------------------------------------------------------------


def with_precision(workload: Workload, precision: str) -> Workload:
    """The workload computed in another precision than that of most of its matrix products.

    What runs in a third precision on purpose (a softmax in fp32) stays, and a conversion that changes nothing falls out.
    In fp32 and fp64 matrix products run on CUDA cores, as PyTorch does by default; tf32 asks for tensor cores, and
    leaves everything but matrix products in fp32.  8-bit and 4-bit precisions are taken by linear layers and dense
    convolutions alone, whose results and all else stay 16-bit.  Layout conversions of 16-bit convolutions go with them.

    Raises WorkloadError for an unknown precision.
    """
    new = canonical_precision(precision)
    if new is None:
        raise WorkloadError(f"unknown precision {precision!r}; known: {', '.join(BYTES_PER_ELEMENT)}")
    old = _main_precision(workload)
    if new == old:
        return workload
    operators: list[Operator] = []
    counts: list[float] = []
    for operator, count in zip(workload.operators, workload.counts, strict=True):
        changed = _recast(operator, old, new)
        if changed is not None:
            operators.append(changed)
            counts.append(count)
    merged, totals = merge_counts(operators, counts)
    notes = (*workload.notes, f"computed in {new} instead of {old}")
    footprint = recast_footprint(workload.footprint, old, new, layers_alone=new in NARROW)
    return replace(workload, operators=merged, counts=totals, notes=notes, footprint=footprint)


def _main_precision(workload: Workload) -> str:
    """The precision of most matrix products, or of most operators where there are none."""
    tally: dict[tuple[bool, str], float] = {}
    for operator, count in zip(workload.operators, workload.counts, strict=True):
        key = (operator.family in ("gemm", "conv", "attention"), operator.precision)
        tally[key] = tally.get(key, 0.0) + count
    return max(tally, key=lambda key: (key[0], tally[key]), default=(False, ""))[1]


def _recast(operator: Operator, old: str, new: str) -> Operator | None:
    """The operator in the new precision, None where it has nothing left to do."""
    layer = operator.operator in ("linear", "conv2d")
    if new in NARROW:
        if layer and operator.precision == old:
            return replace(operator, precision=new, precision_out=operator.precision_out or (old if old in SIXTEEN_BIT else "bf16"))
        return operator
    products = operator.family in ("gemm", "conv", "attention")
    if operator.operator == "layout" and new not in SIXTEEN_BIT:
        return None
    plain = "fp32" if new == "tf32" else new

    def other(name: str) -> str:
        return (new if products else plain) if name == old else name

    changed = replace(
        operator,
        precision=other(operator.precision),
        precision_out=plain if operator.precision_out == old else operator.precision_out,
        precision_kv=other(operator.precision_kv),
        cuda_cores=new in ("fp32", "fp64") if products and operator.precision == old else operator.cuda_cores,
    )
    if changed.operator == "typecast" and changed.precision_out in ("", changed.precision):
        return None
    return changed

"""Completion rules for attention as eager PyTorch runs it.

Q, K and V are transposed views [sequence, head, token, dim].  `torch.matmul` flattens the two leading axes; where
there is more than one sequence that needs a copy.  Source of the copies and of their host shares: whole-model
measurements of BERT, GPT-2 and OPT on A100 and A10 (docs/workload-format.md).
"""

from collections.abc import Iterator

from estimator.completion.changes import Change, moved, with_reads
from estimator.completion.patterns import NOTHING, AttentionBlock, Patterns
from estimator.forms.host_shares import INNER, LAYER
from estimator.workload import COMPLETED


def operand_copies(patterns: Patterns) -> Iterator[Change]:
    """More than one sequence: Q, K (transposing) and V are copied before their products.

    Keys and values that `repeat_kv` has just written are contiguous already.
    """
    origin = f"{COMPLETED}operand_copies"
    for block in _eager_blocks(patterns):
        if block.sequences < 2:
            continue
        keys, queries = block.key_elements, block.query_elements
        yield Change(moved("copy", "contiguous", block.precision, queries, queries, origin, INNER), block.count)
        if block.kv_heads == block.heads:
            yield Change(moved("copy", "transpose", block.precision, keys, keys, origin, INNER), block.count)
            yield Change(moved("copy", "contiguous", block.precision, keys, keys, origin, INNER), block.count)


def context_copy(patterns: Patterns) -> Iterator[Change]:
    """The result of scores·V is brought from [head, token] back to [token, head] order."""
    origin = f"{COMPLETED}context_copy"
    for block in _eager_blocks(patterns):
        size = block.query_elements
        yield Change(moved("copy", "contiguous", block.precision, size, size, origin, INNER), block.count)


def causal_where(patterns: Patterns) -> Iterator[Change]:
    """Scores divided by a tensor and no mask added (GPT-2): the divisor is a scalar, and a `where` masks the scores."""
    for block in _eager_blocks(patterns):
        size = block.score_elements
        divisors = [number for number in block.between if _is_full(patterns, number, "other", size)]
        if len(divisors) != 1 or any(_is_full(patterns, number, "add", size) for number in block.between):
            continue
        divisor = patterns.operators[divisors[0]]
        yield Change(with_reads(divisor, size, "causal_where", "scalar_div"), block.count, divisors[0])
        origin = f"{COMPLETED}causal_where"
        yield Change(moved("elementwise", "where", divisor.precision, size, size, origin, LAYER), block.count)


def broadcast_mask(patterns: Patterns) -> Iterator[Change]:
    """An addition between the scores and their softmax adds a mask that all heads share: one large input, not two."""
    for block in _eager_blocks(patterns):
        size = block.score_elements
        for number in block.between:
            if _is_full(patterns, number, "add", size):
                yield Change(with_reads(patterns.operators[number], size, "broadcast_mask"), block.count, number)


def repeat_kv(patterns: Patterns) -> Iterator[Change]:
    """Fewer heads of keys and values than of queries: both are written out at the full number of heads."""
    origin = f"{COMPLETED}repeat_kv"
    for block in patterns.attention:
        if block.kv_heads == block.heads:
            continue
        reads = block.key_elements * block.kv_heads / block.heads
        yield Change(moved("copy", "contiguous", block.precision, block.key_elements, reads, origin, INNER), 2.0 * block.count)


def rotary(patterns: Patterns) -> Iterator[Change]:
    """Rotary position embedding, listed as two multiplications and an addition for Q and for K.

    Each also negates half of its tensor and concatenates the halves; the factors (cosine, sine) are shared by all heads.
    """
    origin = f"{COMPLETED}rotary"
    for block in patterns.attention:
        tokens = block.sequences * block.queries
        for first, second, third in zip(block.before, block.before[1:], block.before[2:], strict=False):
            factors, total = (patterns.operators[first], patterns.operators[second]), patterns.operators[third]
            size = total.shape[0]
            if total.operator != "add" or any(factor.operator != "mul" or factor.shape[0] != size for factor in factors):
                continue
            precision = total.precision
            for number, factor in ((first, factors[0]), (second, factors[1])):
                yield Change(with_reads(factor, size + tokens * block.head_dim, "rotary"), block.count, number)
            yield Change(moved("elementwise", "scalar_mul", precision, size / 2.0, size / 2.0, origin, INNER), block.count)
            yield Change(moved("copy", "cat", precision, size, size, origin, INNER), block.count)


def _eager_blocks(patterns: Patterns) -> Iterator[AttentionBlock]:
    return (block for block in patterns.attention if block.score != NOTHING)


def _is_full(patterns: Patterns, number: int, name: str, size: float) -> bool:
    """Whether an operator has a name, writes `size` elements and reads two tensors of that size."""
    operator = patterns.operators[number]
    return operator.operator == name and operator.shape == (size, 2.0 * size)

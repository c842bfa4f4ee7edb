"""Completion rules for language models: attention as eager PyTorch runs it, embeddings, and RMS norm written out.

Q, K and V are transposed views [sequence, head, token, dim].  `torch.matmul` flattens the two leading axes, which
needs a copy for more than one sequence.  Source of the copies and of their host shares: whole-model measurements of
BERT, GPT-2 and OPT on A100 and A10 (docs/workload-format.md).
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from estimator.completion.patterns import AttentionBlock, Change, Patterns, added, with_reads
from estimator.transforms import INNER, LAYER
from estimator.vocabulary.workload import Operator

WIDE: Final = "fp32"
"""Precision in which an RMS norm computes."""

ENCODER_TABLES: Final = 3
"""Embedding tables of an encoder with a pooler (BERT): words, positions, segments."""


def operand_copies(patterns: Patterns) -> Iterator[Change]:
    """More than one sequence: Q, K (transposing) and V are copied before their products.

    Keys and values from `repeat_kv` are already contiguous.
    """
    for block in patterns.attention:
        if block.sequences < 2:
            continue
        keys, queries, precision = block.key_elements, block.query_elements, block.precision
        yield added(block.count, "copy.contiguous", precision, queries, queries, INNER)
        if block.kv_heads == block.heads:
            yield added(block.count, "copy.transpose", precision, keys, keys, INNER)
            yield added(block.count, "copy.contiguous", precision, keys, keys, INNER)


def context_copy(patterns: Patterns) -> Iterator[Change]:
    """The result of scores·V is transposed from [head, token] back to [token, head] order."""
    for block in patterns.attention:
        size = block.query_elements
        yield added(block.count, "copy.contiguous", block.precision, size, size, INNER)


def causal_where(patterns: Patterns) -> Iterator[Change]:
    """Scores divided by a tensor and no mask added (GPT-2): the divisor is a scalar, and a `where` masks the scores."""
    for block in patterns.attention:
        size = block.score_elements
        divisors = _of_full_size(patterns, block, "other")
        if len(divisors) == 1 and not _of_full_size(patterns, block, "add"):
            divisor = patterns.operators[divisors[0]]
            yield Change(with_reads(divisor, size, "scalar_div"), block.count, divisors[0])
            yield added(block.count, "elementwise.where", divisor.precision, size, size, LAYER)


def broadcast_mask(patterns: Patterns) -> Iterator[Change]:
    """An addition between the scores and their softmax adds a mask that all heads share: one large input, not two."""
    for block in patterns.attention:
        for number in _of_full_size(patterns, block, "add"):
            yield Change(with_reads(patterns.operators[number], block.score_elements), block.count, number)


def repeat_kv(patterns: Patterns) -> Iterator[Change]:
    """Fewer heads of keys and values than of queries: both are copied to the full number of heads."""
    for block in patterns.attention:
        if block.kv_heads != block.heads:
            reads = block.key_elements * block.kv_heads / block.heads
            yield added(2.0 * block.count, "copy.contiguous", block.precision, block.key_elements, reads, INNER)


def rotary(patterns: Patterns) -> Iterator[Change]:
    """Rotary position embedding, listed as two multiplications and an addition for Q and for K.

    Each also negates half of its tensor and concatenates the halves; the factors (cosine, sine) are shared by all heads.
    """
    for block in patterns.attention:
        shared = block.sequences * block.queries * block.head_dim
        for numbers in zip(block.before, block.before[1:], block.before[2:], strict=False):
            *factors, total = (patterns.operators[number] for number in numbers)
            size, precision = total.shape[0], total.precision
            if total.operator != "add" or any(factor.operator != "mul" or factor.shape[0] != size for factor in factors):
                continue
            for number, factor in zip(numbers, factors, strict=False):
                yield Change(with_reads(factor, size + shared), block.count, number)
            yield added(block.count, "elementwise.scalar_mul", precision, size / 2.0, size / 2.0, INNER)
            yield added(block.count, "copy.cat", precision, size, size, INNER)


def _of_full_size(patterns: Patterns, block: AttentionBlock, name: str) -> list[int]:
    """Operators of a name between the scores and their softmax that read two tensors of that size."""
    size, operators = block.score_elements, patterns.operators
    return [number for number in block.between if operators[number].operator == name and operators[number].shape == (size, 2.0 * size)]


# Beside attention -----------------------------------------------------------------------------------------------------


def embeddings(patterns: Patterns) -> Iterator[Change]:
    """Rows gathered from embedding tables before the first layer; a table's rows added in place are not listed.

    Tables: one, and one more for each addition of full size before the first layer; three for an encoder, which
    has a pooler (it ends with a tanh).
    """
    if patterns.conv_order or not patterns.attention or not patterns.attention[0].projections:
        return
    first, precision = patterns.operators[patterns.attention[0].projections[0]], patterns.precision
    size = first["m"] * first["k"]
    additions = 0
    for number in patterns.order:
        operator = patterns.operators[number]
        if operator.family in ("gemm", "norm") and not operator.cuda_cores:
            break
        additions += operator.operator == "add" and operator.shape[0] == size and operator.precision == precision
    encoder = patterns.operators[patterns.order[-1]].operator == "tanh"
    tables = ENCODER_TABLES if encoder else min(1 + additions, ENCODER_TABLES)
    yield added(tables, "copy.gather", precision, size, size, LAYER)
    if tables - 1 > additions:
        yield added(tables - 1 - additions, "elementwise.add", precision, size, 2.0 * size)


class RmsNorm(NamedTuple):
    """An RMS norm written out: index of its multiplication by the reciprocal root, its rows and its size."""

    scale: int
    rows: float
    size: float


def rms_norm(patterns: Patterns) -> Iterator[Change]:
    """RMS norm listed as square, addition of epsilon, reciprocal root and multiplication, all in fp32.

    The mean of the squares is not listed, nor are the conversions to fp32 and back; the multiplication by the
    reciprocal root reads one large tensor and one number a row.
    """
    narrow = patterns.precision
    for (scale, rows, size), count in _rms_norms(patterns).items():
        yield added(count, "reduction.mean", WIDE, rows, size / rows, INNER)
        yield Change(with_reads(patterns.operators[scale], size + rows), count, scale)
        if narrow != WIDE:
            yield added(count, "elementwise.typecast", narrow, size, size, INNER, WIDE)
            yield added(count, "elementwise.typecast", WIDE, size, size, INNER, narrow)


def _rms_norms(patterns: Patterns) -> Counter[RmsNorm]:
    squares = {i for i, operator in enumerate(patterns.operators) if operator.operator == "scalar_pow" and operator.precision == WIDE}
    found: Counter[RmsNorm] = Counter()
    for position in patterns.listing.places(squares):
        numbers = patterns.order[position : position + 1 + 5]
        window = [patterns.operators[number] for number in numbers]
        place, rows = _scale_of(window)
        if place:
            found[RmsNorm(numbers[place], rows, window[0].shape[0])] += 1
    return found


def _scale_of(window: list[Operator]) -> tuple[int, float]:
    """Place of the multiplication by the reciprocal root in an RMS norm that starts with its square, and its rows; 0 without one."""
    size, rows = window[0].shape[0], 0.0
    for place, operator in enumerate(window[1:], 1):
        elements = operator.shape[0]
        if operator.precision != WIDE or operator.family != "elementwise":
            return 0, 0.0
        if operator.operator == "scalar_add" and elements < size and size % elements == 0.0:
            rows = elements
        if operator.operator == "mul" and elements == size and rows:
            return place, rows
    return 0, 0.0

"""Completion rules for language models: attention as eager PyTorch runs it, and embeddings.

Q, K and V are transposed views [sequence, head, token, dim].  `torch.matmul` flattens the two leading axes, which
needs a copy for more than one sequence.  Source of the copies and of their host shares: whole-model measurements of
BERT, GPT-2 and OPT on A100 and A10 (docs/workload-format.md).
"""

from collections.abc import Iterator
from typing import Final

from estimator.completion.patterns import AttentionBlock, Change, Patterns, added, with_reads
from estimator.transforms import INNER, LAYER

ENCODER_TABLES: Final = 3
"""Embedding tables of an encoder with a pooler (BERT): words, positions, segments."""


def operand_copies(patterns: Patterns) -> Iterator[Change]:
    """More than one sequence: Q, K (transposing) and V are copied before their products."""
    for block in patterns.attention:
        if block.sequences > 1:
            for kind, size in (("contiguous", block.query_elements), ("transpose", block.key_elements), ("contiguous", block.key_elements)):
                yield added(block.count, f"copy.{kind}", block.precision, size, size, INNER)


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

"""Completion rules for language models: embeddings, and RMS norm written out as element-wise work."""

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from estimator.completion.changes import Change, moved, rowwise, with_reads
from estimator.completion.patterns import Patterns
from estimator.forms.host_shares import INNER, LAYER, LIGHT
from estimator.workload import COMPLETED

WIDE: Final = "fp32"
"""Precision in which an RMS norm computes."""

ENCODER_TABLES: Final = 3
"""Embedding tables of an encoder with a pooler (BERT): words, positions, segments."""

NORM_WINDOW: Final = 5
"""Entries after a square among which the rest of its RMS norm lies."""


class RmsNorm(NamedTuple):
    """An RMS norm written out: indices of its multiplication by the reciprocal root, its rows and their length."""

    scale: int
    rows: float
    dim: float
    cast_in: bool
    cast_out: bool


def embeddings(patterns: Patterns) -> Iterator[Change]:
    """Rows gathered from embedding tables before the first layer; a table's rows added in place are not listed.

    Tables: one, and one more for each addition of full size before the first layer; three for an encoder, which
    is known by its pooler (it ends with a tanh).
    """
    if patterns.conv_order or not patterns.attention or not patterns.attention[0].projections:
        return
    first = patterns.operators[patterns.attention[0].projections[0]]
    size = first["m"] * first["k"]
    additions = 0
    for number in patterns.order:
        operator = patterns.operators[number]
        if operator.family in ("gemm", "norm") and not operator.cuda_cores:
            break
        additions += operator.operator == "add" and operator.shape[0] == size and operator.precision == patterns.precision
    encoder = patterns.operators[patterns.order[-1]].operator == "tanh"
    tables = ENCODER_TABLES if encoder else min(1 + additions, ENCODER_TABLES)
    origin, precision = f"{COMPLETED}embeddings", patterns.precision
    yield Change(moved("copy", "gather", precision, size, size, origin, LAYER), tables)
    if tables - 1 > additions:
        yield Change(moved("elementwise", "add", precision, size, 2.0 * size, origin, LIGHT), tables - 1 - additions)


def rms_norm(patterns: Patterns) -> Iterator[Change]:
    """RMS norm listed as square, addition of epsilon, reciprocal root and multiplication, all in fp32.

    The mean of the squares is not listed, nor are the conversions to fp32 and back; the multiplication by the
    reciprocal root reads one large tensor and one number a row.
    """
    origin, precision = f"{COMPLETED}rms_norm", patterns.precision
    for norm, count in _rms_norms(patterns).items():
        size = norm.rows * norm.dim
        yield Change(rowwise("reduction", "mean", WIDE, norm.rows, norm.dim, origin, INNER), count)
        yield Change(with_reads(patterns.operators[norm.scale], size + norm.rows, "rms_norm"), count, norm.scale)
        if norm.cast_in:
            yield Change(moved("elementwise", "typecast", precision, size, size, origin, INNER, WIDE), count)
        if norm.cast_out:
            yield Change(moved("elementwise", "typecast", WIDE, size, size, origin, INNER, precision), count)


def _rms_norms(patterns: Patterns) -> Counter[RmsNorm]:
    operators, order = patterns.operators, patterns.order
    squares = {i for i, operator in enumerate(operators) if operator.operator == "scalar_pow" and operator.precision == WIDE}
    found: Counter[RmsNorm] = Counter()
    if not squares:
        return found
    windows = Counter(
        order[position - 1 : position + 1 + NORM_WINDOW] if position else (-1, *order[: 1 + NORM_WINDOW])
        for position in patterns.listing.places(squares)
    )
    for window, count in windows.items():
        norm = _match_rms_norm(patterns, window)
        if norm is not None:
            found[norm] += count
    return found


def _match_rms_norm(patterns: Patterns, window: tuple[int, ...]) -> RmsNorm | None:
    """The RMS norm whose square is the second entry of `window`, whose first entry ran before it."""
    operators = patterns.operators
    size = operators[window[1]].shape[0]
    rows = 0.0
    for place, number in enumerate(window[2:], 2):
        operator = operators[number]
        if operator.precision != WIDE or operator.family not in ("elementwise", "reduction"):
            return None
        if operator.family == "reduction":
            return None
        elements = operator.shape[0]
        if operator.operator == "scalar_add" and elements < size and size % elements == 0.0:
            rows = elements
        if operator.operator == "mul" and elements == size and rows:
            narrow = patterns.precision != WIDE
            after = operators[window[place + 1]] if place + 1 < len(window) else None
            before = operators[window[0]] if window[0] >= 0 else None
            return RmsNorm(
                scale=number,
                rows=rows,
                dim=size / rows,
                cast_in=narrow and not (before is not None and before.operator == "typecast" and before.shape[0] == size),
                cast_out=narrow and not (after is not None and after.operator == "typecast" and after.shape[0] == size),
            )
    return None

"""Workload at another batch and sequence: every size is a constant times batchⁱ · sequenceʲ, and the shapes determine the exponents.

The sizes of matrix products, attention, softmax and norms have a known meaning.  An element-wise kernel or a copy is compared with
the tensors that these write and read: token rows of a known width, scores of a known number of heads, masks.  A size that matches no
tensor, or several that grow differently, is refused by name.

    linear          m = batch · sequence (tokens), batch (one row each) or sequence; n, k are weights
    bmm             batch counts sequences · heads; of m, n, k those equal to the sequence grow with it
    attention       batch; queries 1 or the sequence; context the sequence
    softmax, norm   rows; dim if it equals the sequence and the rows hold whole scores
    conv            only batch: images keep their size

Counts and weights do not change.  Sizes of 1 look like constants, so a workload is best rescaled from a batch above 1.
"""

import re
from dataclasses import replace
from typing import Annotated, Final, NamedTuple

from estimator.vocabulary.errors import WorkloadError
from estimator.vocabulary.reader import FaultError, Span, plain, read
from estimator.vocabulary.values import frozen
from estimator.vocabulary.workload import FAMILY_FIELDS, Footprint, Operator, Workload, merge_counts

LARGEST_SIZE: Final = 10**7
"""Most sequences, tokens or pixels; more are a mistake."""

Size = Annotated[int, Span(1, LARGEST_SIZE)]

SIZE_IN_NAME: Final = "(?<![a-z0-9]){}([0-9]{{1,7}})(?![a-z0-9])"


@frozen
class Sizes:
    """Sequences (or images) in a batch, and tokens of each; `sequence` 0: the workload has no sequence."""

    batch: Size
    sequence: Annotated[int, Span(0, LARGEST_SIZE)] = 0

    def __str__(self) -> str:
        return f"batch {self.batch}" + (f", sequence {self.sequence}" if self.sequence else "")


class Growth(NamedTuple):
    """Exponents of batch and sequence in a size."""

    batch: int
    sequence: int

    def unit(self, sizes: Sizes) -> int:
        """batchⁱ · sequenceʲ; a workload without a sequence has one of length 1."""
        return int(sizes.batch**self.batch * max(sizes.sequence, 1) ** self.sequence)


FIXED: Final = Growth(0, 0)
PER_SEQUENCE: Final = Growth(1, 0)
PER_TOKEN: Final = Growth(1, 1)
PER_POSITION: Final = Growth(0, 1)

ONE: Final = frozenset({1.0})


def sizes_in_name(name: str) -> Sizes | None:
    """The sizes in a name such as "gpt2_b8_s512"; None if it states no batch."""
    text = name.lower().replace("_", "-")
    batch, sequence = (re.search(SIZE_IN_NAME.format(letter), text) for letter in "bs")
    return None if batch is None else Sizes(batch=int(batch[1]), sequence=int(sequence[1]) if sequence else 0)


def with_sizes(workload: Workload, at: Sizes, to: Sizes) -> Workload:
    """The workload, written for the sizes `at`, at the sizes `to`.

    Raises WorkloadError for impossible sizes, for a scaled size that is not whole, for a change between one and several
    sequences if attention is written out (its copies differ), and, by name, for operators whose growth is ambiguous.
    """
    if at == to:
        return workload
    _check_sizes(workload, at, to)
    tensors = _Tensors(workload, at)
    operators, refused = [], []
    for operator, count in zip(workload.operators, workload.counts, strict=True):
        try:
            if at.sequence != to.sequence and (operator.family == "conv" or count % at.sequence == 0.0):
                raise _CannotTellError(f"×{count:g} may grow with the sequence")
            operators.append(replace(operator, shape=_new_shape(operator, tensors, to)))
        except _CannotTellError as reason:
            refused.append(f"{operator.label} ({reason})")
    if refused:
        raise WorkloadError(
            f"{workload.name}: cannot be rescaled from {at}: {'; '.join(refused[:3])}; "
            "trace the model at the sizes wanted, or write one file for each"
        )
    merged, counts = merge_counts(operators, workload.counts)
    return replace(workload, operators=merged, counts=counts, footprint=_resized_footprint(workload, at, to))


def _check_sizes(workload: Workload, at: Sizes, to: Sizes) -> None:
    try:
        for sizes in (at, to):
            read(Sizes, plain(sizes))
    except FaultError as fault:
        raise WorkloadError(f"{workload.name}: {fault}") from None
    if bool(at.sequence) != bool(to.sequence):
        raise WorkloadError(f"{workload.name}: a sequence can only be changed where the workload's own is known: batch=8,sequence=512")
    copied = any(operator.operator in ("bmm", "contiguous", "transpose") for operator in workload.operators)
    if copied and (at.batch == 1) != (to.batch == 1):
        raise WorkloadError(
            f"{workload.name}: operands are copied for several sequences and not for one, so that "
            f"batch {at.batch} cannot be rescaled to {to.batch}; use a file of the same kind, or fused attention"
        )
    if workload.footprint and workload.footprint.optimizer_byte:
        raise WorkloadError(
            f"{workload.name}: a training step, whose optimizer does not grow, is not rescaled; trace it at the sizes wanted"
        )
    if workload.unknown:
        raise WorkloadError(f"{workload.name}: {workload.unknown[0].name} is of no known kind, so that it cannot be rescaled")


def _resized_footprint(workload: Workload, at: Sizes, to: Sizes) -> Footprint | None:
    """Least memory of the model: caches of a window do not grow, scores shrink with the square of the length, gradients do not grow."""
    held = workload.footprint
    if held is None:
        return None
    batch, length = to.batch / at.batch, max(to.sequence, 1) / max(at.sequence, 1)
    cached = max(to.sequence - 1, 0) / max(at.sequence - 1, 1)
    windowed = any(operator.family == "attention" and operator["window"] for operator in workload.operators)
    products = [operator for operator in workload.operators if operator.operator == "bmm"]
    whole = not windowed and all(at.sequence in (o["m"], o["n"], o["k"]) for o in products)
    return replace(
        held,
        cache_byte=held.cache_byte * batch * (cached if whole else min(cached, 1.0)),
        passing_byte=held.passing_byte * min(batch, 1.0) * min(length, 1.0) ** 2,
    )


# How sizes grow -------------------------------------------------------------------------------------------------------


class _CannotTellError(Exception):
    """The growth of a size is unknown or ambiguous."""


def _new_shape(operator: Operator, tensors: "_Tensors", to: Sizes) -> tuple[float, ...]:
    """The operator's shape at the sizes `to`.  Raises _CannotTellError."""
    at = tensors.at

    def scaled(value: float, growth: Growth) -> float:
        if value % growth.unit(at):
            raise _CannotTellError(f"{value:g} is no multiple of {growth.unit(at)}")
        if value == at.batch == 1 and not at.sequence and operator.family in ("elementwise", "reduction"):
            raise _CannotTellError("1 may be of each or of all")
        return value / growth.unit(at) * growth.unit(to)

    if operator.family in ("elementwise", "copy") and at.sequence:
        elements, reads = operator.shape
        own = tensors.growth(elements)
        rest = reads % elements
        return scaled(elements, own), scaled(reads - rest, own) + (scaled(rest, tensors.growth(rest)) if rest else 0.0)
    growth = _growths(operator, tensors)
    return tuple(scaled(value, growth.get(name, FIXED)) for name, value in zip(FAMILY_FIELDS[operator.family], operator.shape, strict=True))


def _growths(operator: Operator, tensors: "_Tensors") -> dict[str, Growth]:
    """Growth of fields; fields that are not named do not change.  Raises _CannotTellError."""
    at = tensors.at
    match operator.family:
        case "conv":
            return {"batch": PER_SEQUENCE}
        case "gemm" if operator.operator == "linear":
            return {"m": _tokens(operator, at)}
        case "gemm":
            grown = [name for name in "mnk" if at.sequence and operator[name] == at.sequence]
            if len(grown) > 2:
                raise _CannotTellError(f"heads as wide as the sequence of {at.sequence}")
            return {"batch": PER_SEQUENCE, **dict.fromkeys(grown, PER_POSITION)}
        case "attention":
            batch, queries, context, *_ = operator.shape
            if batch != at.batch or context != at.sequence or queries not in (1.0, at.sequence):
                raise _CannotTellError(f"{batch:g} sequences of {queries:g} queries and {context:g} keys")
            decodes = queries == 1.0 != at.sequence
            return {"batch": PER_SEQUENCE, "context": PER_POSITION} | ({} if decodes else {"queries": PER_POSITION})
        case "mla" | "moe" | "communication" | "quantise":
            raise _CannotTellError(f"{operator.family} of one step")
        case "elementwise" | "copy":
            return {"elements": PER_SEQUENCE, "reads": PER_SEQUENCE}
        case _:
            return _row_growths(operator, tensors)


def _tokens(operator: Operator, at: Sizes) -> Growth:
    """Growth of the rows of a linear layer."""
    batch, m, _, _ = operator.shape
    if batch != 1.0:
        raise _CannotTellError(f"a linear layer of {batch:g} products")
    if not at.sequence:
        return PER_SEQUENCE
    possible = (PER_TOKEN, PER_SEQUENCE, *([PER_POSITION] if at.batch > 1 else []))
    found = [growth for growth in possible if m == growth.unit(at)]
    return _only(found or [PER_TOKEN][: m % PER_TOKEN.unit(at) == 0], f"m = {m:g}")


def _row_growths(operator: Operator, tensors: "_Tensors") -> dict[str, Growth]:
    """Growth of the rows of a softmax, a norm or a reduction; scores have heads · queries of each sequence, one query in decoding."""
    rows, dim = operator.shape
    at = tensors.at
    if not at.sequence:
        return {"rows": PER_SEQUENCE}
    if operator.family == "softmax" and dim == at.sequence:
        found = [growth for growth in (PER_TOKEN, PER_SEQUENCE) if rows / growth.unit(at) in tensors.heads]
        return {"rows": _only(found, f"{rows:g} rows of scores"), "dim": PER_POSITION}
    if dim == at.sequence and dim not in tensors.widths:
        raise _CannotTellError(f"rows of {dim:g} elements, as long as the sequence")
    each, rest = divmod(rows, PER_TOKEN.unit(at))
    if not rest and each % at.sequence == 0:
        raise _CannotTellError(f"{rows:g} rows may be of tokens or of scores")
    if not rest:
        return {"rows": PER_TOKEN}
    return {"rows": PER_POSITION if rows == at.sequence else PER_SEQUENCE}


def _only(candidates: list[Growth], what: str) -> Growth:
    """The single candidate.  Raises _CannotTellError for no candidate and for several."""
    if not candidates:
        raise _CannotTellError(f"{what} fit no tensor of tokens, scores or masks")
    if len(candidates) > 1:
        ways = " or ".join(f"batch^{i}·sequence^{j}" for i, j in candidates)
        raise _CannotTellError(f"{what} may grow as {ways}")
    return candidates[0]


class _Tensors:
    """Known widths of token rows, widths of rows that all sequences share (positions), and score matrices of a sequence."""

    def __init__(self, workload: Workload, at: Sizes) -> None:
        self.at = at
        widths: set[float] = set()
        heads: set[float] = set()
        head_dims: set[float] = set()
        normed = {operator["dim"] for operator in workload.operators if operator.family == "norm"}
        for operator in workload.operators:
            if operator.operator == "linear":
                widths.update((operator["n"], operator["k"]))
            elif operator.operator == "bmm" and operator["batch"] % at.batch == 0:
                count = operator["batch"] / at.batch
                heads.add(count)
                inner = {size for size in (operator["m"], operator["n"], operator["k"]) if size != at.sequence}
                widths.update(count * size for size in inner)
                head_dims |= inner
            elif operator.family == "attention":
                count, shared, size = operator["heads"], operator["kv_heads"], operator["head_dim"]
                heads.add(count)
                widths.update((count * size, shared * size, (count + shared) * size))  # the last: queries and keys that one kernel rotates
                head_dims.add(size)
        self.heads = frozenset(heads)
        self.widths = frozenset(widths | (normed - {float(at.sequence)}))
        self.shared = ONE | (normed | head_dims if normed else self.widths)

    def growth(self, elements: float) -> Growth:
        """Growth of a tensor with `elements` elements: token rows, one such row, scores of all heads, or masks of scores.

        Raises _CannotTellError.
        """
        widths = self.widths | ONE
        allowed = {
            PER_TOKEN: widths, PER_POSITION: widths & self.shared, PER_SEQUENCE: widths, FIXED: widths,
            Growth(1, 2): self.heads | ONE, Growth(0, 2): ONE,
        }  # fmt: skip
        found = [growth for growth, constants in allowed.items() if elements / growth.unit(self.at) in constants]
        if self.at.batch == 1:  # one sequence's rows and shared rows look alike: each sequence has its own
            found = [growth for growth in found if growth.batch or Growth(1, growth.sequence) not in found]
        return _only(found, f"{elements:g} elements")

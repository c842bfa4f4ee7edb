"""A workload at another batch and sequence: every size is a constant times batchⁱ · sequenceʲ, and the exponents are told by shapes.

What a size means is known for matrix products, attention, softmax and norms.  An element-wise kernel or a copy is compared
with the tensors that those leave and read: token rows of a known width, scores of a known number of heads, masks; where it fits
none, with parts of such rows.  A size that fits nothing, or several that grow differently, is refused by name.

    linear          m = batch · sequence (tokens), batch (one row each) or sequence; n, k are weights
    bmm             batch counts sequences · heads; of m, n, k those equal to the sequence grow with it
    attention       batch; queries 1 or the sequence; context the sequence
    softmax, norm   rows; dim where it equals the sequence and the rows hold whole scores
    conv            batch alone: images keep their size

A workload with `resizing` needs no telling: its operators state how they grow (`forms.stored_growth`).
Counts stay, and so do weights.  Sizes of 1 cannot be told from constants, so that a workload is rescaled best from a batch above 1.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from estimator.errors import WorkloadError
from estimator.forms.footprints import resized_footprint
from estimator.forms.stored_growth import check_range, grown_operators
from estimator.workload import FAMILY_FIELDS, TRACED, Growth, Operator, Resizing, Workload, merge_counts

LARGEST_SIZE: Final = 10**7
"""More sequences or tokens than this are a mistake."""

MOST_REFUSED: Final = 3
"""Operators that a refusal names before it counts the rest."""

SIZE_IN_NAME: Final = {
    "batch": re.compile(r"(?<![a-z0-9])b(\d{1,7})(?![a-z0-9])"),
    "sequence": re.compile(r"(?<![a-z0-9])s(\d{1,7})(?![a-z0-9])"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sequences (or images) at once, and tokens of each; `sequence` 0: the workload has no sequence."""

    batch: int
    sequence: int = 0


FIXED: Final = Growth(0, 0)
ONE: Final = frozenset({1.0})

ROW_PARTS: Final = (2.0, 3.0)
"""Parts into which rows are cut: halves that rotary embeddings turn, a fused projection's query, key and value."""


def sizes_in_name(name: str) -> Sizes | None:
    """The sizes that a name such as "gpt2_b8_s512" states; None where it states no batch."""
    found = {field: pattern.search(name.lower().replace("_", "-")) for field, pattern in SIZE_IN_NAME.items()}
    batch, sequence = found["batch"], found["sequence"]
    if batch is None:
        return None
    return Sizes(batch=int(batch[1]), sequence=int(sequence[1]) if sequence else 0)


def known_sizes(workload: Workload) -> Sizes | None:
    """The sizes for which a workload is written down: those that go with its operators' growth, else those that its name states."""
    if workload.resizing is not None:
        return Sizes(batch=workload.resizing.batch, sequence=workload.resizing.sequence)
    return sizes_in_name(workload.name)


def with_sizes(workload: Workload, at: Sizes, to: Sizes) -> Workload:
    """The workload, which was written down for the sizes `at`, at the sizes `to`.

    Raises WorkloadError for sizes that cannot be, where a growing size does not stay whole, for a change between one and
    several sequences where attention is written out (its copies differ), and, by name, for operators whose growth cannot be told;
    of a workload that states its growth for other sizes `at` than its own, and beyond those between which that was seen to hold.
    """
    _check_sizes(workload, at, to)
    if at == to:
        return workload
    stated = workload.resizing
    operators = _told_operators(workload, at, to) if stated is None else _stated_operators(workload, stated, at, to)
    merged, counts = merge_counts(operators, workload.counts)
    note = f"rescaled from {_text(at)} to {_text(to)}"
    footprint = resized_footprint(
        workload.footprint,
        batch=to.batch / at.batch,
        sequence=max(to.sequence, 1) / max(at.sequence, 1),
        cached_tokens=max(to.sequence - 1, 0) / max(at.sequence - 1, 1),
        cache_grows=_caches_grow(workload, at),
        passing=None if stated is None else stated.passing,
    )
    resizing = None if stated is None else replace(stated, batch=to.batch, sequence=to.sequence)
    return replace(workload, operators=merged, counts=counts, notes=(*workload.notes, note), footprint=footprint, resizing=resizing)


def _stated_operators(workload: Workload, stated: Resizing, at: Sizes, to: Sizes) -> list[Operator]:
    """The operators by the growth that they state."""
    if at != known_sizes(workload):
        raise WorkloadError(
            f"{workload.name}: states that it was traced at batch {stated.batch}"
            + (f", sequence {stated.sequence}" if stated.sequence else "")
            + f", not at {_text(at)}; leave --at out (in Python: at)"
        )
    check_range(workload.name, stated, to.batch, to.sequence)
    try:
        return grown_operators(workload.operators, (at.batch, at.sequence), (to.batch, to.sequence))
    except WorkloadError as error:
        raise WorkloadError(f"{workload.name}: cannot be rescaled from {_text(at)}: {error}") from error


def _told_operators(workload: Workload, at: Sizes, to: Sizes) -> list[Operator]:
    """The operators by the growth that their shapes tell."""
    context = _Context(workload, at)
    operators, refused = [], []
    for operator in workload.operators:
        try:
            operators.append(_at_sizes(operator, context.growth(operator), at, to))
        except _CannotTellError as reason:
            refused.append(f"{_name(operator)} ({reason})")
    if refused:
        rest = f" and {len(refused) - MOST_REFUSED} more" if len(refused) > MOST_REFUSED else ""
        raise WorkloadError(
            f"{workload.name}: cannot be rescaled from {_text(at)}: {'; '.join(refused[:MOST_REFUSED])}{rest}; {_remedy(workload)}"
        )
    return operators


def _remedy(workload: Workload) -> str:
    """What to do about a workload whose growth cannot be told."""
    if any(operator.origin.partition(":")[0] == TRACED for operator in workload.operators):
        return "trace it with --resizable, or at the sizes wanted"
    return "trace the model at the sizes wanted, or write one file for each"


def _caches_grow(workload: Workload, at: Sizes) -> bool:
    """Whether every layer attends to all tokens, so that none keeps those of a window alone."""
    fused = [operator for operator in workload.operators if operator.family == "attention"]
    products = [operator for operator in workload.operators if operator.operator == "bmm"]
    return not any(operator["window"] for operator in fused) and all(at.sequence in (o["m"], o["n"], o["k"]) for o in products)


class _CannotTellError(Exception):
    """How a size grows cannot be told."""


def _check_sizes(workload: Workload, at: Sizes, to: Sizes) -> None:
    for name in ("batch", "sequence"):
        for value in (getattr(at, name), getattr(to, name)):
            low = 1 if name == "batch" else 0
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= LARGEST_SIZE:
                raise WorkloadError(f"{workload.name}: {name} = {value!r} must be a whole number from {low} to {LARGEST_SIZE}")
    if bool(at.sequence) != bool(to.sequence):
        raise WorkloadError(f"{workload.name}: a sequence can only be changed where the workload's own is known: batch=8,sequence=512")
    separate = any(operator.operator == "bmm" for operator in workload.operators)
    if separate and workload.resizing is None and (at.batch == 1) != (to.batch == 1):
        raise WorkloadError(
            f"{workload.name}: written-out attention copies its operands for several sequences and not for one, so that "
            f"batch {at.batch} cannot be rescaled to {to.batch}; use a file of the same kind, or fused attention"
        )
    if workload.unknown:
        raise WorkloadError(f"{workload.name}: {workload.unknown[0].name} is of no known kind, so that it cannot be rescaled")


def _at_sizes(operator: Operator, growth: dict[str, Growth | tuple[tuple[float, Growth], ...]], at: Sizes, to: Sizes) -> Operator:
    shape = []
    for name, value in zip(FAMILY_FIELDS[operator.family], operator.shape, strict=True):
        parts = growth.get(name, FIXED)
        terms = ((value, parts),) if isinstance(parts, Growth) else parts
        shape.append(float(sum(_grown(size, part, at, to) for size, part in terms)))
    return replace(operator, shape=tuple(shape))


def _grown(value: float, growth: Growth, at: Sizes, to: Sizes) -> float:
    grown = value * _product(to, growth) / _product(at, growth)
    if not grown.is_integer():
        raise _CannotTellError(f"{value:g} would become {grown:g}")
    return grown


def _product(sizes: Sizes, growth: Growth) -> float:
    return float(sizes.batch) ** growth.batch * float(max(sizes.sequence, 1)) ** growth.sequence


@dataclass(frozen=True, slots=True)
class _Tensors:
    """Known widths of token rows, those of rows that all sequences share (positions), parts of rows, and score matrices of a sequence."""

    widths: frozenset[float]
    shared: frozenset[float]
    parts: frozenset[float]
    heads: frozenset[float]


class _Context:
    """The tensors of a workload, by which the sizes of streams are told."""

    def __init__(self, workload: Workload, at: Sizes) -> None:
        self.at = at
        self.tensors = _known_tensors(workload, at)
        self.has_matrix = any(operator.family in ("gemm", "attention") for operator in workload.operators)

    def growth(self, operator: Operator) -> dict[str, Growth | tuple[tuple[float, Growth], ...]]:
        """How the fields grow; those not named stay.  Raises _CannotTellError."""
        if operator.family == "gemm":
            return dict(_linear(operator, self.at) if operator.operator == "linear" else _products(operator, self.at))
        if operator.family == "conv":
            return {"batch": Growth(1, 0)}
        if operator.family == "attention":
            return dict(_attention(operator, self.at))
        if operator.family in ("softmax", "norm", "reduction"):
            return dict(self._rows(operator))
        return self._stream(operator)

    def _rows(self, operator: Operator) -> dict[str, Growth]:
        rows, dim = operator.shape
        batch, sequence = self.at.batch, self.at.sequence
        if not sequence or not self.has_matrix:
            return {"rows": self._whole(rows, Growth(1, 0))}
        if operator.family == "softmax" and dim == sequence:
            return {"rows": self._scores(rows), "dim": Growth(0, 1)}
        if dim == sequence and dim not in self.tensors.widths:
            raise _CannotTellError(f"rows of {dim:g} elements, as long as the sequence")
        if rows % (batch * sequence) == 0:
            return {"rows": Growth(1, 1)}
        if rows == sequence:
            return {"rows": Growth(0, 1)}
        return {"rows": self._whole(rows, Growth(1, 0))}

    def _scores(self, rows: float) -> Growth:
        """Rows of score matrices: heads · queries of each sequence; one query a sequence where a token is decoded."""
        batch, sequence = self.at.batch, self.at.sequence
        candidates = []
        if rows % (batch * sequence) == 0 and rows / (batch * sequence) in self.tensors.heads:
            candidates.append(Growth(1, 1))
        if rows % batch == 0 and rows / batch in self.tensors.heads:
            candidates.append(Growth(1, 0))
        return _only(candidates, f"{rows:g} rows of scores")

    def _whole(self, value: float, growth: Growth) -> Growth:
        if value % self.at.batch:
            raise _CannotTellError(f"{value:g} is no multiple of the batch {self.at.batch}")
        return growth

    def _stream(self, operator: Operator) -> dict[str, Growth | tuple[tuple[float, Growth], ...]]:
        elements, reads = operator.shape
        if not self.at.sequence or not self.has_matrix:
            growth = self._whole(elements, Growth(1, 0))
            return {"elements": growth, "reads": self._whole(reads, Growth(1, 0))}
        own = self._size(elements)
        whole = int(reads // elements)
        rest = reads - whole * elements
        if rest == 0.0:
            return {"elements": own, "reads": own}
        if whole == 0 and elements % reads == 0:
            return {"elements": own, "reads": self._size(reads)}
        return {"elements": own, "reads": ((whole * elements, own), (rest, self._size(rest)))}

    def _size(self, elements: float) -> Growth:
        """Growth of a tensor of that many elements."""
        found = self._fitting(elements, self.tensors.widths | ONE) or self._fitting(elements, self.tensors.parts)
        return _only(found, f"{elements:g} elements")

    def _fitting(self, elements: float, widths: frozenset[float]) -> list[Growth]:
        """Ways to grow that fit token rows of `widths`, one such row, scores of all heads, or masks of scores."""
        batch, sequence = float(self.at.batch), float(self.at.sequence)
        patterns = (
            (Growth(1, 1), batch * sequence, widths),
            (Growth(0, 1), sequence, widths & self.tensors.shared),
            (Growth(1, 0), batch, widths),
            (FIXED, 1.0, widths),
            (Growth(1, 2), batch * sequence**2, self.tensors.heads | ONE),
            (Growth(0, 2), sequence**2, ONE),
        )
        found = [growth for growth, unit, allowed in patterns if elements % unit == 0 and elements / unit in allowed]
        if batch == 1.0:  # what one sequence has and what all share look alike: each sequence has its own
            found = [growth for growth in found if growth.batch or Growth(1, growth.sequence) not in found]
        return found


def _only(candidates: list[Growth], what: str) -> Growth:
    """The one candidate.  Raises _CannotTellError for none and for several."""
    if not candidates:
        raise _CannotTellError(f"{what} fit no tensor of tokens, scores or masks")
    if len(candidates) > 1:
        ways = " or ".join(f"batch^{i}·sequence^{j}" for i, j in candidates)
        raise _CannotTellError(f"{what} may grow as {ways}")
    return candidates[0]


def _linear(operator: Operator, at: Sizes) -> Iterator[tuple[str, Growth]]:
    batch, m, _, _ = operator.shape
    if batch != 1.0:
        raise _CannotTellError(f"a linear layer of {batch:g} products")
    if not at.sequence:
        if m % at.batch:
            raise _CannotTellError(f"m = {m:g} is no multiple of the batch")
        yield "m", Growth(1, 0)
        return
    candidates = [
        growth
        for growth, size in ((Growth(1, 1), at.batch * at.sequence), (Growth(1, 0), at.batch), (Growth(0, 1), at.sequence))
        if m == size and (growth != Growth(0, 1) or at.batch > 1)
    ]
    if not candidates and m % (at.batch * at.sequence) == 0:
        candidates = [Growth(1, 1)]
    yield "m", _only(candidates, f"m = {m:g}")


def _products(operator: Operator, at: Sizes) -> Iterator[tuple[str, Growth]]:
    batch, m, n, k = operator.shape
    if batch % at.batch:
        raise _CannotTellError(f"{batch:g} products are no multiple of the batch")
    yield "batch", Growth(1, 0)
    grown = [name for name, size in (("m", m), ("n", n), ("k", k)) if at.sequence and size == at.sequence]
    if len(grown) > 2:
        raise _CannotTellError(f"heads as wide as the sequence of {at.sequence}")
    yield from ((name, Growth(0, 1)) for name in grown)


def _attention(operator: Operator, at: Sizes) -> Iterator[tuple[str, Growth]]:
    batch, queries, context, *_ = operator.shape
    if batch != at.batch or context != at.sequence or queries not in (1.0, at.sequence):
        raise _CannotTellError(f"{batch:g} sequences of {queries:g} queries and {context:g} keys")
    yield "batch", Growth(1, 0)
    yield "context", Growth(0, 1)
    if queries != 1.0 or at.sequence == 1:
        yield "queries", Growth(0, 1)


def _known_tensors(workload: Workload, at: Sizes) -> _Tensors:
    """Widths and heads that matrix products, attention, norms and softmax show."""
    widths: set[float] = set()
    heads: set[float] = set()
    head_dims: set[float] = set()
    rotated: set[float] = set()  # queries and keys that one kernel turns
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
            heads.add(operator["heads"])
            widths.update(operator["head_dim"] * operator[name] for name in ("heads", "kv_heads"))
            head_dims.add(operator["head_dim"])
            rotated.add(operator["head_dim"] * (operator["heads"] + operator["kv_heads"]))
        elif operator.family == "norm" and operator["dim"] != at.sequence:
            widths.add(operator["dim"])
    parts = rotated | {width / part for width in widths for part in ROW_PARTS if width % part == 0.0}
    normed = {operator["dim"] for operator in workload.operators if operator.family == "norm"}
    shared = {1.0, *normed, *head_dims, *(size / part for size in head_dims for part in ROW_PARTS)} if normed else {1.0, *widths, *parts}
    return _Tensors(widths=frozenset(widths), shared=frozenset(shared), parts=frozenset(parts), heads=frozenset(heads))


def _name(operator: Operator) -> str:
    shape = "x".join(f"{value:.15g}" for value in operator.shape)
    return f"{operator.family}.{operator.operator} {operator.precision} {shape}"


def _text(sizes: Sizes) -> str:
    return f"batch {sizes.batch}" + (f", sequence {sizes.sequence}" if sizes.sequence else "")

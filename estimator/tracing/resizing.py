"""How a traced workload grows with batch and sequence, told from traces of the same model at other sizes.

A second trace tells: of two operators at the same place, each size is larger by a ratio that one growth alone gives.
Traces at the smallest and the largest sizes then say from where to where that law holds: a model may run other kernels
for one sequence, or for very long ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING, Final

from estimator.errors import WorkloadError
from estimator.forms.rescaling import Sizes, with_sizes
from estimator.forms.rewriting import with_precision
from estimator.forms.stored_growth import size_ratio, without_growth
from estimator.tracing.lowering import launched_parts
from estimator.tracing.making import Part
from estimator.tracing.request import LARGEST_SIZE, SIZES, TENSOR_TYPES, TraceRequest, checked_request
from estimator.workload import FAMILY_FIELDS, Footprint, Growth, Operator, Resizing, Term, Workload, merge_counts

if TYPE_CHECKING:
    from estimator.trace import Traced

Trace = Callable[[TraceRequest], "Traced"]

MORE_SEQUENCES: Final = 2
LONGER: Final = 3
SHORTER: Final = 4
"""Factors of the second trace, by which no two growths give the same ratio."""

SHORTEST: Final = 2
"""Tokens: a decoding step has one and one before it."""

SMALLEST: Final = ((1, 2), (2, 2), (2, 16))
"""Batches and sequences that are tried from the first on as the smallest; a decoding step has two tokens at least."""

LARGEST: Final = ((256, 8192), (32, 2048))
"""Batches and sequences that are tried from the first on as the largest."""

ONE_SEQUENCE: Final = "a --batch of 2 or more may help"
"""What to do where one sequence or image takes kernels of its own."""


class _NoLawError(Exception):
    """Why a workload cannot be rescaled."""


def with_growth(request: TraceRequest, traced: "Traced", trace: Trace) -> tuple[Workload, str]:
    """The traced workload, whose operators state their growth, and what cannot be rescaled and why, "" where all can.

    `trace` traces a request; one that fails at other sizes is a reason, no error.
    """
    request = checked_request(request)
    try:
        return _told(request, traced, trace, traced.sizes), ""
    except _NoLawError as error:
        reason = str(error)
    if request.batch == 1 and "batch" in traced.sizes:
        reason += f"; {ONE_SEQUENCE}"
    if request.batch == 1 and traced.sizes == frozenset(SIZES):
        try:
            return _told(request, traced, trace, frozenset({"sequence"})), f"only the sequence of the file can be changed: {reason}"
        except _NoLawError:
            pass
    return traced.workload, f"the file cannot be rescaled: {reason}"


def _told(request: TraceRequest, traced: "Traced", trace: Trace, varied: frozenset[str]) -> Workload:
    """The workload with growth in the sizes `varied`.  Raises _NoLawError."""
    at = _sizes(request, traced)
    if not varied:
        raise _NoLawError("its inputs have no batch and no sequence")
    if traced.workload.unknown:
        raise _NoLawError(f"{traced.workload.unknown[0].name} is of no known kind")
    reasons = []
    for there in _seconds(at, varied, traced.longest):
        try:
            return _told_from(request, traced, trace, varied, there)
        except _NoLawError as error:
            reasons.append(error)
    raise reasons[0]


def _told_from(request: TraceRequest, traced: "Traced", trace: Trace, varied: frozenset[str], there: Sizes) -> Workload:
    """The workload with growth by a second trace at the sizes `there`.  Raises _NoLawError."""
    at = _sizes(request, traced)
    second = _traced_at(request, there, trace)
    operators, counts = _aligned(request, traced, second, at, there)
    if not any(operator.growth for operator in operators):
        raise _NoLawError(f"nothing grows from {_text(at)} to {_text(there)}")
    resizing = Resizing(
        batch=at.batch, batch_least=1, batch_most=LARGEST_SIZE,
        sequence=at.sequence, sequence_least=min(at.sequence, 1), sequence_most=LARGEST_SIZE if at.sequence else 0,
    )  # fmt: skip
    told = replace(traced.workload, operators=operators, counts=counts, resizing=resizing)
    if _contents(told) != _contents(traced.workload):
        raise _NoLawError("its attention was fused after the trace")
    fault = _fault(told, there, second.workload)
    if fault:
        raise _NoLawError(fault)
    seen = _within(told, request, trace, varied, there, traced.longest)
    return _with_passing(*seen, second.workload, there)


def _sizes(request: TraceRequest, traced: "Traced") -> Sizes:
    return Sizes(batch=request.batch, sequence=request.sequence if "sequence" in traced.sizes else 0)


def _seconds(at: Sizes, varied: frozenset[str], longest: float) -> list[Sizes]:
    """Sizes for the second trace: longer sequences, and shorter ones in case the model does not take those or works otherwise."""
    batch = at.batch * MORE_SEQUENCES if "batch" in varied else at.batch
    if "sequence" not in varied:
        return [Sizes(batch=batch, sequence=at.sequence)]
    lengths = [length for length in (at.sequence * LONGER, at.sequence // SHORTER) if SHORTEST <= length <= longest]
    if not lengths:
        raise _NoLawError(f"the model takes {longest:g} tokens at most, too few for a second trace; trace a longer sequence")
    return [Sizes(batch=batch, sequence=length) for length in lengths]


def _traced_at(request: TraceRequest, sizes: Sizes, trace: Trace) -> "Traced":
    """The trace at other sizes.  Raises _NoLawError where there is none."""
    try:
        return trace(replace(request, batch=sizes.batch, sequence=sizes.sequence or request.sequence))
    except WorkloadError as error:
        raise _NoLawError(f"at {_text(sizes)}: {error}") from error


# Two traces -----------------------------------------------------------------------------------------------------------


def _aligned(
    request: TraceRequest, first: "Traced", second: "Traced", at: Sizes, there: Sizes
) -> tuple[tuple[Operator, ...], tuple[float, ...]]:
    """The operators of the first trace with their growth, merged where they grow alike, and their counts."""
    parts = [launched_parts(traced.calls, tf32=request.precision == "tf32") for traced in (first, second)]
    if len(parts[0]) != len(parts[1]):
        raise _NoLawError(f"{len(parts[0])} kernels at {_text(at)}, {len(parts[1])} at {_text(there)}")
    old, new = (at.batch, at.sequence), (there.batch, there.sequence)
    powers = product(range(2 if new[0] != old[0] else 1), range(3 if new[1] != old[1] else 1))
    ratios = {growth: size_ratio(growth, old, new) for growth in (Growth(i, j) for i, j in powers)}
    operators = [_grown(one, other, ratios) for one, other in zip(*parts, strict=True)]
    merged, counts = merge_counts(operators, (part.times for part in parts[0]))
    if request.precision in TENSOR_TYPES:
        return merged, counts
    narrow = with_precision(Workload(name=request.model, operators=merged, counts=counts), request.precision)
    return narrow.operators, narrow.counts


def _grown(first: Part, second: Part, ratios: dict[Growth, Fraction]) -> Operator:
    one, other = first.operator, second.operator
    if replace(other, shape=one.shape) != one or first.times != second.times:
        raise _NoLawError(f"{_name(one)} ×{first.times:g} becomes {_name(other)} ×{second.times:g}")
    growth = []
    for name, value, later in zip(FAMILY_FIELDS[one.family], one.shape, other.shape, strict=True):
        terms = _terms(value, later, first.reads, second.reads, ratios) if name == "reads" else _single(value, later, ratios)
        if terms is None and name in STREAMED:
            terms = _one_more_each(value, later, ratios)
        if terms is None:
            raise _NoLawError(f"{name} of {_name(one)} becomes {later:g}, which is no product of powers of batch and sequence")
        if any(term.growth != Growth(0, 0) for term in terms):
            growth.append((name, terms))
    return replace(one, growth=tuple(growth))


STREAMED: Final = frozenset({"elements", "reads"})
"""Sizes of whole tensors."""


def _one_more_each(value: float, later: float, ratios: dict[Growth, Fraction]) -> tuple[Term, ...] | None:
    """A tensor of all tokens and some more of each sequence (labels that are moved by one); None where it is none."""
    each = Growth(max(growth.batch for growth in ratios), 0)
    tokens = each._replace(sequence=1)
    if tokens not in ratios:
        return None
    size = (Fraction(later) - ratios[each] * Fraction(value)) / (ratios[tokens] - ratios[each])
    more = Fraction(value) - size
    if size <= 0 or more <= 0 or size.denominator != 1 or more.denominator != 1:
        return None
    return Term(float(more), each), Term(float(size), tokens)


def _single(value: float, later: float, ratios: dict[Growth, Fraction]) -> tuple[Term, ...] | None:
    """A size as one term; None where no growth gives the later one.  A size of 0 stays."""
    for growth, ratio in ratios.items():
        if Fraction(value) * ratio == later:
            return (Term(value, growth),)
    return None


def _terms(
    value: float, later: float, first: Sequence[float], second: Sequence[float], ratios: dict[Growth, Fraction]
) -> tuple[Term, ...] | None:
    """What is read as one term of each growth that its tensors have; as a whole where one by itself has none (a cache's tokens)."""
    if len(first) == len(second) and sum(first) == value and sum(second) == later:
        found = [_single(one, other, ratios) for one, other in zip(first, second, strict=True)]
        totals: dict[Growth, float] = {}
        for terms in found:
            for size, growth in terms or ():
                totals[growth] = totals.get(growth, 0.0) + size
        if None not in found:
            return tuple(Term(size, growth) for growth, size in sorted(totals.items()) if size)
    return _single(value, later, ratios)


# From where to where --------------------------------------------------------------------------------------------------


def _within(
    told: Workload, request: TraceRequest, trace: Trace, varied: frozenset[str], there: Sizes, longest: float
) -> tuple[Workload, list[tuple[Sizes, Workload]]]:
    """The workload with the limits between which its growth was seen to hold, and the traces at the smallest and the largest sizes.

    Raises _NoLawError where it holds at neither: two traces alone may agree by chance.
    """
    resizing = _resizing(told)
    own = Sizes(batch=resizing.batch, sequence=resizing.sequence)

    def corner(batch: int, sequence: float) -> Sizes:
        return Sizes(batch=batch if "batch" in varied else own.batch, sequence=int(sequence) if "sequence" in varied else own.sequence)

    short, long = sorted((own.sequence, there.sequence))
    smaller = [*(corner(min(b, own.batch), min(s, short)) for b, s in SMALLEST), corner(own.batch, short), own]
    larger = [*(corner(max(b, there.batch), min(max(s, long), longest)) for b, s in LARGEST), corner(there.batch, long), own]
    least = _first_that_follows(told, smaller, request, trace)
    most = _first_that_follows(told, larger, request, trace)
    if {least[0], most[0]} <= {own, there}:
        raise _NoLawError("it grows otherwise at the smallest and at the largest sizes that were tried")
    limits = replace(
        resizing, batch_least=least[0].batch, batch_most=most[0].batch, sequence_least=least[0].sequence, sequence_most=most[0].sequence
    )
    return replace(told, resizing=limits), [least, most]


def _first_that_follows(told: Workload, candidates: Sequence[Sizes], request: TraceRequest, trace: Trace) -> tuple[Sizes, Workload]:
    """The first of these sizes at which the model runs what its growth says, and what it runs there; the last are its own."""
    for sizes in dict.fromkeys(candidates[:-1]):
        try:
            seen = _traced_at(request, sizes, trace).workload
        except _NoLawError:
            continue
        if not _fault(told, sizes, seen):
            return sizes, seen
    return candidates[-1], told


def _with_passing(told: Workload, seen: list[tuple[Sizes, Workload]], second: Workload, there: Sizes) -> Workload:
    """The workload with the growth of its passing tensors, where one gives those of all traces."""
    resizing = _resizing(told)
    at, own = (resizing.batch, resizing.sequence), told.footprint
    for growth in (Growth(i, j) for i, j in product(range(2), range(3))):
        held = [
            None if own is None else Fraction(own.passing_byte) * size_ratio(growth, at, (sizes.batch, sizes.sequence))
            for sizes, _ in (*seen, (there, second))
        ]
        if held == [other.footprint and other.footprint.passing_byte for _, other in (*seen, (there, second))]:
            return replace(told, resizing=replace(resizing, passing=growth))
    return told


def _resizing(told: Workload) -> Resizing:
    assert told.resizing is not None
    return told.resizing


def _fault(told: Workload, sizes: Sizes, seen: Workload) -> str:
    """How the workload rescaled to `sizes` differs from the one that was traced there; "" where it does not."""
    resizing = _resizing(told)
    try:
        rescaled = with_sizes(told, Sizes(batch=resizing.batch, sequence=resizing.sequence), sizes)
    except WorkloadError as error:
        return str(error)
    if _contents(rescaled) != _contents(seen):
        return f"at {_text(sizes)} other kernels run"
    if rescaled.footprint is not None and seen.footprint is not None and not _least(rescaled.footprint, seen.footprint):
        return f"at {_text(sizes)} its memory does not follow"
    return ""


def _least(stated: Footprint, seen: Footprint) -> bool:
    """Whether what a rescaled workload states of its memory is a least value of what was seen, and its weights the same."""
    if (stated.weights_byte, stated.optimizer_byte) != (seen.weights_byte, seen.optimizer_byte):
        return False
    return stated.cache_byte <= seen.cache_byte * COUNTERS and stated.passing_byte <= seen.passing_byte * ROUNDING


ROUNDING: Final = 1.0 + 1e-9
"""Passing tensors are scaled in floating point."""

COUNTERS: Final = 1.01
"""A cache may count its tokens in a few bytes that do not grow; of more than a hundredth it is no cache of all tokens."""


def _contents(workload: Workload) -> dict[Operator, float]:
    plain = without_growth(workload)
    return dict(zip(plain.operators, plain.counts, strict=True))


def _name(operator: Operator) -> str:
    return f"{operator.family}.{operator.operator} {'x'.join(f'{size:.15g}' for size in operator.shape)}"


def _text(sizes: Sizes) -> str:
    return f"batch {sizes.batch}" + (f", sequence {sizes.sequence}" if sizes.sequence else "")

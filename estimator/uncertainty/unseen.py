"""Kernels of unseen precisions, groups and shapes: which of them an answer reports, and their additional uncertainty.

A precision counts for each family of kernels separately: products in fp32 give no information about attention in fp32.  Kernels that only
move elements (element-wise, copies, reductions) count as one family.

Shares of the GPU time are those at the clock of the published peak rates, so that a warning depends only on the workload and the board.
A reason with a share of LEAST_SHARE or more is reported; if only their sum reaches it, all reasons are.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from estimator.bundle.content import Bundle
from estimator.model.coefficients import BY, SIXTEEN_BIT, group_words
from estimator.uncertainty.validity import HEADS, TOLERATED_FACTOR, Domain, shape_excess
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT, Array, BoolArray
from estimator.vocabulary.workload import Operator, Workload

K = TypeVar("K")
Loading = float | Array
"""Contribution of a source to the error of a logarithm: a number, or one for each of several operating points."""

LEAST_SHARE: Final = 0.01
"""Kernels that take less than this share of the GPU time raise no warning."""

PRODUCTS: Final = frozenset({"gemm", "conv", "attention", "mla", "moe"})
"""Families whose kernels compute in the precision of a whole model's run."""

MOVERS: Final = ("elementwise", "copy", "reduction")
"""Families whose kernels only move elements."""

RUNS: Final = "workload"
"""Family of held-out errors of whole models; their precision is the precision of most of their products."""

ALWAYS_IN_RUNS: Final = "fp32"
"""Precision of streams in runs of any precision: sums and softmaxes use it."""

INT8: Final = frozenset({"int8", "sq"})
"""Precisions of products of 8-bit whole numbers."""

ALIKE_STD: Final = 0.05
"""Uncertainty of ln of the time, or power, in a precision if a similar one was fitted (assumed)."""

PRIOR_STD: Final = 0.3
"""Uncertainty of ln of the time, or power, of unseen kernels: the width of the priors of a matrix product's time."""

FOREIGN_STD: Final = {"gemm": 0.03, "attention": 0.135, "mla": 0.135, "moe": 0.25}
"""Uncertainty of ln of the time of kernels whose library the bundle has not, by family.  Tables of libraries differ by 4 to 11 % in 16-bit
products, by 13 to 34 % in attention (means of pairs, B200, H200, L40S); in experts by 10 to 22 % (medians), of which one pair in twenty by
a factor of four."""

FAR_STD: Final = 0.2
"""Uncertainty of ln of the time of kernels far outside the fitted shapes: AIConfigurator's products on an A100 by the fit of runs on
another one err by 0.28 (rms) beyond its sizes, in steps of decoding by 0.2."""


class UnseenPrecision(NamedTuple):
    """A family in a precision without fitted rows; `seen`: precisions of its rows; `std`: uncertainty of ln(time), ln(power)."""

    family: str
    precision: str
    seen: tuple[str, ...]
    std: float


class Kind(NamedTuple):
    """Relation of a kernel to the fit: its group of coefficients, its precision if unseen, whether its shape is far outside the range, and
    its family if the group describes another library than the one asked for.
    """

    group: str | None
    precision: UnseenPrecision | None
    far: bool
    foreign: str

    def unseen(self, priors: frozenset[str]) -> bool:
        """Whether the fit has no such kernel; priors: groups without fitted kernels."""
        return self.far or self.precision is not None or self.group is None or self.group in priors


def unseen_precisions(bundle: Bundle, operators: Sequence[Operator], groups: Sequence[str | None]) -> tuple[UnseenPrecision | None, ...]:
    """The unseen precision of each operator, None if a fitted row of its family had it.

    groups: the group of coefficients of each operator; one of the bundle's that names a precision was fitted on it.
    """
    seen = bundle.once(fitted_precisions)
    found = {kind: _unseen(seen, *kind) for kind in {(operator.family, operator.precision) for operator in operators}}
    if not any(found.values()):
        return (None,) * len(operators)
    named = {group: group_words(group) for group in bundle.groups}
    return tuple(
        None if group in named and operator.precision in named[group] else found[operator.family, operator.precision]
        for operator, group in zip(operators, groups, strict=True)
    )


def unfitted_int8(bundle: Bundle, operators: Sequence[Operator]) -> BoolArray:
    """Whether each operator is a product in int8 without a time, as the fit has no such products, nor lent ones: it would repeat another
    precision's.
    """
    known = INT8 & {*bundle.once(fitted_precisions).get("gemm", ()), *(word for name in bundle.groups for word in group_words(name))}
    return np.array([not known and operator.precision in INT8 and operator.family in PRODUCTS for operator in operators])


def fitted_precisions(bundle: Bundle) -> dict[str, tuple[str, ...]]:
    """Precisions of fitted rows by family; families without information are left out."""
    found: dict[str, dict[str, None]] = {}
    for key, group in bundle.groups.items():
        family, *parts = group_words(key)
        if group.rows > 0:
            found.setdefault(_family(family), {}).update(dict.fromkeys(part for part in parts if part in BYTES_PER_ELEMENT))
    for row in bundle.errors:
        family, precision = row["family"], row["precision"]
        if precision not in BYTES_PER_ELEMENT:
            continue
        every = dict.fromkeys(_family(key.partition(".")[0]) for key in bundle.groups) if family == RUNS else (_family(family),)
        for one in every:
            streams = {ALWAYS_IN_RUNS: None} if family == RUNS and one not in PRODUCTS else {}
            found.setdefault(one, {}).update({precision: None} | streams)
    return {family: tuple(names) for family, names in found.items() if names}


def _family(family: str) -> str:
    return MOVERS[0] if family in MOVERS else family


def _unseen(seen: Mapping[str, tuple[str, ...]], family: str, precision: str) -> UnseenPrecision | None:
    """The unseen precision of a family, None if seen; products without fitted rows are compared with all products."""
    own = seen.get(_family(family), ())
    if not own and family in PRODUCTS:
        own = tuple(dict.fromkeys(name for product in seen if product in PRODUCTS for name in seen[product]))
    if not own or precision in own:
        return None
    alike = SIXTEEN_BIT.get(precision) in own
    return UnseenPrecision(family=family, precision=precision, seen=own, std=ALIKE_STD if alike else PRIOR_STD)


def precision_sources(kinds: Iterable[Kind], time_shares: Array | Iterable[Loading]) -> dict[str, Loading]:
    """Errors of ln(time), or ln(power), from unseen precisions: share of GPU time times uncertainty; one precision has one common error.

    time_shares: shares of the kernels of each kind, shape (n,), or (n, c) at c clocks.
    """
    own = zip((kind.precision for kind in kinds), time_shares, strict=True)
    return sums((f"precision:{one.precision}", share * one.std) for one, share in own if one)


def foreign_families(operators: Sequence[Operator], groups: Sequence[str | None]) -> list[str]:
    """The family of each operator whose group does not describe the library that it names, else ""."""
    return [
        operator.family if operator.library and not (group or "").endswith(BY + operator.library) else ""
        for operator, group in zip(operators, groups, strict=True)
    ]


def unlike_sources(kinds: Iterable[Kind], time_shares: Array | Iterable[Loading]) -> dict[str, Loading]:
    """Errors of ln(time) of kernels of another library, by family, and of far shapes; shapes as for `precision_sources`."""
    own = list(zip(kinds, time_shares, strict=True))
    libraries = sums((f"library:{kind.foreign}", share * FOREIGN_STD[kind.foreign]) for kind, share in own if kind.foreign in FOREIGN_STD)
    return libraries | sums(("far shapes", share * FAR_STD) for kind, share in own if kind.far)


def shape_excesses(operators: Sequence[Operator], groups: Sequence[str | None], domain: Domain) -> tuple[float, ...]:
    """Factor by which each operator's shape lies outside the fitted range; 0 if tolerated."""
    found = (shape_excess(operator, group, domain)[0] for operator, group in zip(operators, groups, strict=True))
    return tuple(excess if excess > TOLERATED_FACTOR else 0.0 for excess in found)


def unseen_lines(
    workload: Workload,
    domain: Domain,
    groups: Sequence[str | None],
    excesses: Sequence[float],
    priors: frozenset[str],
    shares: Mapping[Kind, float],
) -> tuple[str, ...]:
    """Lines about unseen kernels, the largest share first.

    groups, excesses: of the workload's operators; shares: of the GPU time by kind, only for unseen kinds; priors: as for `Kind.unseen`.
    """
    if not sum(shares.values()) >= LEAST_SHARE:
        return ()
    found: list[tuple[float, str]] = []
    bare = sum(share for kind, share in shares.items() if kind.group is None)
    if bare:
        names = ", ".join(sorted({o.family for o, group in zip(workload.operators, groups, strict=True) if group is None}))
        found.append((bare, f"no coefficients for {names} ({bare:.0%} of the GPU time): they are estimated without any fit"))
    guessed = _worth(sums((kind.group, share) for kind, share in shares.items() if kind.group in priors))
    if guessed:
        listed = ", ".join(f"{group} ({share:.0%} of the GPU time)" for group, share in guessed.items())
        found.append((sum(guessed.values()), f"coefficients of {listed} are priors: the fit has seen no such kernel"))
    odd = sums((kind.precision, share) for kind, share in shares.items() if kind.precision)
    for precision in dict.fromkeys(one.precision for one in odd):
        own = _worth({one: share for one, share in odd.items() if one.precision == precision})
        listed = ", ".join(f"{one.family} ({share:.0%} of the GPU time; fitted in {', '.join(one.seen)})" for one, share in own.items())
        line = f"the fit has seen no kernels in {precision} of {listed}: outside its validity, the interval is wider for them"
        found.append((sum(own.values()), line))
    for group, share in sums((kind.group, share) for kind, share in shares.items() if kind.far and kind.group).items():
        members = [i for i, name in enumerate(groups) if name == group and excesses[i]]
        operator = workload.operators[max(members, key=excesses.__getitem__)]
        field = shape_excess(operator, group, domain)[1]
        fitted = domain.get(group, {}).get(field)
        low, high = fitted or HEADS
        limit = "the fitted range" if fitted else "the heads of FlashAttention's kernels,"
        others = f"the farthest of {len(members)} kernels with " if len(members) > 1 else ""
        line = f"{group}: {field} = {operator[field]:g} is outside {limit} {low:g} to {high:g}"
        found.append((share, f"{line} ({others}{share:.0%} of the GPU time)"))
    found.sort(key=lambda reason: (-reason[0], reason[1]))
    named = [line for share, line in found if share >= LEAST_SHARE]
    return tuple(named or [line for _, line in found])


def _worth(shares: Mapping[K, float]) -> Mapping[K, float]:
    """The shares that are worth a word; all if none is."""
    return {name: share for name, share in shares.items() if share >= LEAST_SHARE} or shares


def sums(parts: Iterable[tuple[K, Loading]]) -> dict[K, Any]:
    """The sum of the parts of each name, numbers or arrays of one shape."""
    found: dict[K, Any] = {}
    for name, part in parts:
        found[name] = found.get(name, 0.0) + part
    return found

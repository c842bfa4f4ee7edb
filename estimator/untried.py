"""Kernels in a precision that no fitted row had: which they are, what they take of the time, and how much less is known of them.

A precision counts for each family of kernels by itself: products in fp32 tell nothing about attention in fp32.  Kernels that only move
elements (element-wise, copies, reductions) count as one family.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from estimator.bundles.content import Bundle
from estimator.quantities import BYTES_PER_ELEMENT, Array
from estimator.workload import Operator

Loading = float | Array
"""What a source adds to the error of a logarithm: a number, or one for each of several operating points."""

PRODUCTS: Final = frozenset({"gemm", "conv", "attention"})
"""Families whose kernels compute in the precision of a run of a whole model."""

MOVERS: Final = ("elementwise", "copy", "reduction")
"""Families whose kernels only move elements."""

RUNS: Final = "workload"
"""Family of held-out errors of whole models, whose precision is that of most of their products."""

ALWAYS_IN_RUNS: Final = "fp32"
"""Runs in any precision hold streams in this one too: sums and softmaxes are kept in it."""

ALIKE_PRECISIONS: Final = (frozenset({"bf16", "fp16"}),)
"""Precisions whose kernels have the same tiles, rates and bytes."""

ALIKE_STD: Final = 0.05
"""Spread of ln of the time, or power, in a precision of which an alike one was fitted (assumed)."""

PRIOR_STD: Final = 0.3
"""Spread of ln of the time, or power, of kernels that the fit has not seen: the width of the priors of a matrix product's time."""


class Untried(NamedTuple):
    """A family in a precision that no fitted row of it had; `seen`: those that its rows had; `std`: spread of ln(time), ln(power)."""

    family: str
    precision: str
    seen: tuple[str, ...]
    std: float


def untried_precisions(bundle: Bundle, operators: Sequence[Operator], groups: Sequence[str | None]) -> tuple[Untried | None, ...]:
    """For each operator what makes its precision an untried one, None for all others.

    groups: the group of coefficients that serves each operator; one that names a precision was fitted on it.
    """
    kinds = {(operator.family, operator.precision) for operator in operators}
    seen = bundle.once(fitted_precisions)
    found = {kind: odd for kind in kinds if (odd := _untried(seen, *kind))}
    if not found:
        return (None,) * len(operators)
    return tuple(
        None if operator.precision in (group or "").split(".") else found.get((operator.family, operator.precision))
        for operator, group in zip(operators, groups, strict=True)
    )


def untried_shares(untried: Sequence[Untried | None], time_shares: Array | Sequence[Loading]) -> dict[Untried, Loading]:
    """Share of the GPU time by family and untried precision; time_shares: shape (n,), or (n, c) at c clocks."""
    shares: dict[Untried, Loading] = {}
    if any(untried):
        for odd, weight in zip(untried, time_shares, strict=True):
            if odd is not None:
                shares[odd] = shares.get(odd, 0.0) + weight
    return shares


def untried_sources(shares: Mapping[Untried, Loading]) -> dict[str, Loading]:
    """Errors of ln(time), or ln(power), that untried precisions add: share times spread; families in one precision err alike."""
    sources: dict[str, Loading] = {}
    for odd, share in shares.items():
        name = f"precision:{odd.precision}"
        sources[name] = sources.get(name, 0.0) + share * odd.std
    return sources


def fitted_precisions(bundle: Bundle) -> dict[str, tuple[str, ...]]:
    """Precisions that fitted rows had, by family; families of which nothing tells are left out."""
    found: dict[str, dict[str, None]] = {}
    for key, group in bundle.groups.items():
        family, *parts = key.split(".")
        if group.rows > 0:
            found.setdefault(_kind(family), {}).update(dict.fromkeys(part for part in parts if part in BYTES_PER_ELEMENT))
    for row in bundle.errors:
        named, precision = row.get("family"), row.get("precision")
        if not (isinstance(named, str) and isinstance(precision, str) and precision in BYTES_PER_ELEMENT):
            continue
        if named == RUNS:
            for one in dict.fromkeys(_kind(key.partition(".")[0]) for key in bundle.groups):
                streams = {} if one in PRODUCTS else {ALWAYS_IN_RUNS: None}
                found.setdefault(one, {}).update({precision: None} | streams)
        else:
            found.setdefault(_kind(named), {})[precision] = None
    return {family: tuple(names) for family, names in found.items() if names}


def _kind(family: str) -> str:
    return MOVERS[0] if family in MOVERS else family


def _untried(seen: Mapping[str, tuple[str, ...]], family: str, precision: str) -> Untried | None:
    """What makes a precision of a family an untried one; products of which nothing was seen are held against all products."""
    own = seen.get(_kind(family), ())
    if not own and family in PRODUCTS:
        own = tuple(dict.fromkeys(name for product in seen if product in PRODUCTS for name in seen[product]))
    if not own or precision in own:
        return None
    alike = any(precision in names and names & set(own) for names in ALIKE_PRECISIONS)
    return Untried(family=family, precision=precision, seen=own, std=ALIKE_STD if alike else PRIOR_STD)

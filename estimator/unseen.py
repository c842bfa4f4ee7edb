"""Kernels of which the fit has not seen the like: the reasons, and which of them take enough of an answer's time to be said.

A reason is said with its share of the GPU time at the clock that runs.  Those that concern less than LEAST_SHARE each are one line
where they concern as much together, and none below: every model holds a few kernels of one element, and none of them decides its time.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from estimator.bundles.content import Bundle
from estimator.domain import TOLERATED_FACTOR, shape_excess
from estimator.quantities import Array, IntArray
from estimator.untried import Loading, Untried
from estimator.workload import Operator, Workload

LEAST_SHARE: Final = 0.01
"""Share of the GPU time below which it says nothing about an answer that the fit has not seen the like of some kernels."""

UNSAID: Final = -1
UNKNOWN: Final = -2
"""Stand for a share in percent: that of a reason that is not said, and one of a time that is not finite."""

Domain = Mapping[str, Mapping[str, tuple[float, float]]]
SharedLines = tuple[tuple[str, ...], ...]


class Kind(NamedTuple):
    """What the fit knows of a kernel: its group of coefficients or none, its precision if untried, and whether its shape is far outside.

    completed: the workload file did not list it.
    """

    group: str | None
    untried: Untried | None
    far: bool
    completed: bool

    def unseen(self, priors: frozenset[str]) -> bool:
        """Whether the fit has seen no such kernel; priors: groups of which it has seen none."""
        return self.far or self.untried is not None or self.group is None or self.group in priors


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why kernels are unlike those fitted: `name` among others, the kinds by part that its line lists, and that line, given percents."""

    name: str
    parts: tuple[frozenset[Kind], ...]
    line: Callable[[Sequence[int]], str]


def shape_excesses(operators: Sequence[Operator], groups: Sequence[str | None], domain: Domain) -> tuple[float, ...]:
    """For each operator how far its shape lies outside what the fit has seen, as a factor; 0 where that is tolerated."""
    found = (shape_excess(operator, group, domain)[0] for operator, group in zip(operators, groups, strict=True))
    return tuple(excess if excess > TOLERATED_FACTOR else 0.0 for excess in found)


def unseen_shares(kinds: Iterable[Kind], priors: frozenset[str], time_shares: Array | Iterable[Loading]) -> dict[Kind, Loading]:
    """Share of the GPU time by kind that the fit has not seen; time_shares: of the kernels or blocks of a kind, shape (n,) or (n, c)."""
    shares: dict[Kind, Loading] = {}
    for kind, weight in zip(kinds, time_shares, strict=True):
        if kind.unseen(priors):
            shares[kind] = shares.get(kind, 0.0) + weight
    return shares


def unseen_lines(
    workload: Workload,
    bundle: Bundle,
    groups: Sequence[str | None],
    excesses: Sequence[float],
    priors: frozenset[str],
    shares: Mapping[Kind, Loading],
    clocks: int,
) -> tuple[SharedLines, IntArray]:
    """Lines on kernels that the fit has not seen: the sets of them that hold at some clock, and for each of c clocks the number of its set.

    groups, excesses: of the workload's operators; shares: as from `unseen_shares`, each of shape (c,).  What is said of a clock follows
    from its shares alone.
    """
    if not shares:
        return ((),), np.zeros(clocks, dtype=np.int64)
    kinds = sorted(
        shares, key=lambda kind: (kind.group or "", kind.untried or (), kind.far, kind.completed)
    )  # whatever the order of the kernels
    table = np.array([shares[kind] for kind in kinds]).reshape(len(kinds), -1)
    reasons = _reasons(workload, bundle, groups, excesses, priors, kinds)
    states = _states(reasons, kinds, table)
    first = np.flatnonzero(np.concatenate([[True], np.any(states[:, 1:] != states[:, :-1], axis=0)]))
    sets = [_lines(reasons, states[:, i].tolist()) for i in first.tolist()]
    numbers = {lines: number for number, lines in enumerate(dict.fromkeys(sets))}
    return tuple(numbers), np.repeat([numbers[lines] for lines in sets], np.diff(np.append(first, clocks)))


def _states(reasons: Sequence[Reason], kinds: Sequence[Kind], table: Array) -> IntArray:
    """Percents of the time at c clocks: a row for each part of each reason, in order, and one for the small reasons together."""
    rows: list[Array] = []
    hidden = np.zeros(table.shape, dtype=bool)
    for reason in reasons:
        own = [np.array([kind in part for kind in kinds]) for part in reason.parts]
        concerned = np.any(own, axis=0)
        small = table[concerned].sum(axis=0) < LEAST_SHARE
        hidden |= concerned[:, None] & small
        rows += [np.where(small, UNSAID, _percent(table[part].sum(axis=0))) for part in own]
    together = np.where(hidden, table, 0.0).sum(axis=0)
    rows.append(np.where(together < LEAST_SHARE, UNSAID, _percent(together)))
    return np.array(rows, dtype=np.int64)


def _percent(share: Array) -> Array:
    percent: Array = np.nan_to_num(np.round(100.0 * share), nan=UNKNOWN, posinf=UNKNOWN)
    return percent


def _lines(reasons: Sequence[Reason], state: Sequence[int]) -> tuple[str, ...]:
    said, unsaid, start = [], [], 0
    for reason in reasons:
        percents = state[start : start + len(reason.parts)]
        start += len(reason.parts)
        if UNSAID in percents:
            unsaid.append(reason.name)
        else:
            said.append(reason.line(percents))
    if state[-1] != UNSAID:
        said.append(f"kernels unlike those fitted take {state[-1]}% of the GPU time together, each sort under 1%: {', '.join(unsaid)}")
    return tuple(said)


def _of_time(percent: int) -> str:
    return "" if percent == UNKNOWN else f"{percent}% of the GPU time"


def _added(*texts: str) -> str:
    """Texts in brackets; nothing where all are empty."""
    told = "; ".join(text for text in texts if text)
    return f" ({told})" if told else ""


def _reasons(
    workload: Workload,
    bundle: Bundle,
    groups: Sequence[str | None],
    excesses: Sequence[float],
    priors: frozenset[str],
    kinds: Sequence[Kind],
) -> list[Reason]:
    """One reason for each way in which a workload leaves what the bundle was fitted on."""
    found = [_unmodelled(workload, groups, kinds)] if any(kind.group is None for kind in kinds) else []
    guessed = sorted({kind.group for kind in kinds if kind.group is not None and kind.group in priors})
    if guessed:
        found.append(_guessed(guessed, kinds))
    odd = dict.fromkeys(kind.untried for kind in kinds if kind.untried is not None)
    found += [_strange([one for one in odd if one.precision == name], kinds) for name in dict.fromkeys(one.precision for one in odd)]
    far = dict.fromkeys(kind.group for kind in kinds if kind.far and kind.group is not None)
    return found + [_far(workload.operators, bundle.domain, groups, excesses, group, kinds) for group in far]


def _unmodelled(workload: Workload, groups: Sequence[str | None], kinds: Sequence[Kind]) -> Reason:
    count = sum(count for group, count in zip(groups, workload.counts, strict=True) if group is None)
    total = sum(workload.counts) + sum(unknown.count for unknown in workload.unknown)
    names = ", ".join(sorted({o.family for o, group in zip(workload.operators, groups, strict=True) if group is None}))
    return Reason(
        name=f"{names} without coefficients",
        parts=(frozenset(kind for kind in kinds if kind.group is None),),
        line=lambda percents: (
            f"no coefficients for {names}: {count:g} of {total:g} operators{_added(_of_time(percents[0]))} are estimated without any fit"
        ),
    )


def _guessed(groups: Sequence[str], kinds: Sequence[Kind]) -> Reason:
    def line(percents: Sequence[int]) -> str:
        listed = ", ".join(f"{group}{_added(_of_time(percent))}" for group, percent in zip(groups, percents, strict=True))
        return f"coefficients of {listed} are priors: the fit has seen no such kernel"

    parts = tuple(frozenset(kind for kind in kinds if kind.group == group) for group in groups)
    return Reason(name=f"priors of {', '.join(groups)}", parts=parts, line=line)


def _strange(odd: Sequence[Untried], kinds: Sequence[Kind]) -> Reason:
    """Families in one precision that no fitted row of theirs had."""

    def line(percents: Sequence[int]) -> str:
        told = zip(odd, percents, strict=True)
        listed = ", ".join(one.family + _added(_of_time(percent), f"fitted in {', '.join(one.seen)}") for one, percent in told)
        return f"the fit has seen no kernels in {odd[0].precision} of {listed}: outside its validity, the interval is wider for them"

    parts = tuple(frozenset(kind for kind in kinds if kind.untried == one) for one in odd)
    return Reason(name=odd[0].precision, parts=parts, line=line)


def _far(
    operators: Sequence[Operator],
    domain: Domain,
    groups: Sequence[str | None],
    excesses: Sequence[float],
    group: str,
    kinds: Sequence[Kind],
) -> Reason:
    """Shapes of a group far outside those fitted: the farthest stands for all."""
    own = [i for i, name in enumerate(groups) if name == group and excesses[i]]
    operator = operators[max(own, key=excesses.__getitem__)]
    field = shape_excess(operator, group, domain)[1]
    low, high = domain[group][field]
    text = f"{group}: {field} = {operator[field]:g} is outside the fitted range {low:g} to {high:g}"
    farthest = f"the farthest of {len(own)} kernels with " if len(own) > 1 else ""
    return Reason(
        name=f"shapes of {group}",
        parts=(frozenset(kind for kind in kinds if kind.far and kind.group == group),),
        line=lambda percents: f"{text}{_added(farthest + _of_time(percents[0]) if percents[0] != UNKNOWN else '')}",
    )

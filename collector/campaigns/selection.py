"""Which points of a plan a budget is spent on: those that add most to the fit, or a random choice.

Actively, kernels are chosen by the shared criterion of `estimator.engine.design`.  Part of the budget measures
power, of every kind of kernel
first; the rest times many more kernels without it, as several of them take no longer than one power.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from math import ceil
from typing import Final, Literal

import numpy as np

from collector.campaigns.measurement import Point
from collector.errors import CampaignError
from estimator.engine.design import Design, design_points, error_covariance, greedy_choices, phase_columns
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import Array, IntArray

Way = Literal["active", "random"]

POWER_SHARE: Final = 0.75
"""Share of the time for kernels in which power is measured, the rest in which kernels are only timed [1].  With it, and a tenth of the
quick campaign's time, latency and power of a simulated A100 and H200 suffer about alike."""

MOST_CANDIDATES: Final = 1000
"""Of a kind with more points than this a random choice of this many are candidates: it bounds memory and time."""

MOST_WEIGHED: Final = 1500
"""So many points are chosen by what they add; of those beyond, in random order, one tells about as much as another."""

ANCHOR_SHARE: Final = 0.1
"""Repetitions that show drift may take this share of the time; where they would take more they are left out [1]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointCosts:
    """Expected times [s]: of a point whose power is measured, of one that is only timed, and of the rest before one that asks for it."""

    full_s: float
    timed_s: float
    rest_s: float

    def of(self, point: Point) -> float:
        """Expected time of a point [s]."""
        return (self.timed_s if point.timed_only else self.full_s) + (self.rest_s if point.idle_before else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was chosen, and of what.

    way, budget_s   how, and for how long a campaign
    rows, of        points chosen without repetitions of anchors, and points of the whole plan without them
    timed           of those chosen, how many are only timed
    kinds, of_kinds, left_out   kinds of kernels that are in the choice and in the plan, and the names of those that are not
    """

    way: Way
    budget_s: float
    rows: int
    of: int
    timed: int
    kinds: int
    of_kinds: int
    left_out: tuple[str, ...]

    @property
    def text(self) -> str:
        """The choice as a campaign's key has it."""
        return f"{self.way} for {self.budget_s:g} s"


def least_time_s(points: Sequence[Point], costs: PointCosts) -> float:
    """Time for one kernel of every kind [s]."""
    return costs.full_s * len({kind_of(point) for point in points if not point.anchor})


def choose_points(
    points: Sequence[Point], way: Way, budget_s: float, fixed_s: float, costs: PointCosts, gpu: GpuSpec, seed: int
) -> tuple[tuple[Point, ...], Choice]:
    """The points that a budget is spent on, in the order of the plan; the same arguments give the same choice.

    budget_s: of the board's time, of which `fixed_s` go to what is no point.  Raises CampaignError where no point is left.
    """
    left_s = budget_s - fixed_s
    anchors = _few_anchors(points, ANCHOR_SHARE * left_s, costs)
    left_s -= sum(costs.of(points[i]) for i in anchors)
    candidates = np.array([i for i, point in enumerate(points) if not point.anchor], dtype=np.int64)
    if left_s < costs.full_s:
        raise CampaignError(no_time_text(budget_s, fixed_s, costs.full_s))
    random = np.random.default_rng(np.random.SeedSequence([seed, len(points), 2]))
    if way == "active":
        powered, timed = _shared_time(points, candidates, left_s, costs, gpu, random)
    else:
        powered, timed = random.permutation(candidates)[: int(left_s / costs.full_s)].tolist(), []
    only = frozenset(timed)
    kept = sorted((*anchors, *powered, *timed))
    chosen = tuple(_timed(points[i]) if i in only else _unrested(points[i]) for i in kept)
    kinds = list(dict.fromkeys(kind_of(points[i]) for i in candidates.tolist()))
    there = {kind_of(points[i]) for i in (*powered, *timed)}
    choice = Choice(
        way=way,
        budget_s=budget_s,
        rows=len(powered) + len(timed),
        of=len(candidates),
        timed=len(timed),
        kinds=len(there),
        of_kinds=len(kinds),
        left_out=tuple(kind for kind in kinds if kind not in there),
    )
    return chosen, choice


def no_time_text(budget_s: float, fixed_s: float, kernel_s: float) -> str:
    """Why a budget is too small for any kernel, and what is enough."""
    return (
        f"a budget of {budget_s:.0f} s leaves no time for a kernel: about {fixed_s:.0f} s go to the sensor, warming up and idle power; "
        f"give at least {ceil(fixed_s + kernel_s)} s"
    )


def kind_of(point: Point) -> str:
    """Family, operator, number format, L2 state and layout, the natural one unnamed; of every kind that was asked for one is measured."""
    operator = point.operator
    cuda = ".cuda" if operator.cuda_cores else ""
    cold = "" if point.l2_state == "warm" else f" {point.l2_state}"
    layout = f" {point.transpose}" if point.transpose else ""
    return f"{operator.family}.{operator.operator}.{operator.precision}{cuda}{cold}{layout}"


def _shared_time(
    points: Sequence[Point], candidates: IntArray, left_s: float, costs: PointCosts, gpu: GpuSpec, random: np.random.Generator
) -> tuple[list[int], list[int]]:
    """Points whose power is measured, and points that are only timed."""
    generated = [i for i in candidates.tolist() if points[i].load is not None]
    library = [i for i in candidates.tolist() if points[i].load is None]
    powered: list[int] = []
    if generated:  # they price instructions and are their own problem: their share of the plan, at random
        share_s = left_s * len(generated) / len(candidates)
        powered = random.permutation(generated)[: int(share_s / (costs.full_s + costs.rest_s))].tolist()
        left_s -= share_s
    kinds = len({kind_of(points[i]) for i in library})
    count = min(max(int(POWER_SHARE * left_s / costs.full_s), min(kinds, int(left_s / costs.full_s))), len(library))
    timed = min(int((left_s - count * costs.full_s) / costs.timed_s), len(library) - count)
    if count + timed == len(library):  # all of them fit: what is left of the time measures more power
        spare_s = left_s - count * costs.full_s - timed * costs.timed_s
        more = min(timed, int(spare_s / (costs.full_s - costs.timed_s)))
        count, timed = count + more, timed - more
    order = _ordered(points, library, count + timed, gpu, random)
    first, rest = order[: min(kinds, count)], order[min(kinds, count) :]
    spread = np.zeros(len(rest), dtype=np.bool_)  # power from the most telling to the least: its coefficients serve them all
    if count > len(first):
        spread[np.linspace(0, len(rest) - 1, count - len(first)).round().astype(np.int64)] = True
    powered += [*first, *(i for i, full in zip(rest, spread, strict=True) if full)]
    return powered, [i for i, full in zip(rest, spread, strict=True) if not full]


def _ordered(points: Sequence[Point], library: list[int], count: int, gpu: GpuSpec, random: np.random.Generator) -> list[int]:
    """`count` points: one of every kind, clocks in turn, then the most telling first."""
    pools, designs = _designs(points, library, gpu, random)
    clocks = dict.fromkeys([points[i].sm_clock_mhz for i in library], 0)
    order: list[int] = []
    for section in sorted(range(len(pools)), key=lambda s: -designs[s].variance)[:count]:
        gains = designs[section].gains()
        scarce = np.array([clocks[points[i].sm_clock_mhz] for i in pools[section].tolist()])
        place = int(np.argmax(np.where(scarce == scarce.min(), gains, -np.inf)))
        designs[section].take(place)
        order.append(int(pools[section][place]))
        clocks[points[order[-1]].sm_clock_mhz] += 1
    if len(order) < count:
        for section, place in greedy_choices(designs):
            order.append(int(pools[section][place]))
            if len(order) >= min(count, MOST_WEIGHED):
                break
    others = random.permutation(sorted(set(library).difference(order)))
    return [*order, *others[: count - len(order)].tolist()]


def _designs(points: Sequence[Point], library: list[int], gpu: GpuSpec, random: np.random.Generator) -> tuple[list[IntArray], list[Design]]:
    """Candidates of every kind, and their designs."""
    members: dict[str, list[int]] = {}
    for i in library:
        members.setdefault(kind_of(points[i]), []).append(i)
    pools, designs = [], []
    for found in members.values():
        index = np.array(found, dtype=np.int64)
        pool = index if len(index) <= MOST_CANDIDATES else np.sort(random.choice(index, MOST_CANDIDATES, replace=False))
        own = [points[i] for i in pool.tolist()]
        operators = [point.operator for point in own]
        clock = _clock_mhz(own, gpu)
        moved = phase_columns(operators, gpu, clock, np.array([point.l2_state == "warm" for point in own]))
        pools.append(pool)
        designs.append(Design(moved, error_covariance(design_points(operators, clock)), share=len(index) / len(pool)))
    return pools, designs


def _clock_mhz(points: Sequence[Point], gpu: GpuSpec) -> Array:
    """SM clock of each point [MHz]; the highest where clocks are left alone."""
    return np.array([gpu.sm_clock_max_mhz if point.sm_clock_mhz is None else point.sm_clock_mhz for point in points])


def _few_anchors(points: Sequence[Point], most_s: float, costs: PointCosts) -> list[int]:
    """Of every anchor its first repetition and the last at the same clock; none where they would take more than `most_s`."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for i, point in enumerate(points):
        if point.anchor:
            name = repr(point.operator)
            start = first.setdefault(name, i)
            if points[start].sm_clock_mhz == point.sm_clock_mhz:
                last[name] = i
    found = sorted({*first.values(), *last.values()})
    return found if sum(costs.of(points[i]) for i in found) <= most_s else []


def _unrested(point: Point) -> Point:
    """The point without the rest that the first of a block of kernels has: in a short campaign anchors have it often enough."""
    return point if point.anchor or point.load is not None else replace(point, idle_before=False)


def _timed(point: Point) -> Point:
    """The point as one that is only timed.  It has a row of its own: the power of the same point may be measured later."""
    row_id = sha256(f"{point.row_id}/timed".encode()).hexdigest()[: len(point.row_id)]
    return replace(point, row_id=row_id, idle_before=False, timed_only=True)

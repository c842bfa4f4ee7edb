"""Choice of a plan's points for a budget: a random choice in which every kind of kernel comes first, in shorter runs.

Power is measured in a part of the time.  The rest times more kernels without it: several of them take no longer than one with power.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from math import ceil
from typing import Final

import numpy as np

from collector.campaigns.files import PREPARE_S, CampaignSpec
from collector.campaigns.measurement import TIMED_GAP_S, Point
from collector.errors import CampaignError
from collector.sensing.calibration import SensorCalibration
from estimator.vocabulary.values import frozen
from estimator.vocabulary.workload import Operator

HASTY_WINDOW: Final = 0.2
HASTY_SETTLING: Final = 0.3
"""Window and settling of a choice as shares of the campaign's [1].

Shares of 0.4 and 0.5 halve the number of kernels with power in a tenth of the time, and held-out errors of power on a simulated A100 grow
from 1.09 to 1.15 times those of the whole campaign; the shorter run itself changes a power by 1 %, as the die stays colder.
"""


ANCHOR_SHARE: Final = 0.06
"""Largest share of a budget that repetitions take [1]: those of `quick`, at the ends of the campaign, take 0.05 of five minutes."""


def point_cost_s(point: Point, spec: CampaignSpec, sensor: SensorCalibration) -> tuple[float, float]:
    """Expected times of a point with a sensor like this: under load, and with its preparation and rest [s]."""
    settings = spec.measurement
    run_s, gap_s = settings.planned_run_s(sensor), settings.gap_s
    if point.timed_only:
        run_s, gap_s = settings.timed_s, min(gap_s, TIMED_GAP_S)
    load_s = 2.0 * settings.ranging_s + run_s
    return load_s, load_s + (PREPARE_S + gap_s) + settings.idle_s * point.idle_before


@frozen
class Choice:
    """A part of a plan: for a campaign of `budget_s`, `rows` of its `of` points without anchors, `timed` of them without power.

    `left_out` names the kinds of kernels in the plan that are missing in the part.
    """

    budget_s: float
    rows: int
    of: int
    timed: int
    left_out: tuple[str, ...]


def hastened(spec: CampaignSpec) -> CampaignSpec:
    """The campaign with the shorter runs in which a choice measures power.

    The equations' own errors are larger than the error from a shorter window, and further kernels reduce them.  The sensor's own time to
    settle is kept in any case.
    """
    usual = spec.measurement
    hasty = replace(
        usual,
        updates=max(4, round(HASTY_WINDOW * usual.updates)),
        window_s=HASTY_WINDOW * usual.window_s,
        settle_s=HASTY_SETTLING * usual.settle_s,
        gap_s=min(usual.gap_s, TIMED_GAP_S),
    )
    return replace(spec, measurement=hasty)


def choose_points(
    points: Sequence[Point], budget_s: float, fixed_s: float, cost_s: Callable[[Point], float], seed: int
) -> tuple[tuple[Point, ...], Choice]:
    """The points that fit a budget, in the order of the plan; the same arguments give the same choice.

    budget_s: of the board's time; fixed_s: the part of it outside the points; cost_s: expected time of a point [s].  Of the anchors only a
    first and a last one stay, and none in a short campaign.  Raises CampaignError if no point is left.
    """
    places = [place for place, point in enumerate(points) if not point.anchor]
    candidates = [replace(points[place], idle_before=points[place].load is not None) for place in places]
    anchors = _first_and_last(points)
    anchors_s = sum(cost_s(points[place]) for place in anchors)
    if anchors_s > ANCHOR_SHARE * budget_s:
        anchors, anchors_s = (), 0.0
    fixed_s += anchors_s
    order = np.random.default_rng([seed, len(points), 2]).permutation(len(candidates)).tolist()
    kinds = list(map(kind_of, candidates))
    first = {kinds[i]: i for i in reversed(order)}
    order = [*first.values(), *(i for i in order if first[kinds[i]] != i)]
    chosen: dict[int, Point] = {}
    left_s, power_s = budget_s - fixed_s, 0.0
    for rank, i in enumerate(order):
        point = candidates[i]
        # Power is measured in three quarters of the time, in the rest kernels are only timed.  Without the rest, held-out errors of latency
        # on a simulated A100 are 1.31 instead of 1.04 times those of the whole campaign, with a tenth of its time.
        powered = rank < len(first) or point.load is not None or power_s <= 0.75 * (budget_s - fixed_s - left_s)
        point = point if powered else timed_point(point)
        point_s = cost_s(point)
        left_s -= point_s
        if left_s < 0.0:
            break
        power_s += point_s if powered else 0.0
        chosen[i] = point
    for i, point in chosen.items():  # if all of them fit, the remaining time measures more power
        whole = candidates[i]
        if point.timed_only and left_s >= (more_s := cost_s(whole) - cost_s(point)):
            chosen[i] = whole
            left_s -= more_s
    if not chosen:
        raise CampaignError(
            f"a budget of {budget_s:.0f} s leaves no time for a kernel: about {fixed_s:.0f} s go to the sensor, warming up and idle power; "
            f"give at least {ceil(fixed_s + cost_s(candidates[order[0]]))} s"
        )
    there = set(map(kind_of, chosen.values()))
    choice = Choice(
        budget_s=budget_s,
        rows=len(chosen),
        of=len(candidates),
        timed=sum(point.timed_only for point in chosen.values()),
        left_out=tuple(dict.fromkeys(kind for kind in kinds if kind not in there)),
    )
    kept = {places[i]: point for i, point in chosen.items()} | {place: points[place] for place in anchors}
    return tuple(kept[place] for place in sorted(kept)), choice


def _first_and_last(points: Sequence[Point]) -> tuple[int, ...]:
    """Places of the first anchor of each operator, and of the last one like it at the same clock."""
    found: dict[Operator, list[int]] = {}
    for place, point in enumerate(points):
        if point.anchor:
            pair = found.setdefault(point.operator, [place, place])
            if points[pair[0]].sm_clock_mhz == point.sm_clock_mhz:
                pair[1] = place
    return tuple(place for pair in found.values() if pair[0] < pair[1] for place in pair)


def kind_of(point: Point) -> str:
    """Family, operator, number format, L2 state and layout, the natural one unnamed; a choice measures each kind first."""
    operator = point.operator
    cuda = ".cuda" if operator.cuda_cores else ""
    cold = "" if point.l2_state == "warm" else f" {point.l2_state}"
    layout = f" {point.transpose}" if point.transpose else ""
    return f"{operator.family}.{operator.operator}.{operator.precision}{cuda}{cold}{layout}"


def timed_point(point: Point) -> Point:
    """The point as a time-only point.  It has a row of its own: the power of the same point may be measured later."""
    row_id = sha256(f"{point.row_id}/timed".encode()).hexdigest()[: len(point.row_id)]
    return replace(point, row_id=row_id, timed_only=True)

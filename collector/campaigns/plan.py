"""What a campaign will measure: which kernels at which clocks, in which order."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from collector.campaigns.characterisation_time import characterisation_s
from collector.campaigns.files import CampaignSpec
from collector.campaigns.generated_plan import campaign_loads, load_points
from collector.campaigns.measurement import Point
from collector.campaigns.selection import Choice, PointCosts, Way, choose_points, least_time_s, no_time_text
from collector.campaigns.timed_point import TIMED_GAP_S, TIMED_RUN_S
from collector.devices.protocols import KernelRunner
from collector.errors import CampaignError
from collector.sensing.calibration import SensorCalibration
from collector.sensing.known_sensor import DEFAULT_PERIOD_S
from estimator.errors import WorkloadError
from estimator.gpu import GpuSpec
from estimator.specifications import near_match
from estimator.workload import Operator
from microbench.layouts import other_layout
from microbench.loads.generated import FAMILY
from microbench.shapes import KernelGroup, draw_operators

ROW_ID_DIGITS: Final = 16
SUPPORT_PROBES: Final = 5
"""Kernels of a group tried before its precision counts as unsupported; a single one may fail for its size."""
USUAL_POWER_SHARE: Final = 0.5
"""Mean power of a campaign's kernels as a share of the power limit: 0.50 on the simulated A100 at three clocks."""
CLOCK_SETTLE_S: Final = 0.2
"""Rest after the clock was changed."""
CLOSING_CLOCKS: Final = 3
"""Clocks at which power at rest is read again at the end, at most: the lowest, the middle and the highest."""

HASTY_WINDOW: Final = 0.2
HASTY_SETTLING: Final = 0.3
LEAST_UPDATES: Final = 4
"""Window and settling of an active choice as shares of the campaign's [1], and sensor updates behind a power at least.  Shares of 0.4 and
0.5 halve the kernels whose power a tenth of the time measures, and held-out errors of power on a simulated A100 grow from 1.09 to 1.15
times those of the whole campaign; what the shorter run itself adds to a power is 1 % of it, as the die stays colder."""

Kernel = tuple[Operator, str, str]
"""An operator, its L2 state and the layout of its inputs, "" for the natural one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignPlan:
    """All points in the order in which they are measured.

    `kernels` counts the different kernels by family, `anchors` the repetitions that show drift; `skipped` says
    which groups this board cannot run, and why.  `characterisation_s` is for the sensor, `estimated_s` the board's time from start to
    end, `estimated_energy_j` its energy at the power that kernels usually draw (None for a GPU that is not named); more than its power
    limit for that time it cannot be.  `choice` says which of the campaign's points these are where a budget chose among them.  `remarks`
    are what else a person should know.
    """

    points: tuple[Point, ...]
    clocks_mhz: tuple[float | None, ...]
    kernels: dict[str, int]
    anchors: int
    skipped: dict[str, int]
    characterisation_s: float
    estimated_s: float
    estimated_energy_j: float | None
    choice: Choice | None = None
    remarks: tuple[str, ...] = ()


def plan_campaign(
    spec: CampaignSpec,
    clocks_mhz: tuple[float | None, ...],
    families: Sequence[str],
    seed: int,
    gpu_uuid: str,
    runner: KernelRunner,
    gpu: GpuSpec | None = None,
    *,
    meter: bool = False,
    sensor_known: bool = False,
) -> CampaignPlan:
    """The plan of a campaign; the same arguments give the same plan.

    `families` limits it to some kernel families (empty: all).  `gpu` is needed where the campaign has generated kernels.  With a
    `meter` the sensor is characterised against it, which takes longer; one that is known is not.

    Raises CampaignError for a family that the campaign does not have, for ranges that make no kernels, where nothing is left and where
    generated kernels cannot be assembled.
    """
    known = tuple(dict.fromkeys((*(group.family for group in spec.kernels), *([FAMILY] if spec.instructions else []))))
    for family in families:
        if family not in known:
            raise CampaignError(f"campaign {spec.name} has no family {family!r}{near_match(family, known)}; it has: {', '.join(known)}")
    kernels: dict[Kernel, None] = {}
    skipped: dict[str, int] = {}
    for index, group in enumerate(spec.kernels):
        if families and group.family not in families:
            continue
        operators, layouts = _drawn(group, np.random.SeedSequence([seed, index]), runner)
        for layout in group.transpose or ("",):
            if layout in layouts:
                kernels.update(dict.fromkeys((one, group.l2_state, other_layout(one, layout)) for one in operators))
            else:
                named = f" {layout}" if layout else ""
                what = f"{group.family}.{group.operator}.{group.precision}{named}: not on this board"
                skipped[what] = skipped.get(what, 0) + group.count
    remarks: list[str] = []
    loads, refused = campaign_loads(spec, families, gpu, seed, remarks.append)
    skipped.update(refused)
    if not kernels and not loads:
        raise CampaignError(
            f"campaign {spec.name} has no kernel that this board runs{_why(skipped)}; choose other families or another campaign"
        )
    anchors = tuple(operator for operator in spec.anchors if runner.supports(operator))
    own = _ordered(spec, list(kernels), anchors, clocks_mhz, seed, gpu_uuid)
    points = (*own, *load_points(spec, loads, clocks_mhz, seed, gpu_uuid))
    counts: dict[str, int] = {FAMILY: len(loads)} if loads else {}
    clock = middle_clock(clocks_mhz)
    clock_share = clock / gpu.sm_clock_limit_mhz if clock and gpu else 1.0
    sensor_s = 0.0 if sensor_known else characterisation_s(meter=meter, clock_share=clock_share)
    estimated_s = sensor_s + _estimate_s(spec, points, len(clocks_mhz))
    for operator, *_ in kernels:
        counts[operator.family] = counts.get(operator.family, 0) + 1
    return CampaignPlan(
        points=points,
        clocks_mhz=clocks_mhz,
        kernels=counts,
        anchors=len(own) - sum(len(chosen) for chosen in clock_numbers(len(kernels), len(clocks_mhz), spec.every_clock_share)),
        skipped=skipped,
        characterisation_s=sensor_s,
        estimated_s=estimated_s,
        estimated_energy_j=None if gpu is None else estimated_s * USUAL_POWER_SHARE * gpu.power_limit_w,
        remarks=tuple(remarks),
    )


def _why(skipped: Mapping[str, int]) -> str:
    """The first reason why kernels are left out, and how many more there are; empty without any."""
    if not skipped:
        return ""
    more = f", and {len(skipped) - 1} more reasons" if len(skipped) > 1 else ""
    return f" ({next(iter(skipped))}{more})"


def _drawn(group: KernelGroup, seed: np.random.SeedSequence, runner: KernelRunner) -> tuple[list[Operator], list[str]]:
    """The kernels of a group in the first of its precisions that the board runs, and the layouts that it runs them in; none for none.

    A precision that runs in all of the layouts goes before one that does not.
    """
    layouts = group.transpose or ("",)
    best: tuple[list[Operator], list[str]] = ([], [])
    for precision in group.precisions:
        try:
            operators = draw_operators(group, precision, np.random.default_rng(seed))
        except WorkloadError as error:
            raise CampaignError(str(error)) from error
        probes = operators[:SUPPORT_PROBES]
        runs = [layout for layout in layouts if any(runner.supports(operator, layout) for operator in probes)]
        if len(runs) > len(best[1]):
            best = operators, runs
        if len(runs) == len(layouts):
            break
    return best


def clock_numbers(kernels: int, clocks: int, every_clock_share: float) -> list[tuple[int, ...]]:
    """The clocks at which each kernel runs: all for an even choice of `every_clock_share` of them, one in turn for the others."""
    numbers: list[tuple[int, ...]] = []
    alone = 0
    for index in range(kernels):
        if int((index + 1) * every_clock_share) > int(index * every_clock_share):
            numbers.append(tuple(range(clocks)))
        else:
            numbers.append((alone % clocks,))
            alone += 1
    return numbers


def _ordered(
    spec: CampaignSpec,
    kernels: list[Kernel],
    anchors: Sequence[Operator],
    clocks_mhz: tuple[float | None, ...],
    seed: int,
    gpu_uuid: str,
) -> tuple[Point, ...]:
    """Points in random order: blocks of kernels, within a block the clocks, within a clock the block's kernels.

    Neither the clock nor the family then follows the hour: drift cannot pass for an effect of either.
    """
    random = np.random.default_rng(np.random.SeedSequence([seed, len(spec.kernels), 0]))
    order = random.permutation(len(kernels))
    numbers = clock_numbers(len(kernels), len(clocks_mhz), spec.every_clock_share)
    points: list[Point] = []
    trials: dict[tuple[Operator, float | None], int] = {}
    since_anchor = spec.anchor_every
    for start in range(0, len(kernels), spec.kernels_per_block):
        block = order[start : start + spec.kernels_per_block]
        for clock_index in random.permutation(len(clocks_mhz)):
            clock = clocks_mhz[clock_index]
            if spec.anchor_every and since_anchor >= spec.anchor_every:
                for anchor in anchors:
                    trial = trials.get((anchor, clock), 0)
                    trials[anchor, clock] = trial + 1
                    points.append(_point(spec, (anchor, "warm", ""), clock, trial, seed, gpu_uuid, anchor=True))
                since_anchor = 0
            chosen = [index for index in random.permutation(block) if clock_index in numbers[index]]
            for place, index in enumerate(chosen):
                point = _point(spec, kernels[index], clock, 0, seed, gpu_uuid, anchor=False)
                points.append(replace(point, idle_before=place == 0))
                since_anchor += 1
    return tuple({point.row_id: point for point in points}.values())


def _point(spec: CampaignSpec, kernel: Kernel, clock: float | None, trial: int, seed: int, gpu_uuid: str, *, anchor: bool) -> Point:
    """A point with its row id: the digest of everything that tells it from others."""
    operator, l2_state, transpose = kernel
    described = [
        gpu_uuid, spec.digest, seed, anchor, operator.family, operator.operator, operator.precision, operator.precision_out,
        operator.precision_kv, operator.cuda_cores, operator.shape, l2_state, clock, trial,
        *([transpose] if transpose else []),
    ]  # fmt: skip
    digest = hashlib.sha256(json.dumps(described, separators=(",", ":")).encode()).hexdigest()
    return Point(
        row_id=digest[:ROW_ID_DIGITS],
        operator=operator,
        l2_state=l2_state,
        sm_clock_mhz=clock,
        trial=trial,
        seed=seed,
        idle_before=anchor,
        anchor=anchor,
        transpose=transpose,
    )


def hastened(spec: CampaignSpec, way: Way) -> CampaignSpec:
    """The campaign with the shorter runs in which an active choice measures power; a random one leaves them as they are.

    What equations get wrong about a kernel is more than what a shorter window adds, and other kernels tell it.  The sensor's own time to
    settle is kept in any case.
    """
    if way == "random":
        return spec
    usual = spec.measurement
    gap_s = min(usual.gap_s, TIMED_GAP_S)
    updates = max(LEAST_UPDATES, round(HASTY_WINDOW * usual.updates))
    hasty = replace(usual, updates=updates, window_s=HASTY_WINDOW * usual.window_s, settle_s=HASTY_SETTLING * usual.settle_s, gap_s=gap_s)
    return replace(spec, measurement=hasty)


def least_budget_s(spec: CampaignSpec, plan: CampaignPlan) -> float:
    """Budget within which one kernel of every kind can be measured [s]."""
    return _reserved_s(spec, plan) + least_time_s(plan.points, point_costs(spec))


def chosen_plan(spec: CampaignSpec, plan: CampaignPlan, way: Way, budget_s: float, seed: int, gpu: GpuSpec | None) -> CampaignPlan:
    """The part of a plan that a budget is spent on, of a campaign `hastened` for it.

    Raises CampaignError where it leaves no time for a kernel.
    """
    clocks = len(plan.clocks_mhz)
    points, choice = choose_points(plan.points, way, budget_s, _reserved_s(spec, plan), point_costs(spec), gpu, seed)
    counts: dict[str, set[object]] = {}
    for point in points:
        if not point.anchor:
            kernel = point.load or (point.operator, point.l2_state, point.transpose)
            counts.setdefault(FAMILY if point.load else point.operator.family, set()).add(kernel)
    estimated_s = plan.characterisation_s + _estimate_s(spec, points, clocks)
    return replace(
        plan,
        points=points,
        kernels={family: len(counts[family]) for family in plan.kernels if family in counts},
        anchors=sum(point.anchor for point in points),
        estimated_s=estimated_s,
        estimated_energy_j=None if gpu is None else estimated_s * USUAL_POWER_SHARE * gpu.power_limit_w,
        choice=choice,
    )


def point_costs(spec: CampaignSpec) -> PointCosts:
    """What points take, with a slow sensor."""
    settings = spec.measurement
    window_s = max(settings.window_s, (settings.updates + 1) * DEFAULT_PERIOD_S)
    ranging_s = 2.0 * settings.ranging_s
    return PointCosts(
        full_s=settings.gap_s + ranging_s + settings.settle_s + window_s,
        timed_s=min(settings.gap_s, TIMED_GAP_S) + ranging_s + TIMED_RUN_S,
        rest_s=settings.idle_s,
    )


def closing_clocks(clocks_mhz: tuple[float | None, ...]) -> tuple[float | None, ...]:
    """The clocks at which power at rest is read again at the end."""
    if len(clocks_mhz) <= CLOSING_CLOCKS:
        return clocks_mhz
    return clocks_mhz[0], middle_clock(clocks_mhz), clocks_mhz[-1]


def middle_clock(clocks_mhz: tuple[float | None, ...]) -> float | None:
    """The clock at which sensor and warm-up run: in the middle, clear of the power limit."""
    return clocks_mhz[(len(clocks_mhz) - 1) // 2]


def closing_s(spec: CampaignSpec, clocks_mhz: tuple[float | None, ...]) -> float:
    """The board's time for power at rest at the end [s]."""
    return len(closing_clocks(clocks_mhz)) * (spec.idle_settle_s + spec.idle_window_s)


def check_budget(spec: CampaignSpec, plan: CampaignPlan, budget_s: float, calibration: SensorCalibration | None = None) -> None:
    """Raises CampaignError where a campaign that begins anew could not measure a single kernel within a budget [s].

    A `calibration` saves characterising the sensor, which is known only about; a budget just large enough by that may still not be.
    """
    before_s = _fixed_s(spec, len(plan.clocks_mhz)) + closing_s(spec, plan.clocks_mhz)
    before_s += 0.0 if calibration else plan.characterisation_s
    point_s = spec.measurement.planned_total_s(calibration) if calibration else point_costs(spec).full_s
    if budget_s < before_s + point_s:
        raise CampaignError(no_time_text(budget_s, before_s, point_s))


def _fixed_s(spec: CampaignSpec, clocks: int) -> float:
    """The board's time for warming up and power at rest [s]."""
    return spec.warmup_s + clocks * (spec.idle_settle_s + spec.idle_window_s)


def _reserved_s(spec: CampaignSpec, plan: CampaignPlan) -> float:
    """The board's time for what is no point, changes of the clock and power at rest at the end included [s]."""
    clocks = len(plan.clocks_mhz)
    changes = sum(one.sm_clock_mhz != other.sm_clock_mhz for one, other in pairwise(plan.points))
    return plan.characterisation_s + _fixed_s(spec, clocks) + changes * CLOCK_SETTLE_S + closing_s(spec, plan.clocks_mhz)


def _estimate_s(spec: CampaignSpec, points: Sequence[Point], clocks: int) -> float:
    """The board's time for a plan without characterising the sensor, a slow one [s]."""
    costs = point_costs(spec)
    return _fixed_s(spec, clocks) + sum(costs.of(point) for point in points)

"""Plan of a campaign: kernels, clocks, order and duration."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import numpy as np

from collector.campaigns.files import CampaignSpec
from collector.campaigns.measurement import Point
from collector.campaigns.selection import Choice, choose_points, point_cost_s
from collector.clocks import Clocks
from collector.devices.protocols import Bench, GpuIdentity, KernelRunner
from collector.errors import CampaignError
from collector.sensing.calibration import SensorCalibration
from collector.sensing.catalogue import find_sensor
from collector.sensing.live import characterisation_s
from collector.sensing.steady import update_period_s
from estimator.model.silicon import usual_rest_w
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import IntArray
from estimator.vocabulary.values import frozen
from estimator.vocabulary.workload import Operator
from microbench.errors import MicrobenchError
from microbench.kernel import FAMILY
from microbench.layouts import other_layout
from microbench.loads.generated import Load, generated_loads
from microbench.shapes import KernelGroup, draw_operators

ROW_ID_DIGITS: Final = 16
CLOCK_SETTLE_S: Final = 0.2
"""Rest after a change of the clock."""

LOAD_SHARE, LOAD_EXPONENT = 0.9, 1.7
"""Mean power of a campaign's kernels above rest at the highest clock, as a share of that at the limit [1], and how it follows the clock.

Five simulated boards: 0.9 to 1.1 at the highest clock, 0.2 to 0.5 at half of it, ranging and preparing included.
"""

Kernel = tuple[Operator, str, str]
"""An operator, its L2 state and the layout of its inputs, "" for the natural one."""

Drawn = tuple[list[Operator], list[str]]
"""Operators, and the layouts of their inputs that a board runs."""

RunName = tuple[str, str, int]
"""A board's UUID, a campaign's digest and a seed."""


@frozen
class CampaignPlan:
    """All points in the order of measurement.

    `skipped` lists the groups that this board cannot run, and why.  `fixed_s` is the board's time outside the points: the sensor, warming
    up, power at rest and changes of the clock; `estimated_s` all of its time, with the known or expected `sensor`.
    `estimated_j`: its energy.  `choice` describes the part of the campaign's points that a budget selected.
    """

    points: tuple[Point, ...]
    clocks_mhz: Clocks
    skipped: dict[str, int]
    fixed_s: float
    sensor: SensorCalibration
    choice: Choice | None = None
    estimated_s: float = 0.0
    estimated_j: float = 0.0

    @property
    def kernels(self) -> dict[str, int]:
        """Number of different kernels by family, sorted."""
        kernels = {one.load or (one.operator, one.l2_state, one.transpose): one for one in self.points if not one.anchor}
        return dict(sorted(Counter(FAMILY if one.load else one.operator.family for one in kernels.values()).items()))

    @property
    def anchors(self) -> int:
        """Number of repetitions that show drift."""
        return sum(point.anchor for point in self.points)


def plan_campaign(
    spec: CampaignSpec,
    clocks_mhz: Clocks,
    families: Sequence[str],
    seed: int,
    bench: Bench,
    *,
    sensor: SensorCalibration | None = None,
) -> CampaignPlan:
    """The plan of a campaign on a board; the same arguments give the same plan.

    `families` limits it to some kernel families (empty: all).  A known `sensor` is not characterised.

    Raises CampaignError for a family that the campaign does not have, if nothing is left and if generated kernels cannot be assembled,
    WorkloadError for ranges that make no kernels.
    """
    known = tuple(dict.fromkeys((*(group.family for group in spec.kernels), *([FAMILY] if spec.instructions else []))))
    for family in families:
        if family not in known:
            raise CampaignError(f"campaign {spec.name} has no family {family!r}; it has: {', '.join(known)}")
    kernels: dict[Kernel, None] = {}
    skipped: Counter[str] = Counter()
    for index, group in enumerate(spec.kernels):
        if families and group.family not in families:
            continue
        operators, layouts = _drawn(group, [seed, index], bench.runner)
        for layout in group.transpose or ("",):
            if layout in layouts:
                kernels.update(dict.fromkeys((one, group.l2_state, other_layout(one, layout)) for one in operators))
            else:
                named = f" {layout}" if layout else ""
                skipped[f"{group.family}.{group.operator}.{group.precision}{named}: not on this board"] += group.count
    loads: tuple[Load, ...] = ()
    if spec.instructions and (not families or FAMILY in families):
        loads, refused = campaign_loads(spec, bench.gpu_spec, seed)
        skipped.update(refused)
    if not kernels and not loads:
        why = f" ({next(iter(skipped))})" if skipped else ""
        raise CampaignError(f"campaign {spec.name} has no kernel that this board runs{why}; choose other families or another campaign")
    identity = bench.gpu.identity()
    anchors = [operator for operator in spec.anchors if bench.runner.supports(operator)]
    points = _ordered(spec, list(kernels), anchors, loads, clocks_mhz, (identity.uuid, spec.digest, seed))
    expected = _expected_sensor(identity)
    sensor_s = 0.0 if sensor else characterisation_s(update_period_s(expected))
    changes = sum(one.sm_clock_mhz != other.sm_clock_mhz for one, other in pairwise(points))
    plan = CampaignPlan(
        points=points,
        clocks_mhz=clocks_mhz,
        skipped=dict(skipped),
        sensor=sensor or expected,
        fixed_s=sensor_s + spec.warmup_s + len(clocks_mhz) * (spec.idle_settle_s + spec.idle_window_s) + changes * CLOCK_SETTLE_S,
    )
    return _counted(plan, spec, bench.gpu_spec)


def _expected_sensor(board: GpuIdentity) -> SensorCalibration:
    """A sensor yet to be characterised, which is expected to settle within a campaign's own time: its period is from the catalogue."""
    known = find_sensor(board.name, board.driver)
    period_s = known.update_period_s if known else None
    return SensorCalibration(gpu_uuid=board.uuid, driver=board.driver, sensor="", field="", update_period_s=period_s, settle_s=0.0)


def _mean_load_w(gpu: GpuSpec, sm_clock_mhz: float | None) -> tuple[float, float]:
    """Expected power of a board at rest, and under the kernels of a campaign at a clock [W]."""
    clock_mhz = sm_clock_mhz or gpu.sm_clock_max_mhz
    rest_w = float(usual_rest_w(gpu, np.array([clock_mhz]), np.ones(1))[0])
    return rest_w, rest_w + LOAD_SHARE * (clock_mhz / gpu.sm_clock_max_mhz) ** LOAD_EXPONENT * max(gpu.power_limit_w - rest_w, 0.0)


def _counted(plan: CampaignPlan, spec: CampaignSpec, gpu: GpuSpec) -> CampaignPlan:
    """A plan with the time and the energy of its points."""
    watts = {clock: _mean_load_w(gpu, clock) for clock in plan.clocks_mhz}
    seconds = joules = added_j = 0.0
    for point in plan.points:
        (load_s, all_s), (rest_w, load_w) = point_cost_s(point, spec, plan.sensor), watts[point.sm_clock_mhz]
        seconds += all_s
        joules += all_s * rest_w
        added_j += load_s * (load_w - rest_w)
    fixed_j = plan.fixed_s * float(np.mean(watts[middle_clock(plan.clocks_mhz)]))
    return replace(plan, estimated_s=plan.fixed_s + seconds, estimated_j=joules + added_j + fixed_j)


def chosen_plan(spec: CampaignSpec, plan: CampaignPlan, gpu: GpuSpec, budget_s: float, seed: int) -> CampaignPlan:
    """The part of a plan that fits a budget, of a campaign `hastened` for it.

    Raises CampaignError if it leaves no time for a kernel.
    """
    points, choice = choose_points(plan.points, budget_s, plan.fixed_s, lambda point: point_cost_s(point, spec, plan.sensor)[1], seed)
    return _counted(replace(plan, points=points, choice=choice), spec, gpu)


def campaign_loads(spec: CampaignSpec, gpu: GpuSpec, seed: int) -> tuple[tuple[Load, ...], dict[str, int]]:
    """The generated kernels of a campaign, assembled, and its copies; and those that cannot run here.

    Raises CampaignError if the assembler is missing; the message names the package to install.
    """
    try:
        return generated_loads(spec.instructions, gpu, seed=seed)
    except MicrobenchError as error:
        raise CampaignError(f"campaign {spec.name}: {error}") from error


def _drawn(group: KernelGroup, seed: list[int], runner: KernelRunner) -> Drawn:
    """The kernels of a group in its first precision that the board runs, and the layouts that it runs them in; empty without one.

    A precision that runs in all of the layouts has priority over one that does not.
    """
    layouts = group.transpose or ("",)
    best: Drawn = ([], [])
    for precision in group.precisions:
        operators = draw_operators(group, precision, np.random.default_rng(seed))
        probes = operators[:5]  # a single one may fail because of its size
        runs = [layout for layout in layouts if any(runner.supports(operator, layout) for operator in probes)]
        if len(runs) > len(best[1]):
            best = operators, runs
        if len(runs) == len(layouts):
            break
    return best


def clock_numbers(kernels: int, clocks: int, every_clock_share: float) -> list[tuple[int, ...]]:
    """The clocks at which each kernel runs: all for an even choice of `every_clock_share` of them, one in turn for the others."""
    everywhere = [int(index * every_clock_share) for index in range(kernels + 1)]
    return [
        tuple(range(clocks)) if after > before else ((index - before) % clocks,)
        for index, (before, after) in enumerate(pairwise(everywhere))
    ]


def digest_of(*described: Any) -> str:
    """A short digest of plain data; of every property that distinguishes a point from others, it is the point's id."""
    return hashlib.sha256(json.dumps(described, separators=(",", ":")).encode()).hexdigest()[:ROW_ID_DIGITS]


def _ordered(
    spec: CampaignSpec,
    kernels: list[Kernel],
    anchors: Sequence[Operator],
    loads: Sequence[Load],
    clocks_mhz: Clocks,
    run: RunName,
) -> tuple[Point, ...]:
    """Points in random order: blocks of kernels, within a block the clocks, within a clock the block's kernels.

    Neither the clock nor the family then correlates with time: drift cannot look like an effect of either.  Before each generated kernel
    the board rests: the kernel's energy is the energy above rest, so rest and run must share the temperature.
    """
    clocks = len(clocks_mhz)
    numbers = clock_numbers(len(kernels), clocks, spec.every_clock_share)
    points: list[Point] = []
    trials: Counter[tuple[Operator, float | None]] = Counter()
    since_anchor = spec.anchor_every
    for clock_index, block in _blocks([run[2], len(spec.kernels), 0], len(kernels), clocks, spec.kernels_per_block):
        clock = clocks_mhz[clock_index]
        if spec.anchor_every and since_anchor >= spec.anchor_every:
            for anchor in anchors:
                points.append(_point((anchor, "warm", ""), clock, trials[anchor, clock], run, anchor=True))
                trials[anchor, clock] += 1
            since_anchor = 0
        chosen = [index for index in block if clock_index in numbers[index]]
        for place, index in enumerate(chosen):
            points.append(replace(_point(kernels[index], clock, 0, run), idle_before=place == 0))
        since_anchor += len(chosen)
    points = list({point.row_id: point for point in points}.values())
    for clock_index, block in _blocks([run[2], len(loads), 1], len(loads), clocks, spec.kernels_per_block):
        clock = clocks_mhz[clock_index]
        for load in (loads[index] for index in block):
            point = _point((load.operator, "warm", ""), clock, 0, run)
            points.append(replace(point, row_id=digest_of(*run, FAMILY, *load.identity(), clock), idle_before=True, load=load))
    return tuple(points)


def _blocks(seed: list[int], count: int, clocks: int, length: int) -> Iterator[tuple[int, IntArray]]:
    """Blocks of a random order, each with every clock in random order, and in a random order of its own there."""
    random = np.random.default_rng(seed)
    order = random.permutation(count)
    for start in range(0, count, length):
        for clock_index in random.permutation(clocks).tolist():
            yield clock_index, random.permutation(order[start : start + length])


def _point(kernel: Kernel, clock: float | None, trial: int, run: RunName, *, anchor: bool = False) -> Point:
    """A library's kernel at a clock."""
    operator, l2_state, transpose = kernel
    described = (
        anchor, operator.family, operator.operator, operator.precision, operator.precision_out, operator.precision_kv, operator.cuda_cores,
        operator.shape, l2_state, clock, trial, *([transpose] if transpose else []),
    )  # fmt: skip
    return Point(
        row_id=digest_of(*run, *described),
        operator=operator,
        l2_state=l2_state,
        sm_clock_mhz=clock,
        trial=trial,
        seed=run[2],
        idle_before=anchor,
        anchor=anchor,
        transpose=transpose,
    )


def middle_clock(clocks_mhz: Clocks) -> float | None:
    """The clock for sensor and warm-up: in the middle, clear of the power limit."""
    return clocks_mhz[(len(clocks_mhz) - 1) // 2]

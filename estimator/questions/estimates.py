"""Workload + bundle + clocks → Estimates: each is one point of the engine's columns, with its warnings and notes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Unpack

from estimator.bundle.content import Bundle
from estimator.engine.board import Settings, open_board
from estimator.engine.prediction import Prediction, predict
from estimator.model.power import module_activity
from estimator.model.power_limit import STAYS_ABOVE
from estimator.questions.points import VALUES
from estimator.questions.sweeping import case_of, columns_of
from estimator.transforms.variation import Variant
from estimator.uncertainty.validity import Validity, clock_warning, simulated_notes
from estimator.vocabulary.errors import require
from estimator.vocabulary.quantities import HZ_PER_MHZ, MODULES
from estimator.vocabulary.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelEstimate:
    """One operator of a workload: time, power and energy of one launch, and the activity of each module during it.

    outside_validity: the fit has no such kernel, none in its precision, or none near its shape.
    """

    operator: str
    family: str
    count: float
    latency_s: float
    power_w: float
    energy_j: float
    utilization: Mapping[str, float]
    group: str | None
    origin: str
    outside_validity: bool


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Prediction for one workload at one clock.

    latency_s, power_w, energy_j of one iteration with standard deviations (nan if the bundle has none) and the limits `…_low` and
    `…_high` of their 90 % intervals, which are asymmetric near a power limit.  `sm_clock_mhz` is the actual clock: below
    `asked_clock_mhz` if the power limit lowers it, and then uncertain too.  `warnings` report how the request differs from the fitted data;
    `notes` add information about a valid answer.  `validity`: "inside", "outside" (unseen kernels, shapes or precisions take 1 % of the GPU
    time or more, or the clock is unseen), or "forecast" (another or a changed board).
    """

    workload: str
    bundle: str
    gpu: str
    asked_clock_mhz: float
    sm_clock_mhz: float
    latency_s: float
    latency_s_std: float
    power_w: float
    power_w_std: float
    energy_j: float
    energy_j_std: float
    sm_clock_mhz_low: float
    sm_clock_mhz_high: float
    latency_s_low: float
    latency_s_high: float
    power_w_low: float
    power_w_high: float
    energy_j_low: float
    energy_j_high: float
    gpu_s: float
    host_s: float
    launch_bound_share: float
    validity: Validity
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    _kernels: tuple[Prediction, int] = field(repr=False, compare=False)

    @cached_property
    def kernels(self) -> tuple[KernelEstimate, ...]:
        """The operators, in the workload's order."""
        prediction, i = self._kernels
        prepared = prediction.prepared
        seconds, watts = prediction.kernels(i)
        busy = module_activity(prepared.phases, prepared.board.gpu, seconds, self.sm_clock_mhz * HZ_PER_MHZ)
        columns = (prepared.operators, prepared.counts.tolist(), prepared.kind.tolist(), seconds.tolist(), watts.tolist(), busy.tolist())
        return tuple(
            KernelEstimate(
                operator=operator.label,
                family=operator.family,
                count=count,
                latency_s=latency,
                power_w=power,
                energy_j=latency * power,
                utilization=dict(zip(MODULES, activity, strict=True)),
                group=prepared.kinds[kind].group,
                origin=operator.origin,
                outside_validity=prepared.kinds[kind].unseen(prepared.priors),
            )
            for operator, count, kind, latency, power, activity in zip(*columns, strict=True)
        )


def estimate(workload: Workload, bundle: Bundle, **settings: Unpack[Settings]) -> list[Estimate]:
    """Latency, power and energy of one iteration of a workload, at one or several SM clocks.

    settings: sm_clock_mhz, gpu, power_cap_w, host_launch_s, efficiency (`estimator.engine.board.Settings`).

    Raises OperatingPointError for a clock outside the GPU's range and for impossible settings, ArgumentError for settings of a wrong type.
    """
    require(workload, Workload, "workload", "a Workload, as read_workload gives it")
    return estimates_of(predict([workload], open_board(bundle, **settings)))


def estimates_of(prediction: Prediction) -> list[Estimate]:
    """Estimates at the points of a single workload."""
    prepared, board = prediction.prepared, prediction.prepared.board
    workload, fitted_mhz = prepared.workloads[0], board.bundle.clocks_mhz
    case = case_of(Variant(workload=workload), prediction, 0)
    columns = columns_of(prediction)
    rows = zip(*(columns[name].tolist() for name in VALUES), strict=True)
    found = []
    for i, row in enumerate(rows):
        values = dict(zip(VALUES, row, strict=True))
        asked_mhz = values["asked_clock_mhz"]
        outside = clock_warning(fitted_mhz, asked_mhz, values["sm_clock_mhz"])
        above = (STAYS_ABOVE.format(board.limit_w),) if prediction.above_limit[0, i] else ()
        found.append(
            Estimate(
                workload=case.workload,
                bundle=case.bundle,
                gpu=case.gpu,
                **values,
                host_s=float(prepared.host_s[0]),
                validity="outside" if outside and case.validity == "inside" else case.validity,
                warnings=(*case.warnings, *outside, *above),
                notes=(*simulated_notes(board.bundle), *case.notes, *_launch_bound(values)),
                _kernels=(prediction, i),
            )
        )
    return found


def _launch_bound(values: Mapping[str, float]) -> tuple[str, ...]:
    """A line if the host limits the latency, not the GPU."""
    if values["launch_bound_share"] <= 0.3:
        return ()
    waits = max(1.0 - values["gpu_s"] / values["latency_s"], 0.0)
    return (f"launch-bound: the GPU waits {waits:.0%} of the time for the host's launches; give --host-launch-us for another host",)

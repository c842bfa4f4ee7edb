"""Workload + bundle + clocks → Estimates: each is one point of the engine's columns, with its warnings and notes; the roofline."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Unpack

import numpy as np

from estimator.bundle.content import Bundle
from estimator.engine.board import Settings, open_board
from estimator.engine.prediction import Prediction, predict
from estimator.model.power import module_activity
from estimator.questions.judging import Asked, predicted
from estimator.questions.sweeping import VALUES, Lines, Values, table
from estimator.transforms.variation import Variant
from estimator.uncertainty.validity import Validity
from estimator.vocabulary.errors import require
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import HZ_PER_MHZ, MODULES, Array
from estimator.vocabulary.values import frozen
from estimator.vocabulary.work import operator_work
from estimator.vocabulary.workload import Operator, Workload


@frozen
class KernelEstimate:
    """One operator of a workload: time, power and energy of one launch on all GPUs of a group, and the activity of each module during it.

    outside_validity: the fit has no such kernel, none in its precision, or none near its shape.
    """

    operator: str
    family: str
    count: float
    latency_s: float
    power_w: float
    energy_j: float
    utilization: Mapping[str, float]
    outside_validity: bool


@dataclass(frozen=True, kw_only=True)
class Estimate(Values[float]):
    """Prediction for one workload at one clock.

    latency_s, power_w, energy_j of one iteration (power and energy of all `gpus` together) with standard deviations (nan if the bundle
    has none) and the limits `…_low` and
    `…_high` of their 90 % intervals, which are asymmetric near a power limit.  `sm_clock_mhz` is the actual clock: below
    `asked_clock_mhz` if the power limit lowers it, and then uncertain too.  `warnings` report how the request differs from the fitted data;
    `notes` add information about a valid answer.  `validity`: "measured", "extrapolated" (unseen kernels, shapes or precisions take 1 % of
    the GPU time or more, or the clock is unseen), or "forecast" (another or a changed board).  `fits`: the model fits into the board's
    memory, as far as known.  `usable`: it fits, and all of it is modelled.
    """

    workload: str
    bundle: str
    gpu: str
    gpus: int
    host_s: float
    validity: Validity
    fits: bool
    usable: bool
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    _kernels: ClassVar[tuple[Prediction, int]]  # of each estimate, but no field: pandas and `asdict` take an Estimate

    @cached_property
    def kernels(self) -> tuple[KernelEstimate, ...]:
        """The operators, in the workload's order."""
        prediction, i = self._kernels
        prepared = prediction.prepared
        seconds, watts = prediction.kernels(i)
        watts = watts * self.gpus
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
                outside_validity=prepared.kinds[kind].unseen(prepared.priors),
            )
            for operator, count, kind, latency, power, activity in zip(*columns, strict=True)
        )


def estimate(workload: Workload, bundle: Bundle, **settings: Unpack[Settings]) -> list[Estimate]:
    """Latency, power and energy of one iteration of a workload, at one or several SM clocks.

    settings: sm_clock_mhz, gpu, power_cap_w, host_launch_s, efficiency, idle_power (`estimator.engine.board.Settings`).

    Raises OperatingPointError for a clock outside the GPU's range and for impossible settings, ArgumentError for settings of a wrong type.
    """
    require(workload, Workload, "workload", "a Workload, as read_workload gives it")
    return estimates_of(predict([workload], open_board(bundle, **settings)))


def estimates_of(prediction: Prediction) -> list[Estimate]:
    """Estimates at the points of a single workload."""
    prepared = prediction.prepared
    points = table([Variant(workload=prepared.workloads[0])], prediction)
    (case,), count = points.cases, len(points)
    points = replace(points, cases=(case,) * count, case=np.arange(count))  # each point has remarks of its own
    validity, warnings, notes = points.validity(), _by_number(points.warnings_of()), _by_number(points.notes_of())
    found = []
    for i, row in enumerate(zip(*(getattr(points, name).tolist() for name in VALUES), strict=True)):
        one = Estimate(
            workload=case.workload,
            bundle=case.bundle,
            gpu=case.gpu,
            gpus=case.gpus,
            **dict(zip(VALUES, row, strict=True)),
            host_s=float(prepared.host_s[0]),
            validity=validity[i],
            fits=not case.too_large,
            usable=case.usable and bool(np.isfinite(points.latency_s[i])),
            warnings=tuple(warnings[i]),
            notes=tuple(notes[i]),
        )
        vars(one)["_kernels"] = prediction, i
        found.append(one)
    return found


def _by_number(lines: Lines) -> defaultdict[int, list[str]]:
    """The lines of each point."""
    found: defaultdict[int, list[str]] = defaultdict(list)
    for i, line in lines:
        found[i].append(line)
    return found


def roofline_latency_s(asked: Asked) -> Array:
    """Time of an iteration at every requested clock, at the actual clock of the bundle's estimate [s], shape (c,).

    nan if the GPU has no rate for a precision.  Raises the errors of `estimate`.
    """
    prediction = predicted(asked)
    prepared = prediction.prepared
    return prepared.counts @ roofline_seconds(prepared.workloads[0], prepared.board.gpu, prediction.sm_clock_mhz[0])


@np.errstate(all="ignore")
def roofline_seconds(workload: Workload, gpu: GpuSpec, sm_clock_mhz: Array) -> Array:
    """Time of one launch of each operator [s], shape (n, c), at clocks of shape (c,): the longer of flop/peak and bytes/bandwidth.

    nan if the GPU has no rate for a precision.
    """
    byte = np.array([work.read_byte + work.write_byte for work in map(operator_work, workload.operators)])
    math_s = least_clocks(workload.operators, gpu)[:, None] / (sm_clock_mhz * HZ_PER_MHZ)
    return np.maximum(math_s, (byte / gpu.dram_bytes_per_s)[:, None])


def least_clocks(operators: Sequence[Operator], gpu: GpuSpec) -> Array:
    """SM clocks that the multiply-adds of each operator take at the peak rate, shape (n,); nan without a rate for its number format."""
    flop = np.array([operator_work(operator).flop for operator in operators])
    rate = np.array([gpu.matrix_flop_per_clock(operator.precision, operator.cuda_cores) for operator in operators])
    return np.where(flop > 0.0, flop / rate, 0.0) / gpu.num_sms

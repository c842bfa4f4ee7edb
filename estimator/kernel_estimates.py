"""The kernels of an estimate: columns of numbers, and one object for each when somebody asks."""

from collections.abc import Mapping
from dataclasses import dataclass

from estimator.gpu import GpuSpec
from estimator.phases import Phases
from estimator.power import module_activity
from estimator.quantities import HZ_PER_MHZ, MODULES, Array
from estimator.unseen import Kind
from estimator.workload import Operator


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelEstimate:
    """One operator of a workload: time, power and energy of one launch, and how busy each module is meanwhile.

    outside_validity: the fit has seen no such kernel, none in its precision, or none near its shape.
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KernelColumns:
    """What the kernels of an estimate are built from, when somebody asks: columns of shape (n,), and phases of shape (n, ·).

    kinds of the operators; priors: groups of which the fit has seen no kernel.
    """

    operators: tuple[Operator, ...]
    counts: tuple[float, ...]
    latency_s: Array
    power_w: Array
    phases: Phases
    gpu: GpuSpec
    sm_clock_mhz: float
    kinds: tuple[Kind, ...]
    priors: frozenset[str]

    def rows(self) -> tuple[KernelEstimate, ...]:
        """One KernelEstimate per operator."""
        busy = module_activity(self.phases, self.gpu, self.latency_s, self.sm_clock_mhz * HZ_PER_MHZ)
        return tuple(
            KernelEstimate(
                operator=operator_label(operator),
                family=operator.family,
                count=count,
                latency_s=float(latency),
                power_w=float(power),
                energy_j=float(latency * power),
                utilization=dict(zip(MODULES, activity, strict=True)),
                group=kind.group,
                origin=operator.origin,
                outside_validity=kind.unseen(self.priors),
            )
            for operator, count, kind, latency, power, activity in zip(
                self.operators, self.counts, self.kinds, self.latency_s, self.power_w, busy.tolist(), strict=True
            )
        )


def operator_label(operator: Operator) -> str:
    """Short readable name: "gemm.linear bf16 512x768x3072"."""
    shape = "x".join(f"{value:.15g}" for value in operator.shape)
    return f"{operator.family}.{operator.operator} {operator.precision} {shape}"

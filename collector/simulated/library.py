"""The simulated vendor library: which kernel an operator gets."""

from collections.abc import Callable
from typing import Final

from collector.errors import RunnerError
from collector.simulated.library_attention import attention_plan
from collector.simulated.library_matrix import matrix_plan
from collector.simulated.library_stream import depthwise_plan, elementwise_plan, row_plan
from collector.simulated.plan import KernelPlan
from collector.simulated.profile import BoardProfile
from estimator.gpu import GpuSpec
from estimator.workload import Operator

Planner = Callable[[Operator, BoardProfile, GpuSpec], KernelPlan]

PLANNERS: Final[dict[str, Planner]] = {
    "gemm": matrix_plan,
    "conv": matrix_plan,
    "attention": attention_plan,
    "softmax": row_plan,
    "norm": row_plan,
    "reduction": row_plan,
    "elementwise": elementwise_plan,
    "copy": elementwise_plan,
}
"""Who plans the kernels of a family."""


def plan_kernel(operator: Operator, profile: BoardProfile, gpu: GpuSpec) -> KernelPlan:
    """The kernel that the simulated library takes for an operator.  Raises RunnerError where it has none."""
    if operator.family not in PLANNERS:
        raise RunnerError(f"no kernel for the family {operator.family!r}; families: {', '.join(PLANNERS)}")
    if operator.family == "conv" and operator.operator == "depthwise":
        return depthwise_plan(operator, profile, gpu)
    return PLANNERS[operator.family](operator, profile, gpu)

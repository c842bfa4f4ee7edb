"""The simulated vendor library: which kernel an operator gets."""

from collections.abc import Callable
from typing import Final

from collector.errors import RunnerError
from collector.simulated.library_attention import attention_plan
from collector.simulated.library_matrix import convolution_plan, product_plan
from collector.simulated.library_stream import depthwise_plan, elementwise_plan, row_plan
from collector.simulated.plan import KernelPlan
from collector.simulated.profile import BoardProfile
from estimator.gpu import GpuSpec
from estimator.workload import Operator
from microbench.errors import UnsupportedError
from microbench.layouts import layout_of

Planner = Callable[[Operator, BoardProfile, GpuSpec], KernelPlan]

PLANNERS: Final[dict[str, Planner]] = {
    "conv": convolution_plan,
    "attention": attention_plan,
    "softmax": row_plan,
    "norm": row_plan,
    "reduction": row_plan,
    "elementwise": elementwise_plan,
    "copy": elementwise_plan,
}
"""Who plans the kernels of a family; those of matrix products have a layout besides."""


def plan_kernel(operator: Operator, profile: BoardProfile, gpu: GpuSpec, transpose: str = "") -> KernelPlan:
    """The kernel that the simulated library takes for an operator, a product's in a layout ("": the natural one).

    Raises RunnerError where it has none.
    """
    try:
        layout = layout_of(operator, transpose)
    except UnsupportedError as error:
        raise RunnerError(str(error)) from error
    if operator.family == "gemm":
        return product_plan(operator, profile, gpu, layout)
    if operator.family not in PLANNERS:
        raise RunnerError(f"no kernel for the family {operator.family!r}; families: gemm, {', '.join(PLANNERS)}")
    if operator.family == "conv" and operator.operator == "depthwise":
        return depthwise_plan(operator, profile, gpu)
    return PLANNERS[operator.family](operator, profile, gpu)

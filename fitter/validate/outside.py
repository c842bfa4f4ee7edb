"""Rows outside what a bundle was fitted on, and why.

The bounds are those at which `estimate` warns: a kernel that no fitted row was like, in kind, precision or shape, or a clock beyond the
fitted ones.  A run of a whole model is outside where one of its kernels is.
"""

from collections.abc import Sequence
from typing import Final

from estimator.bundle.content import Bundle
from estimator.model.coefficients import group_key, longest_prefix
from estimator.uncertainty.sources import unfitted_groups
from estimator.uncertainty.unseen import unseen_precisions
from estimator.uncertainty.validity import TOLERATED_FACTOR, clock_warning, shape_excess
from estimator.vocabulary.workload import Operator
from fitter.rows.columns import KernelRows, WorkloadRows

INSIDE: Final = ""
REASONS: Final = ("kind", "precision", "shape", "clock")
"""What of a row the fit has not seen, the gravest first."""


def outside_reasons(bundle: Bundle, rows: KernelRows | WorkloadRows) -> list[str]:
    """Why each row lies outside what its bundle was fitted on, INSIDE where it does not.

    Rows of another GPU than the bundle's are forecasts whatever their shape, and none of these.
    """
    if isinstance(rows, KernelRows):
        own, index = _of_operators(bundle, rows.operators), rows.operator_index
    else:
        sets = [_of_operators(bundle, workload.operators) for workload in rows.workloads]
        own, index = [min(filter(None, found), key=REASONS.index, default=INSIDE) for found in sets], rows.workload_index
    reasons = []
    for i, gpu, clock in zip(index.tolist(), rows.gpu_index.tolist(), rows.clock_mhz(bundle.gpu).tolist(), strict=True):
        beyond = "clock" if clock_warning(bundle.clocks_mhz, clock) else INSIDE
        reasons.append((own[i] or beyond) if rows.gpus[gpu] == bundle.gpu.name else INSIDE)
    return reasons


def _of_operators(bundle: Bundle, operators: Sequence[Operator]) -> list[str]:
    groups = [longest_prefix(group_key(operator), bundle.groups) for operator in operators]
    unfitted = set(unfitted_groups(bundle, groups))
    reasons = []
    for operator, group, unseen in zip(operators, groups, unseen_precisions(bundle, operators, groups), strict=True):
        if group is None or group in unfitted:
            reasons.append("kind")
        elif unseen is not None:
            reasons.append("precision")
        else:
            reasons.append("shape" if shape_excess(operator, group, bundle.domain)[0] > TOLERATED_FACTOR else INSIDE)
    return reasons

"""Which shapes each group of kernels has seen."""

from collections.abc import Mapping, Sequence

import numpy as np

from estimator.coefficients import group_key, longest_prefix
from estimator.workload import FAMILY_FIELDS, Operator


def seen_ranges(operators: Sequence[Operator], groups: Mapping[str, object]) -> dict[str, dict[str, tuple[float, float]]]:
    """Range of every shape field that each group has seen."""
    shapes: dict[str, list[tuple[float, ...]]] = {}
    family: dict[str, str] = {}
    for operator in operators:
        group = longest_prefix(group_key(operator), groups.keys())
        if group is not None:
            shapes.setdefault(group, []).append(operator.shape)
            family[group] = operator.family
    ranges = {}
    for group, found in shapes.items():
        table = np.array(found)
        fields = FAMILY_FIELDS[family[group]]
        ranges[group] = {name: (float(table[:, i].min()), float(table[:, i].max())) for i, name in enumerate(fields)}
    return ranges

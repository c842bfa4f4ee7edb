"""What a completion rule yields: operators to add and operators to put right."""

from functools import lru_cache
from typing import Final, NamedTuple

from estimator.forms.host_shares import LIGHT
from estimator.workload import CORRECTED, Operator

CACHED_OPERATORS: Final = 4096


class Change(NamedTuple):
    """`times` times `operator`: added, or, where `replaces` is an operator's index, instead of that one."""

    operator: Operator
    times: float
    replaces: int = -1


@lru_cache(CACHED_OPERATORS)
def moved(
    family: str,
    operator: str,
    precision: str,
    elements: float,
    reads: float,
    origin: str,
    host_share: float = LIGHT,
    precision_out: str = "",
) -> Operator:
    """An element-wise operator or a copy that writes `elements` and reads `reads`."""
    return Operator(
        family=family,
        operator=operator,
        precision=precision,
        shape=(elements, reads),
        origin=origin,
        host_share=host_share,
        precision_out=precision_out,
    )


@lru_cache(CACHED_OPERATORS)
def rowwise(family: str, operator: str, precision: str, rows: float, dim: float, origin: str, host_share: float = LIGHT) -> Operator:
    """A normalisation or a reduction over `rows` of `dim`."""
    return Operator(family=family, operator=operator, precision=precision, shape=(rows, dim), origin=origin, host_share=host_share)


def with_reads(operator: Operator, reads: float, rule: str, new_name: str = "") -> Operator:
    """A listed element-wise operator that reads less than it seemed to, by broadcasting."""
    return moved(
        operator.family,
        new_name or operator.operator,
        operator.precision,
        operator.shape[0],
        reads,
        CORRECTED + rule,
        operator.host_share,
        operator.precision_out,
    )

"""A traced workload beside an operator list of the same model: the products of both, and what the trace adds."""

from collections import Counter
from typing import NamedTuple

from estimator.reckoning import operator_work
from estimator.workload import Operator, Workload

GROUPS_FIELD = -1
"""Place of `groups` in a convolution's shape: published lists write depthwise convolutions as dense."""


class KindRow(NamedTuple):
    """Kernels of one kind and the bytes that they move at least: of the list and of the trace."""

    kind: str
    listed: float
    traced: float
    listed_byte: float
    traced_byte: float


class Comparison(NamedTuple):
    """Rows by kind, what the trace adds most first; products of the list that the trace lacks, and the other way round."""

    rows: tuple[KindRow, ...]
    missing: tuple[tuple[str, float], ...]
    extra: tuple[tuple[str, float], ...]


def compare_workloads(traced: Workload, listed: Workload) -> Comparison:
    """Both by kind of operator, and their matrix products and convolutions by shape.

    A product's transpose is the same product: a list does not say on which side the tokens are.
    """
    kinds = {name: (_by_kind(traced, name), _by_kind(listed, name)) for name in dict.fromkeys(_kinds(traced) + _kinds(listed))}
    rows = [KindRow(name, b[0], a[0], b[1], a[1]) for name, (a, b) in kinds.items()]
    ours, theirs = products(traced), products(listed)
    return Comparison(
        rows=tuple(sorted(rows, key=lambda row: row.listed_byte - row.traced_byte)),
        missing=tuple((theirs - ours).items()),
        extra=tuple((ours - theirs).items()),
    )


def products(workload: Workload) -> Counter[str]:
    """Matrix products and convolutions by shape, with how often each runs."""
    found: Counter[str] = Counter()
    for operator, count in zip(workload.operators, workload.counts, strict=True):
        if operator.family == "gemm":
            batch, m, n, k = operator.shape
            found[f"{operator.operator} {batch:.0f} × {min(m, n):.0f} × {max(m, n):.0f} × {k:.0f}"] += count  # type: ignore[assignment]
        elif operator.family == "conv":
            shape = ", ".join(f"{name} {value:.0f}" for name, value in list(operator.named_shape().items())[:GROUPS_FIELD])
            found[f"conv {shape}"] += count  # type: ignore[assignment]
    return found


def _kind(operator: Operator) -> str:
    name = "conv" if operator.family == "conv" else f"{operator.family}.{operator.operator}"
    return f"{name} {operator.precision}"


def _kinds(workload: Workload) -> list[str]:
    return [_kind(operator) for operator in workload.operators]


def _by_kind(workload: Workload, kind: str) -> tuple[float, float]:
    count = moved = 0.0
    for operator, times in zip(workload.operators, workload.counts, strict=True):
        if _kind(operator) == kind:
            work = operator_work(operator)
            count += times
            moved += times * (work.read_byte + work.write_byte)
    return count, moved

"""Minimum work of operators: useful flop and compulsory bytes, independent of any GPU.

These are for shares and sums over workloads.  The equations in `estimator.model.lowering` count more: padding, tiles,
passes and cache hits.
"""

from typing import NamedTuple

from estimator.vocabulary.documents import short_name
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT
from estimator.vocabulary.workload import COMPLETED, Operator, Workload, conv_output_size


class Work(NamedTuple):
    """Useful work of one operator: operations of multiply-adds [flop] and bytes read and written [byte]."""

    flop: float
    read_byte: float
    write_byte: float


def operator_work(operator: Operator) -> Work:
    """Multiply-add flop (matrix products, convolutions, attention; 0 elsewhere) and compulsory traffic."""
    width = BYTES_PER_ELEMENT[operator.precision]
    out_width = BYTES_PER_ELEMENT[operator.precision_out or operator.precision]
    if operator.family == "gemm":
        batch, m, n, k = operator.shape
        return Work(2.0 * batch * m * n * k, batch * (m * k + k * n) * width, batch * m * n * out_width)
    if operator.family == "conv":
        batch, channels, height, width_px, filters, kernel_h, kernel_w, _, _, groups = operator.shape
        out_h, out_w = conv_output_size(operator)
        outputs, taps = batch * filters * out_h * out_w, channels / groups * kernel_h * kernel_w
        return Work(2.0 * outputs * taps, (batch * channels * height * width_px + filters * taps) * width, outputs * out_width)
    if operator.family == "attention":
        return _attention_work(operator, width, out_width)
    if operator.family in ("softmax", "norm"):
        rows, dim = operator.shape
        return Work(0.0, rows * dim * width, rows * dim * out_width)
    if operator.family == "reduction":
        rows, dim = operator.shape
        return Work(0.0, rows * dim * width, rows * out_width)
    elements, reads = operator.shape
    return Work(0.0, reads * width, elements * out_width)


def _attention_work(operator: Operator, width: float, out_width: float) -> Work:
    batch, queries, context, heads, kv_heads, head_dim, window, causal = operator.shape
    visible = min(context, window) if window else context
    pairs = queries * visible
    if causal and queries > 1.0:
        unseen = min(queries, visible)
        pairs -= unseen * (unseen - 1.0) / 2.0
    kv_width = BYTES_PER_ELEMENT[operator.precision_kv or operator.precision]
    query_elements = batch * queries * heads * head_dim
    seen = min(context, visible + queries - 1.0)  # keys that any query sees: the windows of neighbours overlap
    read = query_elements * width + 2.0 * batch * seen * kv_heads * head_dim * kv_width
    return Work(4.0 * batch * heads * pairs * head_dim, read, query_elements * out_width)


def work_by_family(workload: Workload) -> dict[str, Work]:
    """Total work of a workload by family, in first-seen order."""
    totals: dict[str, Work] = {}
    for operator, count in zip(workload.operators, workload.counts, strict=True):
        work = operator_work(operator)
        so_far = totals.get(operator.family, Work(0.0, 0.0, 0.0))
        totals[operator.family] = Work(*(a + count * b for a, b in zip(so_far, work, strict=True)))
    return totals


def workload_warnings(workload: Workload) -> tuple[str, ...]:
    """One line for each property of a workload that a prediction does not cover, most serious first."""
    lines = []
    if workload.unknown:
        missing = sum(entry.count for entry in workload.unknown)
        listed = sum(count for operator, count in zip(workload.operators, workload.counts, strict=True) if _is_listed(operator))
        names = ", ".join(f"{short_name(entry.name)} ×{entry.count}" for entry in workload.unknown)
        elements = sum(entry.elements * entry.count for entry in workload.unknown)
        known = _written_elements(workload)
        size = f", {elements / (elements + known):.1%} of the elements written" if elements else ", size unknown"
        lines.append(
            f"{missing} of {listed + missing:.0f} operators ({missing / (listed + missing):.1%}{size}) "
            f"are of kinds that cannot be modelled and are left out: {names}"
        )
    lines.extend(workload.warnings)
    return tuple(lines)


def _is_listed(operator: Operator) -> bool:
    return not operator.origin.startswith(COMPLETED)


def _written_elements(workload: Workload) -> float:
    total = 0.0
    for operator, count in zip(workload.operators, workload.counts, strict=True):
        if _is_listed(operator):
            total += count * operator_work(operator).write_byte / BYTES_PER_ELEMENT[operator.precision_out or operator.precision]
    return total

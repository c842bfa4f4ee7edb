"""Minimum work of operators: useful flop and compulsory bytes, independent of any GPU.

These are for shares and sums over workloads.  The equations in `estimator.model.lowering` count more: padding, tiles,
passes and cache hits.
"""

from typing import NamedTuple

from estimator.vocabulary.quantities import BYTES_PER_ELEMENT, FORMATS
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
        return Work(
            2.0 * batch * m * n * k, batch * k * (m * width + n * FORMATS[operator.precision].weight_byte), batch * m * n * out_width
        )
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


def workload_work(workload: Workload) -> Work:
    """Total work of a workload."""
    rows = [
        [count * value for value in operator_work(operator)] for operator, count in zip(workload.operators, workload.counts, strict=True)
    ]
    return Work(*map(sum, zip(*rows, strict=True)))


def workload_warnings(workload: Workload) -> tuple[str, ...]:
    """One line for each property of a workload that a prediction does not cover, most serious first."""
    if not workload.unknown:
        return workload.warnings
    pairs = zip(workload.operators, workload.counts, strict=True)
    listed = [(operator, count) for operator, count in pairs if not operator.origin.startswith(COMPLETED)]
    missing = sum(entry.count for entry in workload.unknown)
    whole = missing + sum(count for _, count in listed)
    elements = sum(entry.elements * entry.count for entry in workload.unknown)
    known = sum(count * operator_work(one).write_byte / BYTES_PER_ELEMENT[one.precision_out or one.precision] for one, count in listed)
    size = f", {elements / (elements + known):.1%} of the elements written" if elements else ", size unknown"
    names = ", ".join(f"{entry.name:.80} ×{entry.count}" for entry in workload.unknown)
    line = (
        f"{missing} of {whole:.0f} operators ({missing / whole:.1%}{size}) are of kinds that cannot be modelled and are left out: {names}"
    )
    return (line, *workload.warnings)

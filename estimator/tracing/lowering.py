"""Dispatched calls → operators of a workload, in the order of execution.

A call without a kernel is dropped; a call without a rule is kept by name, with its count and its written elements.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Final

from estimator.tracing.calls import Call, Part
from estimator.tracing.fusion import compiled
from estimator.tracing.rules import rule_of
from estimator.vocabulary.errors import WorkloadError
from estimator.vocabulary.values import frozen
from estimator.vocabulary.workload import Operator, UnknownOperator, merge_counts

WIDENED: Final = "float16"
"""Type whose conversion to float32 before a softmax PyTorch does in the softmax kernel.  Source: ATen, SoftMax.cpp."""


@frozen
class Lowered:
    """Operators with their counts, merged, in first-seen order; operations without a family."""

    operators: tuple[Operator, ...]
    counts: tuple[float, ...]
    unknown: tuple[UnknownOperator, ...]


def lower_calls(calls: Iterable[Call], *, tf32: bool = False, fused: bool = False) -> Lowered:
    """Operators from calls in the order of execution.

    `tf32`: products of fp32 tensors run on tensor cores; `fused`: kernels of a compiled model (`estimator.tracing.fusion`).
    Raises WorkloadError for a call that contradicts itself.
    """
    listed: list[list[Part]] = []
    unknown: Counter[tuple[str, float]] = Counter()
    launched = cache(_parts)
    merged = _merged_softmax(list(calls))
    for call in merged:
        found = launched(call)
        if found is None:
            unknown[call.name, float(sum(tensor.elements for tensor in call.outputs))] += 1
        listed.append(found or [])
    parts = compiled(merged, listed) if fused else [one for found in listed for one in found]
    operators, counts = merge_counts(*zip(*parts, strict=True)) if parts else ((), ())
    return Lowered(
        operators=tuple(map(_on_tensor_cores, operators)) if tf32 else operators,
        counts=counts,
        unknown=tuple(UnknownOperator(name=name, count=count, elements=elements) for (name, elements), count in unknown.items()),
    )


def _merged_softmax(calls: list[Call]) -> list[Call]:
    """Calls in which conversions to fp32 directly before a softmax are merged into the softmax, as PyTorch does."""
    merged: list[Call] = []
    for call in calls:
        before = merged[-1] if merged else None
        if before is not None and call.name == "aten._softmax" and before.name == "aten._to_copy":
            source = before.inputs[0][1]
            if source.dtype == WIDENED and before.outputs[0] == call.inputs[0][1] and before.outputs[0].dtype == "float32":
                merged[-1] = replace(call, inputs=(("self", source),), read=before.read)
                continue
        merged.append(call)
    return merged


def _parts(call: Call) -> list[Part] | None:
    """The kernels of a call; None without a rule."""
    rule = rule_of(call)
    if not any(tensor.elements for tensor in call.outputs or [tensor for _, tensor in call.inputs]):
        return []
    if rule is None:
        return None
    try:
        return rule(call)
    except (IndexError, ValueError, ZeroDivisionError) as error:
        raise WorkloadError(f"{call.name}: a call that contradicts itself ({error}): {call.inputs}") from error


def _on_tensor_cores(operator: Operator) -> Operator:
    products = operator.family in ("gemm", "conv", "attention")
    return replace(operator, precision="tf32", cuda_cores=False) if products and operator.precision == "fp32" else operator

"""Variants of a workload in a sweep: its batch, sequence, precision and form of attention."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from types import NoneType
from typing import Any

from estimator.transforms.rescaling import Sizes, sizes_in_name, with_sizes
from estimator.transforms.rewriting import checked_formats, with_attention, with_precision
from estimator.vocabulary.errors import WorkloadError, require
from estimator.vocabulary.values import frozen
from estimator.vocabulary.workload import Workload


@frozen
class Variant:
    """A workload and its properties; 0 and "" mean not requested and not in the file.

    batch        sequences, images or requests that one iteration serves
    sequence     tokens of each
    tokens       tokens that one iteration computes, 0 if unknown: batch · sequence, or batch if one token each is decoded
    precision    requested precision, "" as written
    attention    "eager", "flash", or "" as written
    """

    workload: Workload
    batch: int = 0
    sequence: int = 0
    tokens: float = 0
    precision: str = ""
    attention: str = ""


def variants(
    workload: Workload,
    *,
    at: Sizes | None = None,
    batch: int | Iterable[int] = (),
    sequence: int | Iterable[int] = (),
    precision: str | Iterable[str] = (),
    attention: str | Iterable[str] = (),
) -> tuple[Variant, ...]:
    """Every combination of the requested values, in the order batch, sequence, precision, attention; by default the workload itself.

    Each argument may be one value or several.

    at: the sizes for which the workload was written; None: the sizes in its name ("…_b8_s512").

    Raises WorkloadError if a size is requested and the present one is unknown, and if the workload cannot be converted to a
    size, precision or form.
    """
    require(workload, Workload, "workload", "a Workload, as read_workload gives it")
    require(at, (Sizes, NoneType), "at", "a Sizes(batch=8, sequence=512)")
    present = at or sizes_in_name(workload.name)
    sizes = _sizes(workload, present, several(batch), several(sequence))
    return tuple(
        _variant(workload, present, size, name, form)
        for size, name, form in product(sizes, several(precision) or ("",), several(attention) or ("",))
    )


def several(given: Any) -> tuple[Any, ...]:
    """One or several values as a tuple."""
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)


def _sizes(workload: Workload, present: Sizes | None, batch: Sequence[int], sequence: Sequence[int]) -> Sequence[Sizes | None]:
    if not batch and not sequence:
        return (present,)
    if present is None:
        raise WorkloadError(
            f"{workload.name}: neither its name nor you say for which batch and sequence it was written; "
            "say it (--at batch=8,sequence=512; in Python at=Sizes(batch=8, sequence=512)), or name the file so (…_b8_s512.json)"
        )
    return [Sizes(batch=b, sequence=s) for b, s in product(batch or (present.batch,), sequence or (present.sequence,))]


def _variant(workload: Workload, present: Sizes | None, size: Sizes | None, precision: str, attention: str) -> Variant:
    fused = attention == "flash"  # first: attention that is written out for several sequences cannot be rescaled to one
    changed = with_attention(workload, attention) if fused else workload
    changed = changed if size is None or present is None else with_sizes(changed, present, size)
    if attention and not fused:
        changed = with_attention(changed, attention)
    if precision:
        changed = with_precision(changed, precision)
    changed = checked_formats(changed) if precision or attention else changed
    if size is not None and size != present:
        length = f"s{size.sequence}" if size.sequence else ""
        changed = replace(changed, name=f"{workload.name}@b{size.batch}{length}")
    tokens = 0 if size is None else size.batch if _decodes(workload) else size.batch * size.sequence
    return Variant(
        workload=changed,
        batch=size.batch if size else 0,
        sequence=size.sequence if size else 0,
        tokens=tokens,
        precision=precision,
        attention=attention,
    )


def _decodes(workload: Workload) -> bool:
    """Whether one new token is computed for each sequence."""
    if any(operator.family == "attention" for operator in workload.operators):
        return all(operator.operator == "decode" for operator in workload.operators if operator.family == "attention")
    products = [operator for operator in workload.operators if operator.operator == "bmm"]
    return bool(products) and all(operator["m"] == 1.0 for operator in products)

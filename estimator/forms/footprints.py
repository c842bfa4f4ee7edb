"""What a model holds in memory after its workload was rewritten: a least value of each part, from what it held before."""

from dataclasses import replace

from estimator.quantities import BYTES_PER_ELEMENT
from estimator.workload import Footprint, Growth


def recast_footprint(footprint: Footprint | None, old: str, new: str, *, layers_alone: bool) -> Footprint | None:
    """The footprint in precision `new` instead of `old`.

    layers_alone: only the layers' operands become narrower; caches stay as they are.  What was held in a third precision on purpose is
    not known, so that passing tensors shrink by the whole ratio and do not grow.
    """
    if footprint is None:
        return None
    ratio = BYTES_PER_ELEMENT[new] / BYTES_PER_ELEMENT[old]
    return Footprint(
        weights_byte=footprint.weights_byte * ratio,
        optimizer_byte=footprint.optimizer_byte * ratio,
        cache_byte=footprint.cache_byte * (1.0 if layers_alone else ratio),
        passing_byte=footprint.passing_byte * min(ratio, 1.0),
    )


def footprint_in_other_form(footprint: Footprint | None) -> Footprint | None:
    """The footprint where attention takes another form: what passes through is unknown then."""
    return None if footprint is None else replace(footprint, passing_byte=0.0)


def resized_footprint(
    footprint: Footprint | None, *, batch: float, sequence: float, cached_tokens: float, cache_grows: bool, passing: Growth | None = None
) -> Footprint | None:
    """The footprint at `batch` times the sequences and `sequence` times their length; `cached_tokens`: times the tokens before the last.

    cache_grows: the caches of all layers grow with the length; one of a window does not.  Scores shrink with the square of the length;
    gradients do not grow at all.  `passing`: the growth that passing tensors were seen to have, None where they follow no such law.
    """
    if footprint is None:
        return None
    longer = cached_tokens if cache_grows else min(cached_tokens, 1.0)
    least = min(batch, 1.0) * min(sequence, 1.0) ** 2
    return replace(
        footprint,
        cache_byte=footprint.cache_byte * batch * longer,
        passing_byte=footprint.passing_byte * (least if passing is None else batch**passing.batch * sequence**passing.sequence),
    )

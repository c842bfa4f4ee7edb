"""Completion: kernels that a model launches and that a traced operator list leaves out.

The name of a rule set never changes its meaning; new findings get a new name.
Each rule is a small function from `Patterns` to `Change`s and reads the list as it was traced, so that the order of
rules does not matter.  Added operators have the origin "completed:RULE", corrected ones "corrected:RULE".
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from estimator.completion import language_rules as language
from estimator.completion import vision_rules as vision
from estimator.completion.patterns import Change, Patterns
from estimator.vocabulary.workload import COMPLETED, CORRECTED, Listing, Operator, merge_counts

Rule = Callable[[Patterns], Iterator[Change]]

RULES: Final[tuple[Rule, ...]] = (
    language.operand_copies,
    language.context_copy,
    language.causal_where,
    language.broadcast_mask,
    language.repeat_kv,
    language.rotary,
    language.embeddings,
    language.rms_norm,
    vision.depthwise,
    vision.batch_norm,
    vision.layout_conversion,
    vision.pixel_layout,
    vision.pooling,
    vision.residual_add,
    vision.concatenation,
    vision.patch_tokens,
)
RULE_SET: Final = "eager-pytorch-1"


def complete(listing: Listing) -> tuple[tuple[Operator, ...], tuple[float, ...]]:
    """A listing merged into unique operators and their counts, after the changes of RULES.

    Listed operators come first, in first-seen order, then added ones, rule by rule.
    """
    patterns = Patterns(listing)
    counts = list(patterns.counts)
    additions: dict[Operator, float] = {}
    for rule in RULES:
        for operator, times, replaced in rule(patterns):
            if replaced >= 0:  # in a meaningless list two patterns may claim one operator; it is replaced once
                times = min(times, counts[replaced])
                counts[replaced] -= times
            marked = replace(operator, origin=(CORRECTED if replaced >= 0 else COMPLETED) + rule.__name__)
            additions[marked] = additions.get(marked, 0.0) + times
    return merge_counts((*listing.operators, *additions), (*counts, *additions.values()))

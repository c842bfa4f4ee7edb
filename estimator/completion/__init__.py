"""Completion: what a model launches and a traced operator list leaves out.

A rule set is a named, versioned tuple of rules; the name never changes its meaning, new findings make a new version.
Each rule is a small function from `Patterns` to `Change`s and reads the list as it was traced, so that the order of
rules does not matter.  What a rule adds carries the origin "completed:RULE", what it puts right "corrected:RULE".
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from estimator.completion import language_rules as language
from estimator.completion import vision_rules as vision
from estimator.completion.patterns import Change, Patterns
from estimator.vocabulary.errors import ArgumentError, WorkloadError
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
    vision.pooling,
    vision.residual_add,
    vision.concatenation,
    vision.patch_tokens,
)
DEFAULT_RULE_SET: Final = "eager-pytorch-1"
RULE_SETS: Final[dict[str, dict[str, Rule]]] = {DEFAULT_RULE_SET: {rule.__name__: rule for rule in RULES}}
"""Rules by name of the rule set."""


def parse_completion(completion: bool | str) -> tuple[str, dict[str, Rule]]:
    """The name to record and the rules to apply for a completion setting.

    True is the default rule set, False none.  A name may be followed by rules to leave out, each after a minus sign:
    "eager-pytorch-1 -batch_norm -embeddings".  Raises WorkloadError for a name that is unknown.
    """
    if not isinstance(completion, bool | str):
        raise ArgumentError(
            f"completion must be True, False or the name of a rule set, got {completion!r:.40} ({type(completion).__name__})"
        )
    if completion is True:
        completion = DEFAULT_RULE_SET
    if not completion:
        return "", {}
    name, *without = completion.split()
    if name not in RULE_SETS:
        raise WorkloadError(f"unknown completion rule set {name!r}; known: {', '.join(RULE_SETS)}")
    rules = dict(RULE_SETS[name])
    for item in without:
        if not item.startswith("-") or rules.pop(item[1:], None) is None:
            known = ", ".join(RULE_SETS[name])
            raise WorkloadError(f"completion {completion!r}: {item!r} must be '-' and a rule of {name}, once: {known}")
    return " ".join((name, *without)), rules


def complete(listing: Listing, rules: dict[str, Rule]) -> tuple[tuple[Operator, ...], tuple[float, ...]]:
    """A listing merged into unique operators and their counts, with the changes of `rules` made.

    Listed operators come first, in first-seen order, then what was added, rule by rule.
    """
    patterns = Patterns(listing)
    counts = list(patterns.counts)
    additions: dict[Operator, float] = {}
    for name, rule in rules.items():
        for operator, times, replaced in rule(patterns):
            if replaced >= 0:  # in a list without sense two patterns may claim one operator; it is replaced once
                times = min(times, counts[replaced])
                counts[replaced] -= times
            marked = replace(operator, origin=(CORRECTED if replaced >= 0 else COMPLETED) + name)
            additions[marked] = additions.get(marked, 0.0) + times
    return merge_counts((*listing.operators, *additions), (*counts, *additions.values()))

"""Completion: each rule adds what its pattern asks for, on recorded lists and on models it was not made for."""

import json
from collections import Counter

import pytest

from estimator import Workload, read_workload
from estimator.completion import RULE_SET, RULES, complete
from estimator.formats.energaizer import read_energaizer
from examples.gpt2_prefill import gpt2_prefill
from tests.estimator import artifact_lists as artifact
from tests.estimator.traced import counted
from tests.estimator.workload_files import recorded


def completed(entries):
    operators, counts = complete(read_energaizer(json.loads(json.dumps(entries)), "list"))
    return Workload(name="list", operators=operators, counts=counts)


def by_rule(workload):
    """Counts of added and corrected operators: rule → operator → count."""
    found = {}
    for operator, count in counted(workload):
        kind, _, rule = operator.origin.partition(":")
        if rule:
            found.setdefault(rule, Counter())[f"{kind} {operator.operator}"] += count
    return {rule: dict(tally) for rule, tally in found.items()}


def rules(text):
    """What each rule adds and corrects, written as lines such as `embeddings: completed gather 3, completed add 1`."""
    lines = (line.split(": ") for line in text.strip().splitlines())
    return {rule: {what: float(count) for what, count in (one.rsplit(" ", 1) for one in found.split(", "))} for rule, found in lines}


RECORDED = {
    "bertmodel_large_pbf16_b1_s256_modeprefill": rules("""
context_copy: completed contiguous 24
broadcast_mask: corrected add 24
embeddings: completed gather 3, completed add 1
"""),
    "bertmodel_large_pbf16_b16_s256_modeprefill": rules("""
operand_copies: completed contiguous 48, completed transpose 24
context_copy: completed contiguous 24
broadcast_mask: corrected add 24
embeddings: completed gather 3, completed add 1
"""),
    "gpt2model_gpt2_pbf16_b8_s512_modeprefill": rules("""
operand_copies: completed contiguous 24, completed transpose 12
context_copy: completed contiguous 12
causal_where: corrected scalar_div 12, completed where 12
embeddings: completed gather 2
"""),
    "optmodel_opt-1p3b_pbf16_b1_s2048_modeprefill": rules("""
context_copy: completed contiguous 24
broadcast_mask: corrected add 24
embeddings: completed gather 2
"""),
    "resnet101__pbf16_b16_freq900": rules("""
batch_norm: completed batchnorm 104
layout_conversion: completed layout 74
pixel_layout: completed layout 134
pooling: completed pool 1, completed mean 1
residual_add: completed add 33
"""),
    "mobilevitmodel_small_pbf16_b8_freq900": rules("""
depthwise: corrected depthwise 7
batch_norm: completed batchnorm 32
layout_conversion: completed layout 14
pixel_layout: completed layout 42
concatenation: completed cat 3
patch_tokens: completed transpose 12
operand_copies: completed contiguous 18, completed transpose 9
context_copy: completed contiguous 9
"""),
}  # fmt: skip
"""What each rule adds to lists of the published artifact and corrects in them; rules that are not named find nothing.

Of MobileViT the three convolutions that lead into a transformer have no norm, and depthwise ones no conversion.  Operands of one layer are
copied where there is more than one sequence.
"""


@pytest.mark.parametrize("name", RECORDED)
def test_rules_add_to_a_recorded_list_what_its_model_launches(shared_data, name):
    workload = recorded(shared_data, name)
    assert by_rule(workload) == RECORDED[name]
    assert workload.completion == RULE_SET
    assert recorded(shared_data, name, completion=False).completion == ""


BUILT = {
    "qwen2": (artifact.qwen2(4, 256), """
repeat_kv: completed contiguous 56
rotary: corrected mul 112, completed scalar_mul 56, completed cat 56
rms_norm: corrected mul 57, completed mean 57, completed typecast 114
context_copy: completed contiguous 28
broadcast_mask: corrected add 28
operand_copies: completed contiguous 28
embeddings: completed gather 1
"""),
    "vit": (
        [artifact.conv(32, 3, 224, 1024, 16, 16, 0), artifact.layernorm(32 * 197, 1024)],  # its patches with a class token
        "patch_tokens: completed cat 1\nlayout_conversion: completed layout 2",
    ),
}  # fmt: skip
"""Lists of models that no rule was made for."""


@pytest.mark.parametrize("model", BUILT)
def test_rules_find_their_patterns_in_other_models(model):
    entries, expected = BUILT[model]
    workload = completed(entries)
    assert by_rule(workload) == rules(expected)
    shapes = {operator.shape for operator in workload.operators if operator.origin == "completed:repeat_kv"}
    assert shapes <= {(4 * 256 * 1536, 4 * 256 * 256)}


def test_as_many_key_value_heads_as_query_heads_are_not_repeated():
    block = [artifact.gemm(8, 64, 64, 32), artifact.softmax(8 * 64, 64), artifact.gemm(8, 64, 32, 64)]
    fused = completed([artifact.layernorm(128, 128), artifact.linear(128, 3 * 128, 128), *block])
    grouped = completed([artifact.layernorm(128, 128), artifact.linear(128, 128 + 2 * 64, 128), *block])
    assert "repeat_kv" not in by_rule(fused)
    assert by_rule(grouped)["repeat_kv"] == {"completed contiguous": 2}
    assert by_rule(grouped)["operand_copies"] == {"completed contiguous": 1}


# Vision models --------------------------------------------------------------------------------------------------------


def test_layout_conversions_belong_to_16_bit_convolutions():
    wide = artifact.conv(1, 8, 16, 8, 3, 1, 1)
    wide[0] |= {"precM": "fp32", "precA": "fp32"}
    assert "layout_conversion" not in by_rule(completed([wide]))


# The step as a whole --------------------------------------------------------------------------------------------------


def recorded_and_built(folder):
    paths = sorted((folder / "energaizer" / "workloads").glob("*_b8_*.json"))
    return [*(json.loads(path.read_text()) for path in paths), artifact.qwen2(2, 128)]


def test_completion_never_loses_or_doubles_a_listed_operator(shared_data):
    for entries in recorded_and_built(shared_data):
        workload = completed(entries)
        assert sum(n for o, n in counted(workload) if not o.origin.startswith("completed:")) == len(entries)
        assert min(workload.counts) > 0
        assert len(set(workload.operators)) == len(workload.operators)


def test_every_rule_is_used_by_some_model():
    expected = [*RECORDED.values(), *(rules(found) for _, found in BUILT.values())]
    assert {rule for found in expected for rule in found} == {rule.__name__ for rule in RULES}


def test_the_example_is_what_the_completed_list_of_the_same_model_holds(repository, shared_data):
    """Two independent ways to the same operators: a configuration written down, a trace completed."""

    def tally(workload):
        counts = Counter()
        for operator, count in counted(workload):
            head = operator.family == "gemm" and operator["n"] == 50257
            if operator.operator != "gather" and not head:
                counts[operator.family, operator.operator, operator.shape, operator.host_share] += count
        return counts

    for batch, length in [(1, 128), (8, 512)]:
        traced = tally(recorded(shared_data, f"gpt2model_gpt2_pbf16_b{batch}_s{length}_modeprefill"))
        written = tally(gpt2_prefill(batch, length))
        residual = batch * length * 768
        position = ("elementwise", "add", (residual, residual + length * 768), 0.6)  # read once for all sequences
        if position in written and batch > 1:
            written["elementwise", "add", (residual, 2 * residual), 0.6] += written.pop(position)
        assert written == traced
    assert read_workload(repository / "examples" / "gpt2-prefill.json") == gpt2_prefill(8, 512)

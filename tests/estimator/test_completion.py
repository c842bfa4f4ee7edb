"""Completion: each rule adds what its pattern asks for, on recorded lists and on models it was not made for."""

import csv
import importlib.util
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from estimator.completion import DEFAULT_RULE_SET, RULE_SETS, complete, parse_completion
from estimator.completion.patterns import Patterns
from estimator.formats import read_workload
from estimator.formats.energaizer import distinct_items, read_energaizer
from estimator.vocabulary.errors import WorkloadError
from estimator.vocabulary.workload import Listing, Operator, Workload, main_precision
from tests.estimator import artifact_lists as artifact

RULES = tuple(RULE_SETS[DEFAULT_RULE_SET])


def recorded(folder: Path, name: str, completion: bool | str = True) -> Workload:
    return read_workload(folder / "energaizer" / "workloads" / f"{name}.json", completion=completion)


def bert(folder: Path, batch: int, length: int) -> Workload:
    return recorded(folder, f"bertmodel_large_pbf16_b{batch}_s{length}_modeprefill")


def listing_of(entries: list[artifact.Entry]) -> Listing:
    items = distinct_items(json.dumps(entries))
    assert items is not None
    return read_energaizer(*items, "list")


def completed(entries: list[artifact.Entry], completion: bool | str = True) -> Workload:
    operators, counts = complete(listing_of(entries), parse_completion(completion)[1])
    return Workload(name="list", operators=operators, counts=counts)


def by_rule(workload: Workload) -> dict[str, dict[str, float]]:
    """Counts of added and corrected operators: rule → operator → count."""
    found: dict[str, Counter[str]] = {}
    for operator, count in zip(workload.operators, workload.counts, strict=True):
        kind, _, rule = operator.origin.partition(":")
        if rule:
            found.setdefault(rule, Counter())[f"{kind} {operator.operator}"] += count
    return {rule: dict(tally) for rule, tally in found.items()}


def added(workload: Workload, rule: str) -> list[tuple[Operator, float]]:
    pairs = zip(workload.operators, workload.counts, strict=True)
    return [(operator, count) for operator, count in pairs if operator.origin == f"completed:{rule}"]


# Language models ------------------------------------------------------------------------------------------------------


def test_copies_of_operands_change_the_host_s_pace_as_little_as_they_were_measured_to(shared_data):
    """Runs of 128 tokens that the host paces, of one sequence and of several, whose operands are copied; A100, at the quick pace."""
    runs = {"bertmodel_large": 8, "gpt2model_gpt2": 8, "optmodel_opt-1p3b": 2}
    with (shared_data / "energaizer" / "a100_900mhz.csv").open() as file:
        rows = [(Path(row["workload"]).stem, float(row["latency_s"])) for row in csv.DictReader(file)]
    measured, stated = [], []
    for model, batch in runs.items():
        names = [f"{model}_pbf16_b{size}_s128_modeprefill" for size in (1, batch)]
        alone, several = (min(latency for name, latency in rows if name == asked) for asked in names)
        one, many = (recorded(shared_data, name) for name in names)
        measured.append(np.log(several / alone))
        stated.append(np.log(launches(many) / launches(one)))
    assert np.mean(stated) == pytest.approx(np.mean(measured), abs=0.015)


def launches(workload: Workload) -> float:
    """Host shares of one iteration."""
    return sum(count * operator.host_share for operator, count in zip(workload.operators, workload.counts, strict=True))


@pytest.mark.parametrize(("batch", "copies"), [(1, 0), (2, 24), (16, 24)])
def test_bert_copies_its_operands_where_there_is_more_than_one_sequence(shared_data, batch, copies):
    rules = by_rule(bert(shared_data, batch, 256))
    expected = {"completed contiguous": 2 * copies, "completed transpose": copies} if copies else None
    assert rules.get("operand_copies") == expected
    assert rules["context_copy"] == {"completed contiguous": 24}
    assert rules["broadcast_mask"] == {"corrected add": 24}
    assert rules["embeddings"] == {"completed gather": 3, "completed add": 1}
    assert set(rules) <= {"operand_copies", "context_copy", "broadcast_mask", "embeddings"}


@pytest.mark.parametrize(("batch", "length"), [(1, 128), (8, 512), (32, 1024)])
def test_gpt2_masks_its_scores_with_a_where_in_every_layer(shared_data, batch, length):
    workload = recorded(shared_data, f"gpt2model_gpt2_pbf16_b{batch}_s{length}_modeprefill")
    rules = by_rule(workload)
    scores = batch * 12 * length * length
    assert rules["causal_where"] == {"corrected scalar_div": 12, "completed where": 12}
    assert added(workload, "causal_where")[0][0].shape == (scores, scores)
    assert ("operand_copies" in rules) == (batch > 1)
    assert rules["embeddings"] == {"completed gather": 2}
    assert "broadcast_mask" not in rules


@pytest.mark.parametrize(("batch", "length"), [(1, 2048), (4, 128)])
def test_opt_adds_a_mask_that_is_read_once(shared_data, batch, length):
    workload = recorded(shared_data, f"optmodel_opt-1p3b_pbf16_b{batch}_s{length}_modeprefill")
    rules = by_rule(workload)
    scores = batch * 32 * length * length
    masks = [(o.shape, n) for o, n in zip(workload.operators, workload.counts, strict=True) if o.origin == "corrected:broadcast_mask"]
    assert masks == [((scores, scores), 24)]
    assert rules["embeddings"] == {"completed gather": 2}
    assert "causal_where" not in rules


@pytest.mark.parametrize("batch", [1, 4])
def test_grouped_queries_rotary_positions_and_rms_norm_are_found_in_qwen2(batch):
    workload = completed(artifact.qwen2(batch, 256))
    rules = by_rule(workload)
    tokens = batch * 256
    assert rules["repeat_kv"] == {"completed contiguous": 2 * 28}
    assert {operator.shape for operator, _ in added(workload, "repeat_kv")} == {(tokens * 1536, tokens * 256)}
    assert rules["rotary"] == {"corrected mul": 4 * 28, "completed scalar_mul": 2 * 28, "completed cat": 2 * 28}
    assert rules["rms_norm"] == {"corrected mul": 57, "completed mean": 57, "completed typecast": 2 * 57}
    assert rules["context_copy"] == {"completed contiguous": 28}
    assert rules.get("operand_copies") == ({"completed contiguous": 28} if batch > 1 else None)
    assert rules["embeddings"] == {"completed gather": 1}
    assert set(rules) <= {"repeat_kv", "rotary", "rms_norm", "context_copy", "operand_copies", "embeddings", "broadcast_mask"}


def test_conversions_of_an_rms_norm_that_are_listed_are_not_added_again():
    size = 256 * 64
    norm = artifact.rms_norm(256, 64)
    wide = [artifact.elementwise("typecast_to_fp32", size), *norm[:4], artifact.elementwise("typecast_to_bf16", size, "fp32"), norm[4]]
    rules = by_rule(completed([*wide, artifact.linear(256, 64, 64)]))
    assert rules["rms_norm"] == {"corrected mul": 1, "completed mean": 1}


def test_as_many_key_value_heads_as_query_heads_are_not_repeated():
    block = [artifact.gemm(8, 64, 64, 32), artifact.softmax(8 * 64, 64), artifact.gemm(8, 64, 32, 64)]
    fused = completed([artifact.layernorm(128, 128), artifact.linear(128, 3 * 128, 128), *block])
    grouped = completed([artifact.layernorm(128, 128), artifact.linear(128, 128 + 2 * 64, 128), *block])
    assert "repeat_kv" not in by_rule(fused)
    assert by_rule(grouped)["repeat_kv"] == {"completed contiguous": 2}
    assert by_rule(grouped)["operand_copies"] == {"completed contiguous": 1}


def test_fused_attention_needs_no_copies():
    rules = by_rule(completed(artifact.fused_decoder(4, 128)))
    assert rules == {"embeddings": {"completed gather": 2}}


# Vision models --------------------------------------------------------------------------------------------------------


def test_resnet_gets_its_batch_norms_poolings_conversions_and_residuals(shared_data):
    workload = recorded(shared_data, "resnet101__pbf16_b16_freq900")
    rules = by_rule(workload)
    assert rules == {
        "batch_norm": {"completed batchnorm": 104},
        "layout_conversion": {"completed layout": 2 * 104},
        "pooling": {"completed pool": 1, "completed mean": 1},
        "residual_add": {"completed add": 33},
    }
    pool, mean = (operator.shape for operator, _ in added(workload, "pooling"))
    assert pool == (16 * 64 * 56 * 56, 16 * 64 * 112 * 112)
    assert mean == (16 * 2048, 49)


def test_mobilevit_has_seven_depthwise_convolutions_and_no_conversion_for_them(shared_data):
    workload = recorded(shared_data, "mobilevitmodel_small_pbf16_b8_freq900")
    rules = by_rule(workload)
    assert rules["depthwise"] == {"corrected depthwise": 7}
    convs = sum(count for operator, count in zip(workload.operators, workload.counts, strict=True) if operator.operator == "conv2d")
    assert rules["layout_conversion"] == {"completed layout": 2 * convs}
    assert rules["batch_norm"] == {"completed batchnorm": convs + 7 - 3}, "the three that lead into a transformer have none"
    assert rules["concatenation"] == {"completed cat": 3}
    assert rules["patch_tokens"] == {"completed transpose": 4 * 3}
    assert rules["operand_copies"] == {"completed contiguous": 2 * 9, "completed transpose": 9}
    assert "residual_add" not in rules, "its additions are listed"
    assert "embeddings" not in rules


@pytest.mark.parametrize("batch", [1, 32])
def test_an_image_transformer_gets_a_class_token_and_no_batch_norm(batch):
    workload = completed(artifact.vit_large(batch))
    rules = by_rule(workload)
    assert rules["patch_tokens"] == {"completed cat": 1}
    assert added(workload, "patch_tokens")[0][0].shape == (batch * 197 * 1024, batch * 196 * 1024)
    assert rules["layout_conversion"] == {"completed layout": 2}
    assert rules["context_copy"] == {"completed contiguous": 24}
    assert ("operand_copies" in rules) == (batch > 1)
    assert not {"batch_norm", "pooling", "embeddings", "broadcast_mask", "residual_add", "rms_norm"} & set(rules)


def basic_block(channels: int, size: int, *, stride: int = 1, before: int = 0) -> list[artifact.Entry]:
    inputs = before or channels
    out = size // stride
    relu = artifact.elementwise("relu", channels * out * out)
    shortcut = [artifact.conv(1, before, size, channels, 1, stride, 0)] if before else []
    return [
        artifact.conv(1, inputs, size, channels, 3, stride, 1),
        relu,
        artifact.conv(1, channels, out, channels, 3, 1, 1),
        *shortcut,
        relu,
    ]


def test_residuals_of_basic_blocks_are_found_and_those_of_a_plain_network_are_not():
    stem = [artifact.conv(1, 3, 224, 64, 7, 2, 3), artifact.elementwise("relu", 64 * 112 * 112)]
    small = [
        *stem,
        *basic_block(64, 56) * 2,
        *basic_block(128, 56, stride=2, before=64),
        *basic_block(128, 28),
        artifact.linear(1, 10, 128),
    ]
    plain = [*stem, *basic_block(64, 56) * 4]
    assert by_rule(completed(small))["residual_add"] == {"completed add": 4}
    assert "residual_add" not in by_rule(completed(plain))


def test_layout_conversions_belong_to_16_bit_convolutions():
    wide = artifact.conv(1, 8, 16, 8, 3, 1, 1)
    wide[0] |= {"precM": "fp32", "precA": "fp32"}
    assert "layout_conversion" not in by_rule(completed([wide]))


# The step as a whole --------------------------------------------------------------------------------------------------


def recorded_and_built(folder: Path) -> list[list[artifact.Entry]]:
    paths = sorted((folder / "energaizer" / "workloads").glob("*_b8_*.json"))
    return [*(json.loads(path.read_text()) for path in paths), artifact.qwen2(2, 128), artifact.vit_large(2), artifact.fused_decoder(1, 64)]


def test_completion_never_loses_or_doubles_a_listed_operator(shared_data):
    for entries in recorded_and_built(shared_data):
        workload = completed(entries)
        listed = sum(n for o, n in zip(workload.operators, workload.counts, strict=True) if not o.origin.startswith("completed:"))
        assert listed == len(entries)
        assert min(workload.counts) > 0
        assert len(set(workload.operators)) == len(workload.operators)


def test_a_rule_left_out_leaves_no_trace_and_changes_no_other(shared_data):
    for entries in recorded_and_built(shared_data):
        whole = by_rule(completed(entries))
        for rule in whole:
            rest = by_rule(completed(entries, f"{DEFAULT_RULE_SET} -{rule}"))
            assert rest == {name: tally for name, tally in whole.items() if name != rule}


def test_every_rule_is_used_by_some_model(shared_data):
    used = {rule for entries in recorded_and_built(shared_data) for rule in by_rule(completed(entries))}
    assert used == set(RULES)


def test_the_setting_is_recorded_and_wrong_ones_are_refused(shared_data):
    name = "resnet101__pbf16_b8_freq900"
    assert recorded(shared_data, name).completion == DEFAULT_RULE_SET
    assert recorded(shared_data, name, completion=False).completion == ""
    partial = recorded(shared_data, name, completion="eager-pytorch-1 -batch_norm -pooling")
    assert partial.completion == "eager-pytorch-1 -batch_norm -pooling"
    assert set(by_rule(partial)) == {"layout_conversion", "residual_add"}
    for wrong, message in [
        ("eager", "unknown completion rule set 'eager'; known: eager-pytorch-1"),
        ("eager-pytorch-1 -x", "'-x' must be"),
    ]:
        with pytest.raises(WorkloadError, match=message):
            recorded(shared_data, name, completion=wrong)


def test_batch_and_heads_come_from_shapes_whatever_the_file_is_called(shared_data):
    path = shared_data / "energaizer" / "workloads" / "bertmodel_large_pbf16_b16_s128_modeprefill.json"
    (block,) = Patterns(listing_of(json.loads(path.read_text()))).attention
    assert (block.sequences, block.heads, block.kv_heads, block.queries, block.head_dim, block.count) == (16, 16, 16, 128, 64, 24)
    listing = listing_of(artifact.qwen2(4, 128))
    (block,) = Patterns(listing).attention
    assert (block.sequences, block.heads, block.kv_heads, block.queries, block.head_dim, block.count) == (4, 12, 2, 128, 128, 28)
    assert main_precision(listing.operators, listing.counts) == "bf16"


def test_the_example_is_what_the_completed_list_of_the_same_model_holds(repository, shared_data):
    """Two independent ways to the same operators: a configuration written down, a trace completed."""
    spec = importlib.util.spec_from_file_location("gpt2_prefill", repository / "examples" / "gpt2_prefill.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)

    def tally(workload: Workload) -> Counter[tuple[object, ...]]:
        counts: Counter[tuple[object, ...]] = Counter()
        for operator, count in zip(workload.operators, workload.counts, strict=True):
            head = operator.family == "gemm" and operator["n"] == 50257
            if operator.operator != "gather" and not head:
                counts[operator.family, operator.operator, operator.shape, operator.host_share] += count
        return counts

    for batch, length in [(1, 128), (8, 512)]:
        traced = tally(recorded(shared_data, f"gpt2model_gpt2_pbf16_b{batch}_s{length}_modeprefill"))
        written = tally(example.gpt2_prefill(batch, length))
        residual = batch * length * 768
        position = ("elementwise", "add", (residual, residual + length * 768), 0.6)  # read once for all sequences
        if position in written and batch > 1:
            written["elementwise", "add", (residual, 2 * residual), 0.6] += written.pop(position)
        assert written == traced
    assert read_workload(repository / "examples" / "gpt2-prefill.json") == example.gpt2_prefill(8, 512)

"""A workload at other sizes, with attention fused or written out, in another precision: exact, or refused by name."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator import Sizes, WorkloadError, load_gpu, make_operator, read_workload, variants, with_attention, with_precision, with_sizes
from estimator.transforms.rescaling import sizes_in_name
from estimator.vocabulary.work import operator_work, workload_work
from estimator.vocabulary.workload import COMPLETED, Footprint, workload_as_run
from examples.gpt2_prefill import gpt2_prefill
from tests.estimator import artifact_lists as artifact
from tests.estimator.synthetic import attention, convolution, matmul, workload_of
from tests.estimator.traced import counted
from tests.estimator.workload_files import recorded, save


def contents(workload):
    return dict(counted(workload))


def rescaled_or_none(workload, at, to):
    """The workload at other sizes, None where it is refused for operators whose growth cannot be told."""
    try:
        return with_sizes(workload, at, to)
    except WorkloadError as error:
        if "cannot be rescaled from" not in str(error):
            raise
        return None


@given(batch=st.integers(2, 16), length=st.integers(2, 2048), to_batch=st.integers(2, 16), to_length=st.integers(2, 2048))
def test_a_workload_is_rescaled_right_or_not_at_all(batch, length, to_batch, to_length):
    sizes = Sizes(batch=batch, sequence=length), Sizes(batch=to_batch, sequence=to_length)
    rescaled = rescaled_or_none(gpt2_prefill(batch, length), *sizes)
    assert rescaled is None or contents(rescaled) == contents(gpt2_prefill(to_batch, to_length))


@pytest.mark.parametrize(
    "source, target",
    [
        ("gpt2model_gpt2_pbf16_b8_s512_modeprefill", "gpt2model_gpt2_pbf16_b32_s1024_modeprefill"),
        ("gpt2model_gpt2_pbf16_b1_s128_modeprefill", "gpt2model_gpt2_pbf16_b1_s1024_modeprefill"),
        ("optmodel_opt-1p3b_pbf16_b16_s128_modeprefill", "optmodel_opt-1p3b_pbf16_b4_s512_modeprefill"),
        ("bertmodel_large_pbf16_b16_s512_modeprefill", "bertmodel_large_pbf16_b32_s128_modeprefill"),
        ("bertmodel_large_pbf16_b16_s128_modeprefill", "bertmodel_large_pbf16_b32_s128_modeprefill"),
        ("resnet101__pbf16_b8_freq900", "resnet101__pbf16_b64_freq900"),
        ("mobilevitmodel_small_pbf16_b64_freq900", "mobilevitmodel_small_pbf16_b8_freq900"),
    ],
)
def test_a_recorded_list_becomes_the_list_recorded_at_other_sizes_or_is_refused(source, target, shared_data):
    at, to = sizes_in_name(source), sizes_in_name(target)
    files = [recorded(shared_data, name) for name in (source, target)]
    rescaled = rescaled_or_none(files[0], at, to)
    assert (rescaled is None) == (source in REFUSED)
    assert rescaled is None or contents(rescaled) == contents(files[1])


REFUSED = {"bertmodel_large_pbf16_b16_s128_modeprefill", "optmodel_opt-1p3b_pbf16_b16_s128_modeprefill"}
"""2,048 = 16 · 128 and 16,384 = 128²: a tensor of these sizes may be one thing or another."""


def test_the_example_of_decoding_can_be_asked_for_other_batches_and_caches(repository):
    workload = read_workload(repository / "examples" / "llama-8b-decode.json")
    grown = with_sizes(workload, Sizes(batch=16, sequence=2048), Sizes(batch=4, sequence=1000))
    assert {operator["context"] for operator in grown.operators if operator.family == "attention"} == {1000}
    assert {operator["m"] for operator in grown.operators if operator.family == "gemm"} == {4}
    for before, after in zip(workload.operators, grown.operators, strict=True):
        if before.family in ("elementwise", "copy", "norm"):
            assert before.shape[0] == 4.0 * after.shape[0]


@pytest.mark.parametrize(
    "at, to, reason",
    [
        ((8, 333), (0, 333), "batch = 0 lies outside 1 to"),
        ((8, 333), (8, 10**9), "sequence = 1000000000 lies outside 0 to"),
        ((8, 333), (8, 0), "where the workload's own is known"),
        ((8, 333), (1, 333), "cannot be rescaled to 1"),
        ((7, 333), (9, 333), "copy.gather bf16 2045952x2045952 \\(2.04595e\\+06 elements fit no tensor"),
    ],
)
def test_sizes_that_cannot_be_are_refused_in_words(at, to, reason):
    with pytest.raises(WorkloadError, match=reason):
        with_sizes(gpt2_prefill(8, 333), *(Sizes(batch=batch, sequence=sequence) for batch, sequence in (at, to)))


@pytest.mark.parametrize(
    "operator, count, at, to, reason",
    [
        (("gemm", "linear", {"batch": 1, "m": 6, "n": 64, "k": 64}), 200, (6, 100), (2, 24), "×200 may grow with the sequence"),
        (("conv", "conv2d", {"batch": 4, "channels": 8, "height": 1, "width": 90, "filters": 8, "kernel_h": 1, "kernel_w": 3, "stride": 1,
                             "padding": 0, "groups": 1}), 1, (4, 90), (4, 30), "×1 may grow with the sequence"),
        (("copy", "gather", {"elements": 32768, "reads": 34816}), 1, (8, 64), (2, 24), "elements fit no tensor"),
        (("reduction", "mean", {"rows": 60000, "dim": 4}), 1, (6, 100), (2, 24), "may be of tokens or of scores"),
        (("reduction", "sum", {"rows": 1, "dim": 640}), 1, (1, 0), (16, 0), "1 may be of each or of all"),
        (("copy", "transpose", {"elements": 640, "reads": 640}), 1, (4, 0), (1, 0), "copied for several sequences and not for one"),
    ],
)  # fmt: skip
def test_what_may_grow_otherwise_than_its_shape_tells_is_refused(operator, count, at, to, reason):
    """Steps of a recurrent layer, convolutions over tokens, tables without layers, scores, gradients of one image, copies."""
    family, name, shape = operator
    workload = workload_of(make_operator(family, name, "bf16", **shape), counts=(float(count),))
    with pytest.raises(WorkloadError, match=reason):
        with_sizes(workload, *(Sizes(batch=batch, sequence=sequence) for batch, sequence in (at, to)))


def test_a_training_step_has_an_answer_at_its_own_sizes_alone():
    held = Footprint(weights_byte=1.0, optimizer_byte=2.0, cache_byte=0.0, passing_byte=1.0)
    step = replace(gpt2_prefill(8, 333), name="step-b8-s333", footprint=held)
    assert [one.workload for one in variants(step)] == [step]
    with pytest.raises(WorkloadError, match="a training step, whose optimizer does not grow"):
        variants(step, batch=4)


def test_written_out_attention_of_several_sequences_becomes_fused_attention_of_one():
    several, one = (gpt2_prefill(batch, 333) for batch in (8, 1))
    (found,), (own,) = (variants(work, at=Sizes(batch=b, sequence=333), batch=1, attention="flash") for work, b in ((several, 8), (one, 1)))
    assert contents(found.workload) == contents(own.workload)


def test_fused_attention_grows_as_written_out_attention_does():
    few, many = (with_attention(gpt2_prefill(*sizes), "flash") for sizes in ((4, 333), (8, 500)))
    assert contents(with_sizes(few, Sizes(batch=4, sequence=333), Sizes(batch=8, sequence=500))) == contents(many)


MODELS = {
    "bertmodel_large_pbf16_b8_s256_modeprefill": (24, {"batch": 8, "heads": 16, "queries": 256, "head_dim": 64, "causal": 0}),
    "gpt2model_gpt2_pbf16_b1_s512_modeprefill": (12, {"batch": 1, "heads": 12, "queries": 512, "head_dim": 64, "causal": 1}),
    "gpt2model_gpt2_pbf16_b16_s128_modeprefill": (12, {"batch": 16, "heads": 12, "queries": 128, "head_dim": 64, "causal": 1}),
    "optmodel_opt-1p3b_pbf16_b2_s1024_modeprefill": (24, {"batch": 2, "heads": 32, "queries": 1024, "head_dim": 64, "causal": 1}),
}


def built(folder, entries, completion=True):
    return read_workload(save(folder, entries), completion=completion)


def pairs(workload, family):
    return [(o, n) for o, n in counted(workload) if o.family == family]


# Attention ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("completion", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_fusing_leaves_one_kernel_for_every_attention_block(shared_data, name, completion):
    layers, shape = MODELS[name]
    workload = recorded(shared_data, name, completion)
    fused = with_attention(workload, "flash")
    ((operator, count),) = pairs(fused, "attention")
    assert count == layers
    assert shape.items() <= operator.named_shape().items()
    assert not pairs(fused, "softmax")
    assert not any(operator.operator == "bmm" for operator in fused.operators)
    scores = shape["batch"] * shape["heads"] * shape["queries"] ** 2
    assert not any(operator.shape[0] == scores for operator, _ in pairs(fused, "elementwise") if operator.operator not in ("gelu", "relu"))
    assert not any(operator.operator in ("contiguous", "transpose") for operator, _ in pairs(fused, "copy"))
    whole = sum(operator_work(replace(one, shape=(*one.shape[:-1], 0.0))).flop * count for one, count in pairs(fused, "attention"))
    causal = sum(operator_work(one).flop * count for one, count in pairs(fused, "attention"))
    assert workload_work(fused).flop - causal + whole == pytest.approx(workload_work(workload).flop)


def test_operators_of_the_scores_size_that_belong_to_other_layers_stay(tmp_path):
    """At 64 tokens a head of 64 makes score matrices as large as the layer's activations."""
    tokens, hidden = 64, 256
    layer = [
        artifact.layernorm(tokens, hidden),
        *[artifact.linear(tokens, hidden, hidden)] * 3,
        artifact.gemm(4, tokens, tokens, 64),
        artifact.elementwise("unspecified_scalar", 4 * tokens * tokens),
        artifact.elementwise("pointwise_add", 4 * tokens * tokens),
        artifact.softmax(4 * tokens, tokens),
        artifact.gemm(4, tokens, 64, tokens),
        artifact.linear(tokens, hidden, hidden),
        artifact.elementwise("pointwise_add", tokens * hidden),
    ]
    assert 4 * tokens * tokens == tokens * hidden
    for completion in (True, False):
        fused = with_attention(built(tmp_path, layer * 3, completion), "flash")
        assert sum(count for operator, count in pairs(fused, "elementwise") if operator.operator == "add") == 3


def test_fused_attention_keeps_few_key_value_heads(tmp_path):
    fused = with_attention(built(tmp_path, artifact.qwen2(2, 128)), "flash")
    ((operator, count),) = pairs(fused, "attention")
    assert (count, operator["heads"], operator["kv_heads"], operator["batch"], operator["causal"]) == (28, 12, 2, 2, 1)
    assert any(operator.origin == "completed:rotary" for operator in fused.operators)


def test_vision_attention_is_not_causal(shared_data):
    mobile = with_attention(recorded(shared_data, "mobilevitmodel_small_pbf16_b8_freq900"), "flash")
    assert [(o["heads"], o["causal"], n) for o, n in pairs(mobile, "attention")] == [(4, 0, 2), (4, 0, 4), (4, 0, 3)]


def test_written_out_attention_does_the_work_of_the_fused_kernel_and_its_copies():
    workload = workload_of(attention(64, batch=2, kv_heads=2, head_dim=32, causal=0))
    eager = with_attention(workload, "eager")
    assert workload_work(eager).flop == workload_work(workload).flop
    kinds = {(o.operator, o.shape): n for o, n in counted(eager)}
    queries, scores = 2 * 8 * 64 * 32, 2 * 8 * 64 * 64
    assert kinds == {
        ("contiguous", (queries, queries / 4)): 2,
        ("contiguous", (queries, queries)): 2,
        ("bmm", (16, 64, 64, 32)): 1,
        ("scalar_mul", (scores, scores)): 1,
        ("softmax", (16 * 64, 64)): 1,
        ("bmm", (16, 64, 32, 64)): 1,
    }


def test_fusing_without_attention_is_refused(shared_data):
    workload = recorded(shared_data, "resnet101__pbf16_b8_freq900")
    with pytest.raises(WorkloadError, match="resnet101__pbf16_b8_freq900: no attention to fuse"):
        with_attention(workload, "flash")
    assert with_attention(workload, "eager") is workload
    with pytest.raises(WorkloadError, match="unknown form of attention 'paged'; known: eager, flash"):
        with_attention(workload, "paged")


# Precision ------------------------------------------------------------------------------------------------------------


def test_there_and_back_is_the_same_workload(shared_data):
    workload = recorded(shared_data, "gpt2model_gpt2_pbf16_b1_s512_modeprefill")
    for precision in ("fp16", "fp32"):
        assert contents(with_precision(with_precision(workload, precision), "bf16")) == contents(workload)


@pytest.mark.parametrize("before, sides", [("tf32", 1.0), ("bf16", 2.0)])
@pytest.mark.parametrize("precision, kept", [("tf32", {"tf32": 1.0}), ("fp32", {"tf32": 1.0}), ("fp16", {"fp16": 2.0}), ("fp64", {})])
def test_conversions_of_convolutions_stay_with_these(before, sides, precision, kept):
    operators = (
        convolution(3, before, batch=2, channels=8, height=9, width=9, filters=8, padding=1),
        make_operator("copy", "layout", before, elements=1296.0, reads=1296.0),
    )
    found = with_precision(workload_of(*operators, counts=(1.0, sides)), precision)
    assert {o.precision: count for o, count in pairs(found, "copy")} == kept
    assert [o.operator for o in workload_as_run(found, load_gpu("v100")).operators] == ["conv2d"] + ["layout"] * ("fp16" in kept)
    assert workload_as_run(found, load_gpu("a100")) is found


@pytest.mark.parametrize(
    "gpu, precision, kept",
    [
        ("rtx-3090", "fp16", [128.0]), ("rtx-5090", "fp16", [128.0]), ("a10", "bf16", [64.0, 128.0]), ("rtx-3090", "tf32", [64.0, 128.0]),
        ("a100", "fp16", [64.0, 128.0]), ("h100", "fp16", [64.0, 128.0]), ("v100", "fp16", [64.0, 128.0]),
    ],
)  # fmt: skip
def test_some_boards_take_single_pixels_in_fp16_as_they_lie(gpu, precision, kept):
    """64 elements around a convolution of single pixels, 128 around any other."""
    product = matmul(64, 64, 64, precision)
    turned = [make_operator("copy", "layout", precision, elements=n, reads=n, origin=f"{COMPLETED}{rule}")
              for n, rule in ((64.0, "pixel_layout"), (128.0, "layout_conversion"))]  # fmt: skip
    workload = workload_of(product, *turned, counts=(1.0, 2.0, 2.0))
    assert [one["elements"] for one in workload_as_run(workload, load_gpu(gpu)).operators if one.operator == "layout"] == kept


def test_wide_products_leave_the_tensor_cores_unless_tf32_is_asked_for(shared_data):
    workload = recorded(shared_data, "bertmodel_large_pbf16_b8_s256_modeprefill")
    assert {(o.precision, o.cuda_cores) for o, _ in pairs(with_precision(workload, "fp32"), "gemm")} == {("fp32", True)}
    tf32 = with_precision(workload, "tf32")
    assert {(o.precision, o.cuda_cores) for o, _ in pairs(tf32, "gemm")} == {("tf32", False)}
    assert {o.precision for o, _ in pairs(tf32, "norm")} == {"fp32"}


@pytest.mark.parametrize("before", ["bf16", "fp32", "tf32"])
def test_narrow_precisions_are_for_layers_alone(shared_data, before):
    workload = with_precision(with_precision(recorded(shared_data, "bertmodel_large_pbf16_b8_s256_modeprefill"), before), "fp8")
    kinds = {(o.operator, o.precision, o.precision_out, o.cuda_cores) for o, _ in pairs(workload, "gemm")}
    assert kinds == {("linear", "fp8", "bf16", False), ("bmm", "bf16", "", False)}
    assert {o.precision for o, _ in pairs(workload, "elementwise")} == {"bf16"}

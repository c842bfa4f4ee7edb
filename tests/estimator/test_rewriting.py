"""Attention fused and written out, precision changed: what goes, what stays, and what is refused."""

from dataclasses import replace

import pytest

from estimator import WorkloadError, load_gpu, make_operator, read_workload, with_attention, with_precision
from estimator.vocabulary.work import operator_work, workload_work
from estimator.vocabulary.workload import COMPLETED, workload_as_run
from tests.estimator import artifact_lists as artifact
from tests.estimator.synthetic import attention, convolution, matmul, workload_of
from tests.estimator.traced import counted
from tests.estimator.workload_files import recorded, save

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


def tally(workload):
    return dict(counted(workload))


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
        assert tally(with_precision(with_precision(workload, precision), "bf16")) == tally(workload)


@pytest.mark.parametrize("precision, kept", [("tf32", "tf32"), ("fp32", "tf32"), ("fp16", "fp16"), ("fp64", None)])
def test_conversions_of_convolutions_in_tf32_stay_with_these(precision, kept):
    operators = (
        convolution(3, "tf32", batch=2, channels=8, height=9, width=9, filters=8, padding=1),
        make_operator("copy", "layout", "tf32", elements=1296.0, reads=1296.0),
    )
    found = with_precision(replace(workload_of(operators[0]), operators=operators, counts=(1.0, 1.0)), precision)
    assert [o.precision for o in found.operators if o.operator == "layout"] == [kept] * (kept is not None)
    assert [o.operator for o in workload_as_run(found, load_gpu("v100")).operators] == ["conv2d"] + ["layout"] * (kept == "fp16")
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
    workload = replace(workload_of(product), operators=(product, *turned), counts=(1.0, 2.0, 2.0))
    assert [one["elements"] for one in workload_as_run(workload, load_gpu(gpu)).operators if one.operator == "layout"] == kept


def test_wide_products_leave_the_tensor_cores_unless_tf32_is_asked_for(shared_data):
    workload = recorded(shared_data, "bertmodel_large_pbf16_b8_s256_modeprefill")
    assert {(o.precision, o.cuda_cores) for o, _ in pairs(with_precision(workload, "fp32"), "gemm")} == {("fp32", True)}
    tf32 = with_precision(workload, "tf32")
    assert {(o.precision, o.cuda_cores) for o, _ in pairs(tf32, "gemm")} == {("tf32", False)}
    assert {o.precision for o, _ in pairs(tf32, "norm")} == {"fp32"}


def test_narrow_precisions_are_for_layers_alone(shared_data):
    workload = with_precision(recorded(shared_data, "bertmodel_large_pbf16_b8_s256_modeprefill"), "fp8")
    kinds = {(o.operator, o.precision, o.precision_out) for o, _ in pairs(workload, "gemm")}
    assert kinds == {("linear", "fp8", "bf16"), ("bmm", "bf16", "")}
    assert {o.precision for o, _ in pairs(workload, "elementwise")} == {"bf16"}

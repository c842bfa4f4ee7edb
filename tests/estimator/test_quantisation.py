"""Stored weights: formats by `quantization_config`, layers that stay wide, and precisions that are refused by name."""

import json
import math

import pytest

from estimator import WorkloadError, estimate, load_bundle, load_gpu, variants, with_precision
from estimator.serving.weights import read_weights
from estimator.tracing.models import WIDENED, TraceRequest, load_model_config, stays_wide, stored_format, weight_byte
from estimator.uncertainty.validity import why_no_time
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT
from tests.estimator.synthetic import addition, convolution, matmul, transformer, workload_of
from tests.estimator.traced import configuration, counted, need_torch
from tests.words import one_line


def compressed(weights, inputs=None, groups=1, **more):
    group = {"weights": {"type": weights[0], "num_bits": weights[1], "strategy": "channel"} | more, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "config_groups": {f"group_{i}": group for i in range(groups)}}


GPTQ, INT4 = {"quant_method": "gptq", "bits": 4}, compressed(("int", 4))
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True}
FLOAT8 = {"type": "float", "num_bits": 8, "dynamic": True}
CASES = [
    ({"quant_method": "fp8"}, "fp8"),
    ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8_static"),
    ({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}, "fp8_block"),
    ({"quant_method": "fp8", "weight_block_size": [64, 64]}, None),
    ({"quant_method": "fbgemm_fp8"}, "fp8"),
    ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8_static"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
    ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, None),
    (GPTQ, "int4_wo"),
    ({"quant_method": "gptq", "bits": 8}, "int8_wo"),
    ({"quant_method": "gptq", "bits": 3}, None),
    ({"quant_method": "awq", "bits": 4}, "int4_wo"),
    ({"quant_method": "gptq_marlin", "bits": 4}, "int4_wo"),
    ({"quant_method": "marlin"}, "int4_wo"),
    ({"quant_method": "awq", "w_bit": 4}, "int4_wo"),
    ({"quant_method": "awq"}, "int4_wo"),
    ({"quant_method": "auto-round", "bits": 8}, "int8_wo"),
    ({"quant_method": "auto-round", "bits": 4, "data_type": "int", "act_bits": 16}, "int4_wo"),
    ({"quant_method": "auto-round", "bits": 4, "data_type": "mx_fp", "act_bits": 4}, None),
    ({"quant_method": "auto-round", "bits": 8, "data_type": "fp", "act_bits": 8}, None),
    (NF4, "widened"),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, None),
    ({"quant_method": "hqq"}, None),
    ({"bits": 4}, None),
    (compressed(("float", 8), FLOAT8), "fp8"),
    (compressed(("float", 8), FLOAT8 | {"dynamic": False}), "fp8_static"),
    (compressed(("float", 8), FLOAT8, strategy="block", block_structure=[128, 128]), "fp8_block"),
    (compressed(("int", 8), {"type": "int", "num_bits": 8}), "sq"),
    (INT4, "int4_wo"),
    (compressed(("int", 8)), "int8_wo"),
    (compressed(("int", 4), {"type": "int", "num_bits": 8}), None),
    (compressed(("float", 4), {"type": "float", "num_bits": 4}, group_size=16), "nvfp4"),
    (compressed(("float", 8)), None),
    (compressed(("int", 4), groups=2, group_size=32), "int4_wo"),
    (GPTQ | {"group_size": -1}, "int4_wo"),
    (NF4 | {"bnb_4bit_use_double_quant": True}, "widened"),
    ({"quant_method": "compressed-tensors"}, None),
    (INT4 | {"sparsity_config": {}}, "int4_wo"),
    (INT4 | {"sparsity_config": {"sparsity_structure": "2:4"}}, None),
    (INT4 | {"targets": ["Linear"]}, "int4_wo"),
    (INT4 | {"targets": ["re:.*experts.*"]}, None),
]


@pytest.mark.parametrize("stored, expected", CASES)
def test_a_method_has_its_format_or_is_refused_by_name(stored, expected):
    config = {"name": "m", "torch_dtype": "bfloat16", "quantization_config": stored}
    if expected is None:
        named = "LLM.int8" if "load_in_8bit" in stored else stored.get("quant_method", "none")
        with pytest.raises(WorkloadError, match=f"m: quant_method = .*{named}.* name one as --weights"):
            read_weights(config)
    else:
        found = read_weights(config)
        assert stored_format(stored) == found.layer == read_weights(config, found.name).layer == expected


@pytest.mark.parametrize("stored, bits", [
    (GPTQ | {"group_size": 32}, 4.5), ({"quant_method": "awq", "bits": 4}, 4.125),
    (compressed(("int", 4), group_size=64), 4.25), (compressed(("float", 4), {"num_bits": 4}, group_size=16), 4.5),
    (NF4, 4.5),
    (NF4 | {"bnb_4bit_use_double_quant": True}, 4.127),
])  # fmt: skip
def test_a_stored_weight_takes_its_bits_and_those_of_its_groups_scales(stored, bits):
    found = read_weights({"torch_dtype": "bfloat16", "quantization_config": stored})
    assert 8.0 * found.bytes_of("up") == pytest.approx(bits, rel=1e-4)
    assert found.bytes_of("router") == found.bytes_of("head") == 2.0


@pytest.mark.parametrize(
    "name, named, stays",
    [
        ("lm_head", {}, True), ("model.layers.0.mlp.gate", {}, True), ("model.layers.0.mlp.gate_proj", {}, False),
        ("model.layers.3.self_attn.o_proj", {"ignore": ["re:.*o_proj$"]}, True), ("a.q_proj", {"ignore": ["re:.*o_proj$"]}, False),
        ("model.layers.3.mlp.up_proj", {"modules_to_not_convert": ["model.layers.3.mlp"]}, True),
        ("model.layers.3.mlp.up_proj", {"llm_int8_skip_modules": ["model.layers.3.mlp"]}, True),
        ("a.q_proj", {"bits": 4, "dynamic": {"-:.*q_proj": {}}}, True), ("a.q_proj", {"bits": 4, "dynamic": {"+:.*q": {"bits": 4}}}, False),
        ("a.q_proj", {"bits": 4, "extra_config": {"a.q_proj": {"bits": 16}}}, True), ("a.q_proj", {"extra_config": {}}, False),
        ("model.vision.block.fc1", {"ignore": ["re:vision.*"]}, True), ("model.vision.block.fc1", {"exclude_modules": ["vision*"]}, True),
        ("vision.block.fc1", {"exclude_modules": ["vision*"]}, True), ("a.q_proj", {"modules_to_not_convert": None}, False),
    ],
)  # fmt: skip
def test_layers_that_stay_wide_are_the_usual_ones_and_those_named(name, named, stays):
    assert stays_wide(name, named) == stays


def test_only_named_products_stay_wide():
    workload = transformer(1024, 512, 4)
    shapes = {(o["n"], o["k"]) for o in workload.operators if o.operator == "linear"}
    for kept in shapes:
        changed = with_precision(workload, "int4_wo", {kept})
        found = {(o["n"], o["k"]): o.precision for o in changed.operators if o.operator == "linear"}
        assert found == {shape: "bf16" if shape == kept else "int4_wo" for shape in shapes}


@pytest.mark.parametrize("bundle, timed", [("a100-pcie-40gb-eager", False), ("h100-sxm", False), ("h200-sxm", True), ("b200-sxm", True)])
@pytest.mark.parametrize("precision", ["int8", "sq"])
def test_products_in_int8_have_a_time_only_where_the_fit_has_some_or_they_are_lent(bundle, timed, precision):
    workload = with_precision(transformer(1024, 512, 4), precision)
    for gpu in ("h100-sxm", "a100-sxm-80gb"):
        (found,) = estimate(workload, load_bundle(bundle), gpu=load_gpu(gpu))
        said = [line for line in found.warnings if "fitted on no products in int8" in line]
        assert (math.isfinite(found.latency_s), len(said)) == (timed, not timed)
        assert all(math.isfinite(one.latency_s) for one in found.kernels) == timed
        assert why_no_time(found.warnings).endswith("or GPU" if said else "and the bundle")


@pytest.mark.parametrize("precision, said", [("bf16", 0), ("fp16", 0), ("fp32", 1), ("tf32", 1), ("fp64", None)])
def test_fused_attention_of_wide_numbers_is_said_or_refused(precision, said):
    workload = transformer(1024, 512, 4)
    if said is None:
        with pytest.raises(WorkloadError, match="no kernel fuses attention in fp64"):
            variants(workload, attention="flash", precision=precision)
        assert variants(workload, attention="eager", precision=precision)
    else:
        (one,) = variants(workload, attention="flash", precision=precision)
        assert sum("memory-efficient" in note for note in one.workload.notes) == said


@pytest.mark.parametrize("precision, turned, linear", [("fp16", "fp16", "fp16"), ("fp32", "tf32", "fp32"), ("tf32", "tf32", "tf32")])
def test_convolutions_of_fp32_tensors_run_in_tf32_and_are_32_bit_operators_as_all_others(precision, turned, linear):
    operators = (convolution(3, height=56, width=56, padding=1), matmul(64, 64, 64), addition(4096))
    workload = workload_of(*operators, counts=(3.0, 1.0, 1.0))
    (one,) = variants(workload, precision=precision)
    assert [o.precision for o in one.workload.operators] == [turned, linear, precision.replace("tf32", "fp32")]
    assert [o.cuda_cores for o in one.workload.operators] == [False, precision == "fp32", False]
    assert sum("allow_tf32" in note for note in one.workload.notes) == (turned == "tf32")
    (back,) = variants(one.workload, precision="bf16")
    assert back.workload.operators == workload.operators


# With PyTorch ---------------------------------------------------------------------------------------------------------

LLAMA = json.loads("""
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
"num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 500, "tie_word_embeddings": false}
""")
STORED = 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 96)
"""Weights of its layers."""


def traced(tmp_path, stored, model=LLAMA, **asked):
    need_torch()
    from estimator.tracing.torch_trace import trace_workload

    folder = configuration(tmp_path, **model, **({"quantization_config": stored} if stored else {}))
    return trace_workload(TraceRequest(model=folder, sequence=16, **asked))


def precisions(workload, **sizes):
    """Those of linear layers, the head aside, of these sizes."""
    linear = [o for o in workload.operators if o.operator == "linear" and o["n"] != 500]
    return {o.precision for o in linear if all(o[name] == size for name, size in sizes.items())}


def test_a_configuration_keeps_what_says_how_its_weights_are_stored(tmp_path):
    stored = {"quant_method": "fp8"}
    for fields in ({"quantization_config": stored}, {"text_config": {"quantization_config": stored}}):
        assert load_model_config(configuration(tmp_path, **LLAMA, **fields)).quantised == stored


@pytest.mark.parametrize("stored, precision", [case for case in CASES if case[1]])
def test_a_quantised_checkpoint_has_its_products_and_memory_and_never_bf16_in_silence(tmp_path, stored, precision):
    plain, narrow = traced(tmp_path, {}), traced(tmp_path, stored)
    computed, held = "bf16" if precision == WIDENED else precision, weight_byte(precision, stored)
    assert precisions(narrow) == {computed}
    assert {o.precision for o in narrow.operators if o.operator == "linear" and o["n"] == 500} == {"bf16"}
    saved = STORED * (BYTES_PER_ELEMENT["bf16"] - held)
    assert narrow.footprint.weights_byte == pytest.approx(plain.footprint.weights_byte - saved)
    assert f"-{computed}-" in narrow.name
    asked = traced(tmp_path, stored, precision="bf16")
    assert asked.operators == plain.operators
    assert sum("quantization_config" in note for note in asked.notes) == 1


def test_a_layer_that_stays_and_has_the_shape_of_one_that_does_not_is_said(tmp_path):
    one, all_of_them = (
        traced(tmp_path, {"quant_method": "gptq", "bits": 4, "modules_to_not_convert": [name]})
        for name in ("layers.0.mlp.down_proj", "down_proj")
    )
    assert "1 shapes" in one.warnings[0]
    assert (precisions(all_of_them, k=96), all_of_them.warnings) == ({"bf16"}, ())


def test_weights_of_bitsandbytes_are_widened_before_the_products_of_several_rows_alone(tmp_path):

    def written(workload):
        pairs = counted(workload)
        return sum(o["elements"] * count for o, count in pairs if o.family == "elementwise")

    assert written(traced(tmp_path, NF4)) - written(traced(tmp_path, {})) == STORED
    single = traced(tmp_path, NF4, phase="decode")
    assert precisions(single) == {"int4_wo"}
    assert any("weights in 4 bits" in note for note in single.notes)
    with pytest.raises(WorkloadError, match="training in bitsandbytes"):
        traced(tmp_path, NF4, phase="train")


def test_weights_that_are_asked_for_replace_those_of_the_configuration_and_leave_the_head(tmp_path):
    for weights, expected in (("w8a8", {"sq", "bf16"}), ("bf16", {"bf16"})):
        asked = traced(tmp_path, {"quant_method": "fp8"}, weights=weights)
        assert {o.precision for o in asked.operators if o.operator == "linear"} == expected
    for words in ({"weights": "int3"}, {"weights": "fp8", "precision": "bf16"}):
        with pytest.raises(WorkloadError, match="weights"):
            traced(tmp_path, {}, **words)


@pytest.mark.parametrize("modules, said", [({"ignore": ["re:["]}, "regular expression"), ({"dynamic": {"q": {"bits": 8}}}, "gives 8 bits")])
def test_modules_that_cannot_be_told_apart_are_refused(tmp_path, modules, said):
    with pytest.raises(WorkloadError, match=said):
        traced(tmp_path, GPTQ | modules)


MIXTRAL = LLAMA | {"model_type": "mixtral", "num_local_experts": 4, "architectures": ["MixtralForCausalLM"]}
QWEN = {"model_type": "qwen3_moe", "num_experts": 4, "moe_intermediate_size": 96, "architectures": ["Qwen3MoeForCausalLM"]}
GPT_OSS = {"model_type": "gpt_oss", "num_local_experts": 4, "head_dim": 16, "architectures": ["GptOssForCausalLM"]}
TWO = LLAMA | {"num_experts_per_tok": 2}
MIXTURES = [
    (MIXTRAL, GPTQ, {"int4_wo"}, {"int4_wo"}),
    (TWO | QWEN, {"quant_method": "fp8", "weight_block_size": [128, 128]}, {"fp8_block"}, {"fp8_block"}),
    (
        TWO | GPT_OSS,
        {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}, {"bf16"}, {"w4a16_mxfp4"},
    ),
]  # fmt: skip


@pytest.mark.parametrize("model, stored, dense, experts", MIXTURES)
def test_experts_have_the_stored_format_and_their_router_stays(tmp_path, model, stored, dense, experts):
    found = traced(tmp_path, stored, model)
    linear = [o for o in found.operators if o.operator == "linear" and o["n"] != 500]
    assert precisions(found, n=4) == {"bf16"}
    assert {o.precision for o in linear if o["n"] != 4 and o["batch"] == 1} == dense
    assert precisions(found, batch=4) == experts
    assert found.warnings == ()
    with pytest.raises(WorkloadError, match="experts and training in bitsandbytes have no known kernel"):
        traced(tmp_path, NF4, MIXTRAL)


@pytest.mark.parametrize("form", ["fp8", "int4"])
def test_experts_in_one_batched_product_are_refused_in_formats_that_it_does_not_have(tmp_path, form):
    """Llama 4's stayed in 16 bits without a word."""
    scout = LLAMA | {"model_type": "llama4_text", "num_local_experts": 4, "intermediate_size_mlp": 96, "head_dim": 16}
    scout |= {"architectures": ["Llama4ForCausalLM"], "interleave_moe_layer_step": 1}
    with one_line(WorkloadError, match=f"experts in one batched product have no known kernel in {form}"):
        traced(tmp_path, {}, scout, weights=form)


@pytest.mark.parametrize("kind", ["mamba", "mamba2", "falcon_mamba", "rwkv"])
def test_layers_that_scan_a_state_are_refused_by_name(tmp_path, kind):
    document = {"model_type": kind, "num_hidden_layers": 1, "hidden_size": 64, "vocab_size": 100}
    document |= {"num_heads": 2, "head_dim": 64} if kind == "mamba2" else {}
    with pytest.raises(WorkloadError, match="scan a state over the tokens") as caught:
        traced(tmp_path, {}, document)
    assert any(f"layers {name}" in str(caught.value) for name in ("Mamba", "FalconMamba", "Rwkv"))

"""Served models: parameters as published, work that is conserved whatever the parallelism, and one clear line for what is not served."""

import json
import math
from dataclasses import replace

import pytest

from estimator import WorkloadError, make_operator
from estimator.serving.architecture import Layout, read_architecture, read_config
from estimator.serving.steps import STATE_PASSES, Step, cache_bytes, step_workload, weight_bytes
from estimator.serving.weights import read_weights
from estimator.tracing.models import weight_byte
from estimator.vocabulary.quantities import FORMATS
from estimator.vocabulary.work import operator_work
from tests.estimator.test_quantisation import CASES, FLOAT8, GPTQ, NF4, compressed
from tests.estimator.traced import counted
from tests.words import one_line

SHIPPED = """
gpt2 0.1244, opt-1.3b 1.316, llama-2-7b 6.738, llama-3-8b 8.03, mistral-7b 7.242, qwen2-1.5b 1.544, llama-3.1-8b 8.03, llama-3.1-70b
70.554, qwen3-32b 32.762, mixtral-8x7b 46.703, qwen3-30b-a3b 30.532, gpt-oss-120b 116.829, deepseek-v3 671.026, llama-2-13b 13.016,
llama-2-70b 68.977, llama-3.1-405b 405.853, llama-3.2-1b 1.2358, llama-3.2-3b 3.2127, codellama-34b 33.744, mistral-nemo 12.248,
mixtral-8x22b 140.621, qwen2.5-7b 7.616, qwen2.5-72b 72.706, qwen3-4b 4.022, qwen3-8b 8.191, qwen3-235b-a22b 235.094, phi-4 14.66,
gemma-2-9b 9.242, gemma-3-27b 27.009, gpt-oss-20b 20.915, llama-4-scout 107.77, llama-4-maverick 400.712,
qwen3-next-80b-a3b 79.674, qwen3.5-9b 8.954, qwen3.5-27b 26.896, qwen3.5-35b-a3b 34.661, glm-4.6 352.796,
nemotron-3-nano-30b-a3b 31.578, minimax-m2.5 228.69, qwen3.5-397b-a17b 396.346
"""
"""Parameters [10^9] of shipped models.  Source: the safetensors index or the model card of each; DeepSeek-V3 without its further head;
Qwen3.5, -Next, Nemotron and MiniMax: Transformers 5.24, without images and further heads."""


def sized(kind, *sizes):
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size")
    return {"model_type": kind, "torch_dtype": "bfloat16", **dict(zip(names, map(int, sizes), strict=True))}


def listed(line):
    """A model of TABLE: name, parameters and config.json."""
    name, published, kind, *sizes, more = line.split(maxsplit=9)
    return name, (float(published), sized(kind, *sizes) | json.loads(more))


TABLE = """
granite-3.3-8b  8.171   granite            4096     40    32  8 12800  49159 {"tie_word_embeddings": true}
seed-oss-36b    36.151  seed_oss           5120     64    80  8 27648 155136 {"head_dim": 128}
internlm3-8b    8.804   internlm3          4096     48    32  2 10240 128512 {"head_dim": 128}
smollm3-3b      3.075   smollm3            2048     36    16  4 11008 128256 {}
ernie-4.5-0.3b  0.361   ernie4_5           1024     18    16  2  3072 103424 {}
ernie-4.5-21b   21.825  ernie4_5_moe       2560     28    20  4 12288 103424
    {"moe_intermediate_size": 1536, "moe_num_experts": 64, "moe_num_shared_experts": 2, "moe_k": 6, "moe_layer_start_index": 1}
ling-mini-2.0   16.256  bailing_moe_v2     2048     20    16  4  5120 157184
    {"moe_intermediate_size": 512, "num_experts": 256, "num_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 1}
hunyuan-7b      7.505   hunyuan_v1_dense   4096     32    32  8 14336 128167 {"tie_word_embeddings": true}
olmo-2-32b      32.234  olmo2              5120     64    40  8 27648 100352 {}
olmo-3-7b       7.298   olmo3              4096     32    32 32 11008 100278 {"sliding_window": 4096}
exaone-4-32b    32.003  exaone4            5120     64    40  8 27392 102400 {}
apertus-8b      8.053   apertus            4096     32    32  8 21504 131072 {}
command-r       34.981  cohere             8192     40    64 64 22528 256000 {}
command-r7b     8.028   cohere2            4096     32    32  8 14336 256000 {"sliding_window": 4096}
olmo-7b         6.888   olmo               4096     32    32 32 11008  50304 {}
phi-2           2.780   phi                2560     32    32 32 10240  51200 {}
nemotron-4-340b 341.029 nemotron          18432     96    96  8 73728 256000 {}
starcoder2-15b  15.958  starcoder2         6144     40    48  4 24576  49152 {"tie_word_embeddings": false}
gemma-7b        8.538   gemma              3072     28    16 16 24576 256000 {}
glm-4-9b        9.400   glm4               4096     40    32  2 13696 151552 {"head_dim": 128}
olmoe-1b-7b     6.919   olmoe              2048     16    16 16  1024  50304 {"num_experts": 64, "num_experts_per_tok": 8}
phi-3.5-moe     41.873  phimoe             4096     32    32  8  6400  32064 {"num_local_experts": 16, "num_experts_per_tok": 2}
minimax-m2      228.690 minimax_m2         3072     62    48  8  1536 200064
    {"num_local_experts": 256, "num_experts_per_tok": 8, "head_dim": 128}
gpt-j-6b        6.051   gptj               4096     28    16 16 16384  50400 {}
pythia-6.9b     6.857   gpt_neox           4096     32    32 32 16384  50432 {}
falcon-7b       6.922   falcon             4544     32    71 71 18176  65024 {"multi_query": true}
starcoder       15.517  gpt_bigcode        6144     40    48 48 24576  49152 {"n_positions": 8192}
internlm2.5-7b  7.738   internlm2          4096     32    32  8 14336  92544 {}
baichuan2-7b    7.506   baichuan           4096     32    32 32 11008 125696 {}
exaone-3.5-7.8b 7.818   exaone             4096     32    32  8 14336 102400 {}
mimo-7b         7.622   mimo               4096     36    32  8 11008 151680 {}
minicpm-2b      2.725   minicpm            2304     40    36 36  5760 122753 {}
stablelm-2-12b  12.143  stablelm           5120     40    32  8 13824 100352 {}
arcee-4.5b      4.619   arcee              2560     36    20  4 18432 128004 {}
cwm             32.581  cwm                6144     64    48  8 21504 128256 {}
helium-1-2b     2.173   helium             2560     24    20 20  7040  48000 {}
jais-2-8b       8.090   jais2              3328     32    26 26 26624 150272 {}
exaone-moe      28.551  exaone_moe         4096     32    32 32 16384 102400
    {"moe_intermediate_size": 1024, "num_experts": 64, "num_experts_per_tok": 8, "num_shared_experts": 1}
solar-open-100b 102.652 solar_open         4096     48    64  8 10240 196608
    {"moe_intermediate_size": 1280, "n_routed_experts": 128, "num_experts_per_tok": 8}
glm-4-9b-0414   9.400   glm                4096     40    32  2 13696 151552 {}
glm-4.1v-9b     9.400   glm4v_text         4096     40    32  2 13696 151552 {}
hunyuan-a13b    80.393  hunyuan_v1_moe     4096     32    32  8  3072 128167
    {"moe_topk": [8, 8], "num_shared_expert": [1, 1], "num_experts": 64, "head_dim": 128, "tie_word_embeddings": true}
dots1           142.774 dots1              4096     62    32 32 10944 152064
    {"moe_intermediate_size": 1408, "n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1}
bamba-9b        9.780   bamba              4096     32    32  8 14336 128256
    {"mamba_d_conv": 4, "mamba_d_state": 128, "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_n_heads": 128,
    "attn_layer_indices": [9, 18, 27]}
falcon-h1-34b   33.642  falcon_h1          5120     72    20  4 21504 261120
    {"head_dim": 128, "mamba_d_conv": 4, "mamba_d_state": 256, "mamba_d_head": 128, "mamba_n_groups": 2, "mamba_n_heads": 32}
nemotron-h-8b   8.101   nemotron_h         4096     52    32  8 21504 131072
    {"head_dim": 128, "mamba_d_conv": 4, "mamba_d_state": 128, "mamba_d_head": 64, "mamba_n_groups": 8, "mamba_num_heads": 128,
    "mamba_ssm_cache_dtype": "float32", "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"}
"""
"""Name, parameters [10^9], model_type, six sizes as `sized` names them, and further fields."""
GEMMA = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
PIXTRAL = {"model_type": "mistral", "num_hidden_layers": 40, "vocab_size": 131072, "hidden_size": 5120}
BLOOM = {"model_type": "bloom", "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112, "vocab_size": 250880, "seq_length": 2048}
CHATGLM = json.loads("""
{"model_type": "chatglm", "hidden_size": 4096, "ffn_hidden_size": 13696, "num_layers": 28, "num_attention_heads": 32, "kv_channels": 128,
"multi_query_attention": true, "multi_query_group_num": 2, "padded_vocab_size": 65024, "seq_length": 8192}
""")
FALCON = {"model_type": "falcon", "multi_query": True, "new_decoder_architecture": True, "num_kv_heads": 8, "vocab_size": 65024}
GRANITE = {
    "mamba_d_conv": 4, "mamba_d_state": 128, "mamba_d_head": 64, "mamba_n_groups": 1, "tie_word_embeddings": True,
    "layer_types": ["attention" if i % 10 == 5 else "mamba" for i in range(40)],
}  # fmt: skip
OTHERS = {
    **dict(map(listed, TABLE.strip().replace("\n    ", " ").splitlines())),
    "gemma-3-4b": (3.880, {"torch_dtype": "bfloat16", "model_type": "gemma3", "text_config": GEMMA}),
    "pixtral-12b": (12.248, {"torch_dtype": "bfloat16", "text_config": PIXTRAL | {"intermediate_size": 14336, "head_dim": 128}}),
    "bloom": (176.247, {"torch_dtype": "bfloat16", **BLOOM}),
    "chatglm3-6b": (6.244, {"torch_dtype": "bfloat16", **CHATGLM}),
    "falcon-40b": (41.303, FALCON | {"torch_dtype": "bfloat16", "hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128}),
    "granite-4-h-micro": (3.191, sized("granitemoehybrid", 2048, 40, 32, 8, 8192, 100352) | GRANITE | {"mamba_n_heads": 64}),
    "granite-4-h-small": (
        32.207,
        sized("granitemoehybrid", 4096, 40, 32, 8, 768, 100352)
        | GRANITE
        | {"mamba_n_heads": 128, "num_local_experts": 72, "num_experts_per_tok": 10, "shared_intermediate_size": 1536},
    ),
    "internvl3-8b": (7.613, {"torch_dtype": "bfloat16", "llm_config": sized("qwen2", 3584, 28, 28, 4, 18944, 151674)}),
}
"""Models that are not shipped, by the fields that their files hold.  Source of parameters: as above, or Transformers 5.24 on them."""
PUBLISHED = {name: float(published) for name, published in map(str.split, SHIPPED.split(","))}
PUBLISHED |= {name: published for name, (published, _) in OTHERS.items()}

DENSE = json.loads("""
{"model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
"num_key_value_heads": 4, "intermediate_size": 2048, "vocab_size": 960, "max_position_embeddings": 4096}
""")
ROUTED = DENSE | {"model_type": "qwen3_moe", "moe_intermediate_size": 256, "num_experts": 8, "num_experts_per_tok": 2}
ALONE, EIGHT = Layout(), Layout(tensor_parallel=8)
PROMPT, DECODE = Step(prompts=((1024, 1024),)), Step(sequences=16, context=3000.0)


def config_of(name):
    return OTHERS[name][1] if name in OTHERS else name


def known(config, weights=None, kv=None):
    """Architecture and weights."""
    return read_architecture(config), read_weights(read_config(config), weights, kv)


def served(config, layout=None, step=DECODE, weights=None, kv=None, **more):
    return step_workload(*known(config, weights, kv), layout or ALONE, step, **more)


def tally(workload, *families):
    """Flop, and bytes read, of operators of some families."""
    pairs = [(one, count) for one, count in counted(workload) if one.family in families]
    works = [(operator_work(one), count) for one, count in pairs]
    return sum(work.flop * count for work, count in works), sum(work.read_byte * count for work, count in works)


def parameters(name):
    return weight_bytes(*known(config_of(name), "bf16"), ALONE) / 2.0


@pytest.mark.parametrize("name, published", PUBLISHED.items())
def test_parameters_are_the_published_ones(name, published):
    assert parameters(name) / 1e9 == pytest.approx(published, rel=2e-3)


@pytest.mark.parametrize("name, layout", [
    ("llama-3.1-70b", EIGHT), ("gpt2", Layout(tensor_parallel=4)), ("mixtral-8x7b", EIGHT),
    ("mixtral-8x7b", Layout(tensor_parallel=4, expert_parallel=2)), ("gpt-oss-120b", Layout(tensor_parallel=8, expert_parallel=8)),
    ("qwen3.5-27b", Layout(tensor_parallel=4)),
])  # fmt: skip
@pytest.mark.parametrize("step", [Step(prompts=((700, 700), (100, 900))), Step(sequences=32, context=512.0)])
def test_the_work_of_all_gpus_is_that_of_one(name, layout, step):
    whole, part = served(name, step=step, skew=0.0), served(name, layout, step, skew=0.0)
    model, weights = known(name)
    for family in ("attention", "moe", "gemm"):
        flop, byte = tally(whole, family)
        copied = (
            (layout.gpus - 1) * 2.0 * step.tokens * model.experts.count * model.hidden * model.layers
            if model.experts and family == "gemm"
            else 0.0
        )
        assert layout.gpus * tally(part, family)[0] == pytest.approx(flop + copied, rel=2e-3)
        assert family != "attention" or layout.gpus * tally(part, family)[1] == pytest.approx(byte)
    assert layout.gpus * weight_bytes(model, weights, layout) == pytest.approx(weight_bytes(model, weights, ALONE), rel=0.02)
    assert layout.gpus * cache_bytes(model, weights, layout, 512.0) == pytest.approx(cache_bytes(model, weights, ALONE, 512.0))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_prompt_costs_two_flop_a_parameter_that_its_tokens_use(name):
    model = read_architecture(config_of(name))
    tokens = 256
    step = served(config_of(name), step=Step(prompts=((tokens, tokens),)), skew=0.0)
    work = tally(step, "gemm", "moe")[0]
    if model.scan:  # chunks of tokens beside the parameters
        work -= sum(operator_work(one).flop * count for one, count in counted(step) if one.operator == "bmm")
    idle = model.embeddings + (0 if model.tied else model.vocab * model.hidden)  # a gather, and a head for one row of the prompt
    if model.experts:
        own = model.experts
        idle += (2 + model.kind.gated) * model.hidden * own.inter * own.layers * (own.count - own.chosen)
    assert work == pytest.approx(2.0 * tokens * (parameters(name) - idle), rel=0.02)


def test_decoding_reads_the_weights_and_the_cache_once():
    layout = Layout(tensor_parallel=2)
    for kv in ("bf16", "fp8"):
        model, weights = known("qwen3-32b", "fp8-block", kv)
        workload = served("qwen3-32b", layout, weights="fp8-block", kv=kv)
        embedded = 2.0 * model.embeddings / 2.0
        assert tally(workload, "gemm")[1] == pytest.approx(weight_bytes(model, weights, layout) - embedded, rel=0.03)
        cached = DECODE.sequences * DECODE.context * cache_bytes(model, weights, layout)
        assert tally(workload, "attention")[1] == pytest.approx(cached, rel=0.01)


@pytest.mark.parametrize("name, kernels", [("llama-3.1-8b", 325), ("llama-3.1-70b", 805), ("qwen3-32b", 709)])
def test_a_step_has_ten_kernels_a_layer_and_two_sums(name, kernels):
    """Numbers of kernels as in a replayed graph of vLLM: 10 a layer and 5 (Qwen3 normalises heads in one more)."""
    model, parallel = read_architecture(name), served(name, EIGHT)
    assert sum(served(name).counts) == kernels
    sums = {one.operator: count for one, count in counted(parallel) if one.family == "communication"}
    assert sums == {"all_reduce": 2 * model.layers + 1, "all_gather": 1}
    assert sum(parallel.counts) == kernels + 2 * model.layers + 2


def test_windows_and_norms_of_gemma_are_those_of_its_layers():
    models = map(read_architecture, ("gemma-2-9b", "gemma-3-27b", config_of("gemma-3-4b"), config_of("olmo-3-7b")))
    assert [(one.window_layers, one.layers) for one in models] == [(21, 42), (52, 62), (29, 34), (24, 32)]
    gemma, plain = (sum(served(DENSE | {"model_type": name}).counts) for name in ("gemma2", "llama"))
    assert gemma == plain + 2 * 4
    found = read_architecture(DENSE | {"model_type": "gemma2"})  # a text part leaves out a window that is the usual one
    assert (found.window, found.window_layers) == (4096, 2)
    for config in (DENSE | {"model_type": "cohere"}, ROUTED | {"model_type": "glm4_moe"}):
        normed, bare = (sum(served(config | {"use_qk_norm": own}).counts) for own in (True, False))
        assert normed == bare + 4


@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
def test_yarn_lengthens_the_context_under_the_names_of_both_generations_of_transformers(field):
    scaled = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    assert read_architecture(DENSE | {field: scaled}).longest == 4 * 4096


def test_small_kernels_read_each_tensor_once():
    tokens, hidden, inter, cached, layers = DECODE.sequences, 512, 2048, 2 * 4 * 64, 4
    turned = (8 + 4) * 64
    per_layer = 2 * 2 * hidden + turned + cached + 2 * inter
    expected = 2.0 * tokens * (layers * per_layer + 2 * hidden + 960)
    assert tally(served(DENSE), "elementwise")[1] == expected
    static = [one for one in served(DENSE, weights="fp8-static").operators if one.operator == "silu"]
    assert static[0]["elements"] == tokens * inter / 2  # written in 8 bit


def test_a_piece_of_a_prompt_expands_the_latent_vectors_of_all_tokens_before_it():
    expanded = [
        one for one in served("deepseek-v3", step=Step(prompts=((100, 900),))).operators if one.family == "gemm" and one["k"] == 512
    ]
    assert [(one["m"], one["n"]) for one in expanded] == [(900, 128 * 256)]


def test_latent_attention_is_cached_once_for_all_heads_and_on_every_gpu():
    assert cache_bytes(*known("deepseek-v3"), EIGHT) == 61 * 576 * 2.0
    eighth, whole = served("deepseek-v3", EIGHT), served("deepseek-v3")
    assert tally(eighth, "mla")[0] * 8 == pytest.approx(tally(whole, "mla")[0])
    assert tally(eighth, "mla")[1] > 0.8 * tally(whole, "mla")[1]
    assert {one.operator for one in served("deepseek-v3", step=PROMPT).operators if one.family == "mla"} == {"mla_prefill"}


def test_windows_shorten_attention_and_cache_of_their_layers_only():
    model, weights = known("gpt-oss-120b")
    windows = {one["window"]: count for one, count in counted(served("gpt-oss-120b")) if one.family == "attention"}
    assert windows == {0.0: 18.0, 128.0: 18.0}
    short = served("gpt-oss-120b", step=Step(sequences=2, context=100))
    assert {one["window"] for one in short.operators if one.family == "attention"} == {0.0}
    whole = cache_bytes(model, weights, ALONE)
    assert cache_bytes(model, weights, ALONE, context=1280.0) == pytest.approx(0.55 * whole)
    assert cache_bytes(model, weights, ALONE, context=100.0) == whole


@pytest.mark.parametrize("step, shape, count", [
    (Step(sequences=3, context=20000.0), (3, 1, 4096), 36), (Step(sequences=3, context=8192.0), (3, 1, 8192), 48),
    (Step(prompts=((8192, 24576),)), (1, 8192, 8192), 36), (Step(prompts=((2048, 12288),), together=2.0), (2, 2048, 4096), 36),
    (Step(prompts=((24576, 24576),)), (1, 8192, 8192), 108),
])  # fmt: skip
def test_chunks_see_their_own_tokens(step, shape, count):
    workload = served("llama-4-scout", step=step)
    found = {
        one.shape[:3]: (one["window"], n) for one, n in zip(workload.operators, workload.counts, strict=True) if one.family == "attention"
    }
    assert found[shape] == (0.0, count)


@pytest.mark.parametrize("name, state", [("qwen3.5-27b", 48 * 48 * 128 * 128 * 4.0), ("qwen3-next-80b-a3b", 36 * 32 * 128 * 128 * 2.0)])
def test_states_are_kept_once_a_sequence_and_passed_over_in_every_step(name, state):
    model, weights = known(name)
    keys = cache_bytes(model, weights, ALONE)
    for context in (100.0, 1e5):
        assert context * (cache_bytes(model, weights, ALONE, context) - keys) == pytest.approx(state, rel=0.05)  # and a convolution's
    few, many = (tally(served(name, step=Step(sequences=count, context=9.0)), "elementwise")[1] for count in (1, 101))
    assert (many - few) / 100.0 > STATE_PASSES * state
    assert model.attended + model.scan.layers == model.layers
    (chunk,) = {
        one["m"] for one in served(name, step=Step(prompts=((6400, 6400),))).operators if one.operator == "bmm" and one["n"] != one["k"]
    } - {128.0}
    assert chunk == 64.0


def test_data_parallel_attention_sends_tokens_to_all_experts():
    layout = Layout(expert_parallel=8)
    workload = served("deepseek-v3", layout, Step(sequences=16, context=1000.0))
    sent = next(one for one in workload.operators if one.family == "communication")
    assert (layout.copies, sent.operator, sent["num_gpus"], sent["message_bytes"]) == (8, "all_to_all", 8, 16 * 8 * 7168 * 2)
    experts = next(one for one in workload.operators if one.family == "moe")
    assert (experts["tokens"], experts["ep"], experts["tp"]) == (128, 8, 1)


@pytest.mark.parametrize(
    "config", [*map(config_of, PUBLISHED), DENSE, ROUTED | {"quantization_config": {"quant_method": "awq", "bits": 4}}]
)
@pytest.mark.parametrize("step", [Step(prompts=((128, 256),), together=1.4, sequences=3, context=99.5), Step(sequences=1, context=1.0)])
def test_operators_are_valid_cost_the_host_nothing_and_name_the_library(config, step):
    workload = served(config, step=step, library="vllm")
    for one in workload.operators:
        options = {"precision_out": one.precision_out, "library": one.library, "host_share": 0.0}
        options |= {"precision_kv": one.precision_kv} if one.precision_kv else {}
        assert make_operator(one.family, one.operator, one.precision, **one.named_shape(), **options) == one
    assert {one.library for one in workload.operators} == {"vllm"}
    scan = read_architecture(config).scan
    told = config == "gpt2" or scan or any(one.family == "moe" for one in workload.operators)
    assert bool(workload.notes) == bool(told), "gpt2 is in float32"


@pytest.mark.parametrize("quant, expected", [case for case in CASES if case[1] in FORMATS])
def test_quantization_decides_the_format_of_products_and_their_bytes(quant, expected):
    config = DENSE | {"quantization_config": quant}
    formats = {one.precision for one in served(config).operators if one.family == "gemm" and one["n"] != 960}
    assert formats == {"fp8" if expected == "fp8_static" else expected}
    routed = served(ROUTED | {"quantization_config": quant}).operators
    assert {one.precision for one in routed if one.family == "moe"} == formats
    model, weights = known(config)
    own = sum(one.weights for one in model.products(ALONE) if one.name != "head")
    wide = weight_bytes(model, read_weights(DENSE), ALONE)
    assert wide - weight_bytes(model, weights, ALONE) == pytest.approx(own * (2.0 - weight_byte(expected, quant)))


def test_groups_of_experts_in_int4_are_divided():
    workload = served(ROUTED | {"quantization_config": GPTQ | {"group_size": 128}}, layout=Layout(tensor_parallel=4))
    assert "int4_wo" in {one.precision for one in workload.operators if one.family == "moe"}


def test_marlin_widens_mxfp4_as_int4_under_vllm_alone():
    config = ROUTED | {"quantization_config": {"quant_method": "mxfp4"}}
    found = {name: {one.precision for one in served(config, library=name).operators if one.family == "moe"} for name in ("vllm", "trtllm")}
    assert found == {"vllm": {"int4_wo"}, "trtllm": {"w4a16_mxfp4"}}


@pytest.mark.parametrize("weights, library, told", [("fp8-block", "vllm", 1), ("bf16", "vllm", 0), ("fp8-block", "trtllm", 0)])
def test_experts_without_a_table_are_noted(weights, library, told):
    assert sum("no table has" in line for line in served(ROUTED, weights=weights, library=library).notes) == told


@pytest.mark.parametrize(
    "weights, library, searches, conversions",
    [
        ("fp8-static", "", -16, -16),
        ("fp8-static", "vllm", -16, -16),
        ("fp8-static", "trtllm", -16, 0),
        ("fp8", "vllm", -16, 0),
        ("fp8", "sglang", -16, 0),
        ("fp8", "trtllm", 0, 0),
        ("nvfp4", "vllm", 0, 0),
    ],
)
def test_a_given_scale_or_one_a_token_saves_the_search_and_a_kernel_that_converts_the_conversion(weights, library, searches, conversions):
    found = served(DENSE, weights=weights, library=library)
    counts = {one.operator: 0.0 for one in found.operators} | {"quantise_static": 0.0, "compute_scale": 0.0}
    for one, count in counted(found):
        counts[one.operator] += count
    assert (counts["compute_scale"], counts["quantise_static"]) == (searches, conversions)  # four products in each of four layers
    written = [one["elements"] for one in found.operators if one.operator == "silu"]
    assert written == [DECODE.sequences * 2048 * (0.5 if conversions else 1.0)]


def test_four_bit_weights_of_bitsandbytes_are_widened_before_the_product():
    config = DENSE | {"quantization_config": NF4}
    many, single = served(config), served(config, step=Step(sequences=1, context=10.0))
    assert tally(many, "gemm") == tally(served(DENSE), "gemm")
    matrices = 4 * (512 * 1024 + 512 * 512 + 3 * 512 * 2048)
    assert tally(many, "elementwise")[1] - tally(served(DENSE), "elementwise")[1] == pytest.approx(0.5625 * matrices)
    assert {one.precision for one in single.operators if one.family == "gemm"} == {"int4_wo", "bf16"}


@pytest.mark.parametrize("skipped, kept", [
    (["lm_head", "model.layers.0.mlp.gate", "model.layers.1.input_layernorm"], {}),
    (["model.layers.*.self_attn", "re:.*lm_head"], {"qkv": 1.0, "out": 1.0}),
    ([f"model.layers.{i}.self_attn.o_proj" for i in range(4)], {"out": 1.0}),
    (["model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj", "model.layers.3.mlp.down_proj"], {"up": 0.25, "down": 0.25}),
    (["model.layers.9.self_attn"], {}),
    (["model.layers.3*"], {"qkv": 0.25, "out": 0.25, "up": 0.25, "down": 0.25}),
    (["re:.*self_attn.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"], {"qkv": 1.0, "out": 1.0, "up": 1.0, "down": 1.0}),  # Kimi K2
    (["re:.*kv_a_proj_with_mqa$", "re:.*q_a_proj$", "re:.*kv_b_proj$"], {"qkv_a": 1.0, "kv_b": 1.0}),
    (["model.layers.0.linear_attn.in_proj_b", "model.layers.1.linear_attn.conv1d"], {}),
    ([f"model.layers.{i}.linear_attn.out_proj" for i in range(2)], {"scan_out": 0.5}),
    (["model.layers.0.mixer.in_proj", "re:.*mamba.*"], {"scan_in": 1.0, "scan_out": 1.0}),
    (["language_model.model.layers.3"], {"qkv": 0.25, "out": 0.25, "up": 0.25, "down": 0.25}),
    (["vision_tower.transformer.layers.2.attention.q_proj", "model.visual.blocks.0.mlp.fc1", "multi_modal_projector.linear_1"], {}),
])  # fmt: skip
def test_modules_that_are_not_converted_keep_16_bit(skipped, kept):
    config = DENSE | {"quantization_config": {"quant_method": "fp8", "modules_to_not_convert": skipped}}
    found = dict(read_weights(config).kept)
    assert {name: share for name, share in found.items() if name in kept or name in ("qkv", "out", "up", "down")} == kept
    names = {(1024, 512): "qkv", (512, 512): "out", (4096, 512): "up", (512, 2048): "down"}
    for one, count in counted(served(config)):
        if one.family == "gemm" and (name := names.get((one["n"], one["k"]))):
            share = kept.get(name, 0.0)
            assert count == 4.0 * (share if one.precision == "bf16" else 1.0 - share)


NANO = "nemotron-3-nano-30b-a3b"


@pytest.mark.parametrize("name, skipped, kept", [
    ("qwen3.5-27b", [f"model.layers.{i}.self_attn" for i in range(3, 64, 4)], {"qkv": 1.0, "out": 1.0}),
    ("qwen3.5-27b", [f"model.language_model.layers.{i}.linear_attn.out_proj" for i in range(12)], {"scan_out": 9 / 48}),
    (NANO, ["backbone.layers.4*", "backbone.layers.5*"], {"scan_in": 1 / 23, "scan_out": 1 / 23, "qkv": 1 / 6, "out": 1 / 6}),
    (NANO, ["backbone.layers.1*"], dict.fromkeys(("expert_up", "expert_down", "shared_up", "shared_down"), 1 / 23)),
])  # fmt: skip
def test_layers_that_lack_a_matrix_do_not_count_for_its_share(name, skipped, kept):
    config = {**read_config(config_of(name)), "quantization_config": {"quant_method": "fp8", "modules_to_not_convert": skipped}}
    held = {one.name for one in read_architecture(config).products(ALONE)}
    assert {one: share for one, share in read_weights(config).kept if one in held} == pytest.approx(kept)


CONFIGURATIONS = [
    (DENSE | {"model_type": "mamba2"}, "'mamba2'.*not served; known: gpt2"),
    ({"hidden_size": 3}, "lacks the field 'model_type'"),
    ({key: value for key, value in DENSE.items() if key != "hidden_size"}, "lacks the field 'hidden_size'"),
    (DENSE | {"hidden_size": 7}, "lacks the field 'head_dim'"),
    (DENSE | {"num_attention_heads": "8"}, "num_attention_heads must be a whole number"),
    (DENSE | {"num_key_value_heads": 3}, "num_key_value_heads = 3 must divide 8 heads"),
    (DENSE | {"layer_types": ["linear_attention"] * 4}, "layer_types.*linear_attention"),
    (DENSE | {"layer_types": ["full_attention"] * 3}, "layer_types names 3 of 4 layers"),
    (ROUTED | {"num_experts": 10**7}, "num_experts = 10000000 lies outside 1 to 65536"),  # draws of their loads would fill the memory
    (ROUTED | {"num_experts_per_tok": 9}, "num_experts_per_tok = 9 lies outside 1 to 8"),
    ({key: value for key, value in ROUTED.items() if key != "num_experts"}, "lacks the field 'num_experts'"),
    (read_config("deepseek-v3") | {"n_shared_experts": None}, "lacks the field 'n_shared_experts'"),
    (read_config("deepseek-v3") | {"kv_lora_rank": 256}, "kv_lora_rank = 256 differs from 512"),
    (read_config("deepseek-v3") | {"index_topk": 2048}, "index_topk changes what the layers do"),
    (read_config("qwen3.5-9b") | {"linear_num_key_heads": 5}, "linear_num_key_heads = 5 must divide 32 heads of states"),
    (OTHERS["nemotron-h-8b"][1] | {"hybrid_override_pattern": "M?" * 26}, "layer_types.*'\\?'"),
    (OTHERS["bamba-9b"][1] | {"attn_layer_indices": None}, "lacks the field 'layer_types'"),
    (OTHERS["nemotron-h-8b"][1] | {"moe_latent_size": 1024}, "moe_latent_size changes what the layers do"),
    (DENSE | {"num_experts": 8}, "num_experts changes what the layers do"),
    (DENSE | {"num_hidden_layers": [4, 5]}, "num_hidden_layers must be a whole number"),
    (DENSE | {"num_hidden_layers": []}, "num_hidden_layers must be a whole number"),
    (DENSE | {"torch_dtype": None}, "torch_dtype = none: the precision.*is not stated; name one as --weights bf16"),
    (DENSE | {"torch_dtype": "float8_e4m3fn"}, "torch_dtype = 'float8_e4m3fn' is unknown"),
    (DENSE | {"quantization_config": GPTQ | {"dynamic": {"+:.*down": {"bits": 8}}}}, "dynamic gives 8 bits"),
    (DENSE | {"quantization_config": GPTQ | {"ignore": ["re:["]}}, "'re:\\['.*no regular expression"),
    (DENSE | {"quantization_config": GPTQ | {"kv_cache_scheme": {"type": "int", "num_bits": 8}}}, "'int8'"),
    (DENSE | {"quantization_config": GPTQ | {"kv_cache_quant_algo": "NVFP4"}}, "'nvfp4'"),
]
ASKED = [
    (DENSE, {"weights": "mxfp4"}, "no experts, and mxfp4 is a format of experts alone"),
    (DENSE, {"weights": "fp7"}, "weights = 'fp7' is unknown; known: bf16"),
    (DENSE, {"kv": "fp4"}, "kv = 'fp4' is unknown"),
    (DENSE, {"layout": Layout(tensor_parallel=3)}, "tensor parallelism 3 and expert parallelism 1 do not divide 8 heads"),
    (DENSE | {"num_attention_heads": 12, "num_key_value_heads": 4}, {"layout": Layout(tensor_parallel=6)}, "4 key heads"),
    (DENSE | {"intermediate_size": 2049}, {"layout": Layout(tensor_parallel=2)}, "inner size 2049"),
    (DENSE, {"layout": Layout(expert_parallel=2)}, "a model without experts"),
    (DENSE, {"layout": Layout(tensor_parallel=0)}, "at least 1"),
    (ROUTED, {"layout": Layout(expert_parallel=3)}, "8 experts"),
    (ROUTED | {"moe_intermediate_size": 254}, {"layout": Layout(tensor_parallel=4)}, "inner size 254 of an expert"),
    (ROUTED, {"layout": Layout(tensor_parallel=4), "weights": "fp8-block"}, "whole groups of 128.*not 64 .expert_down"),
    (DENSE | {"quantization_config": GPTQ | {"group_size": 96}}, {"layout": Layout(tensor_parallel=2)}, "of 96 .*not 256 .out"),
    (ROUTED | {"moe_intermediate_size": 240}, {"layout": Layout(tensor_parallel=4), "weights": "nvfp4"}, "groups of 16"),
    (ROUTED, {"weights": "bitsandbytes"}, "experts in bitsandbytes"),
    (DENSE, {"step": Step(prompts=((5000, 5000),))}, "5000 tokens are beyond the context of 4096"),
    (DENSE, {"step": Step(sequences=1, context=4097.0)}, "4097 tokens are beyond"),
    (DENSE, {"step": Step()}, "a step needs tokens"),
    (DENSE, {"step": Step(prompts=((9, 8),))}, "attends at least to itself"),
]


@pytest.mark.parametrize("config, more, message", [*((one, {}, message) for one, message in CONFIGURATIONS), *ASKED])
def test_what_cannot_be_served_is_refused_in_one_line(config, more, message):
    with one_line(WorkloadError, match=message):
        served(config, **more)


def test_files_folders_and_names_are_read_alike(tmp_path, monkeypatch):
    folder = tmp_path / "mine"
    folder.mkdir()
    stored = {"quant_method": "fp8", "modules_to_not_convert": None}
    limits = {"time_step_limit": [0.0, math.inf]}  # as published files have it: Infinity
    (folder / "config.json").write_text(json.dumps(ROUTED | limits | {"architectures": ["x"], "quantization_config": stored}))
    found = [read_architecture(one) for one in (folder, folder / "config.json", str(folder))]
    assert ({one.name for one in found}, found[1:]) == ({"mine"}, found[:-1])
    assert read_weights(read_config(folder)).experts == "fp8"
    with pytest.raises(WorkloadError, match="no model of this name"):
        read_architecture(tmp_path / "none.json")
    assert replace(read_architecture("Qwen3-32B"), name="qwen3-32b") == read_architecture("qwen3-32b")
    folder.rename(tmp_path / "Qwen3-32B")  # a file or a folder of this name is meant
    monkeypatch.chdir(tmp_path)
    assert replace(read_architecture("Qwen3-32B"), name="mine") == found[0]


def test_formats_beside_a_configuration_are_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(DENSE))
    assert read_weights(read_config(tmp_path)).layer == "bf16"
    stated = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head", "model.layers.1.mlp*"]}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": stated}))
    found = read_weights(read_config(tmp_path))
    assert (found.layer, found.cache, dict(found.kept)["up"]) == ("fp8_static", "fp8", 0.25)
    for text in ("[]", "{"):
        (tmp_path / "hf_quant_config.json").write_text(text)
        with one_line(WorkloadError, match="hf_quant_config.json"):
            read_config(tmp_path)
    (tmp_path / "hf_quant_config.json").unlink()
    older = {"quantize_config.json": {"bits": 8, "group_size": 128}, "quant_config.json": {"w_bit": 4, "q_group_size": 128}}
    for (name, stated), expected in zip(older.items(), ("int8_wo", "int4_wo"), strict=True):
        (tmp_path / name).write_text(json.dumps(stated))
        assert read_weights(read_config(tmp_path)).layer == expected
        (tmp_path / name).unlink()
    earlier = DENSE | {"compression_config": compressed(("int", 4), None)}
    (tmp_path / "config.json").write_text(json.dumps(earlier))
    assert [read_weights(read_config(source)).layer for source in (tmp_path, earlier)] == ["int4_wo", "int4_wo"]
    (tmp_path / "config.json").write_text(json.dumps(DENSE | {"quantization": {"group_size": 64, "bits": 4}}))
    with one_line(WorkloadError, match="quant_method = mlx is unknown"):
        read_weights(read_config(tmp_path))


def test_cached_formats_come_from_the_weights_or_the_user():
    for stated in ({"type": "float", "num_bits": 8}, "FP8"):
        scheme = DENSE | {"quantization_config": compressed(("float", 8), FLOAT8) | {"kv_cache_scheme": stated}}
        assert [read_weights(scheme).cache, read_weights(scheme, kv="bf16").cache] == ["fp8", "bf16"]
    assert read_weights(DENSE, "fp8", "fp8").cache == "fp8"
    casts = [one for one in served(DENSE, kv="fp8").operators if one.precision_out == "fp8"]
    assert [one.operator for one in casts] == ["typecast"]

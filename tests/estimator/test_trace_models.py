"""Models of PyTorch and Transformers on the meta device: built, traced, compared with published lists and flop counts."""

import re
import sys
from dataclasses import replace

import numpy as np
import pytest

from estimator import WorkloadError
from estimator.tracing.models import TraceRequest, load_model_config, model_names
from estimator.tracing.torch_trace import trace_calls, trace_workload
from estimator.vocabulary.work import workload_work
from tests.estimator.estimating import printed
from tests.estimator.traced import DECODER, GPT2, REASON, WIDER, configuration, counted, products, tally
from tests.estimator.workload_files import recorded

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries, about running models
torch = pytest.importorskip("torch", reason=REASON, exc_type=ImportError)
transformers = pytest.importorskip("transformers", reason=REASON, exc_type=ImportError)

TINY = {"gpt2": GPT2, "qwen2": DECODER, "bert": {name: size for name, size in DECODER.items() if name != "num_key_value_heads"}}

LISTS = {
    "gpt2model_gpt2_pbf16_b1_s1024_modeprefill": ("gpt2", False),
    "bertmodel_large_pbf16_b16_s128_modeprefill": ("bert-large", False),
    "optmodel_opt-1p3b_pbf16_b1_s2048_modeprefill": ("opt-1.3b", False),
    "resnet101__pbf16_b8_freq900": ("resnet-101", True),
    "mobilevitmodel_small_pbf16_b16_freq900": ("mobilevit-small", False),
}
"""Published lists, and the model with or without its head."""

SCANNING = ("qwen3-next-80b-a3b", "qwen3.5-27b", "qwen3.5-35b-a3b", "qwen3.5-397b-a17b", "qwen3.5-9b", "nemotron-3-nano-30b-a3b")
SERVED = ("deepseek-v3", "gpt-oss-120b", "qwen3-30b-a3b", *SCANNING)
"""Shipped configurations whose operators `estimator.serving` lists; no trace of their experts has been compared with it."""


def tiny(family, **changes):
    names = {"gpt2": "gpt2", "qwen2": "qwen2-1.5b", "bert": "bert-large"}
    return TraceRequest(**{"model": names[family], "batch": 2, "sequence": 16, "settings": TINY[family]} | changes)


def flop(workload):
    return workload_work(workload).flop


def counted_by_pytorch(trace):
    """What a trace gives, whose flop must be those that PyTorch counts."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        workload = trace()
    assert flop(workload) == counter.get_total_flops() > 0.0
    return workload


def global_state():
    return (
        torch.get_rng_state().tolist(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.get_default_device(),
        torch.nn.functional.scaled_dot_product_attention,
        torch.nn.functional.dropout,
        torch.utils._python_dispatch._len_torch_dispatch_stack(),
        dict(transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS),
        transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS.valid_keys(),
        transformers.logging.get_verbosity(),
        tuple(sys.path),
    )


# Published lists and flop counts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LISTS)
def test_traced_products_equal_those_of_the_published_list(shared_data, name):
    model, head = LISTS[name]
    listed = recorded(shared_data, name, completion=False)
    length = re.search(r"_s(\d+)_", name)
    request = TraceRequest(model=model, head=head, batch=int(re.search(r"_b(\d+)", name)[1]), sequence=int(length[1]) if length else 512)
    traced = trace_workload(request)
    assert products(traced) == products(listed)
    assert sum(traced.counts) > sum(listed.counts)
    assert traced.unknown == ()


@pytest.mark.parametrize("family", TINY)
@pytest.mark.parametrize("phase", ["prefill", "train"])
def test_flop_equal_those_that_pytorch_counts(family, phase):
    counted_by_pytorch(lambda: trace_workload(tiny(family, phase=phase)))


# Phases, precisions, attention ----------------------------------------------------------------------------------------


def test_a_decoding_step_works_on_one_token_and_attends_to_all():
    workload = trace_workload(tiny("qwen2", phase="decode", attention="flash", sequence=33))
    attention = next(operator for operator in workload.operators if operator.family == "attention")
    assert attention.operator == "decode"
    assert [attention[name] for name in ("batch", "queries", "context", "heads", "kv_heads", "head_dim")] == [2, 1, 33, 4, 2, 16]
    assert {operator["m"] for operator in workload.operators if operator.operator == "linear"} == {2}
    cache = [operator.shape[0] for operator in workload.operators if operator.operator == "cat"]
    assert max(cache) == 2 * 2 * 33 * 16  # keys or values of all tokens are written anew when one is added


def test_a_sliding_window_shorter_than_the_context_is_kept():
    settings = TINY["qwen2"] | {"sliding_window": 8}
    workload = trace_workload(TraceRequest(model="mistral-7b", sequence=16, attention="flash", settings=settings))
    attention = next(operator for operator in workload.operators if operator.family == "attention")
    assert (attention["window"], attention["causal"]) == (8, 1)


def test_a_model_that_reads_images_keeps_the_sliding_window_of_its_text(tmp_path):
    text = DECODER | {"model_type": "gemma3_text", "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
    vision = DECODER | {"model_type": "siglip_vision_model"}
    model = configuration(
        tmp_path, model_type="gemma3", architectures=["Gemma3ForConditionalGeneration"], text_config=text, vision_config=vision
    )
    workload = trace_workload(TraceRequest(model=model, sequence=16, attention="flash"))
    assert {(one["window"], one["causal"]) for one in workload.operators if one.family == "attention"} == {(8, 1), (0, 1)}
    assert any(note.endswith("its tokens alone, without images") for note in workload.notes)


def test_a_training_step_has_three_times_the_products_and_an_optimizer():
    forward = trace_workload(tiny("gpt2", logits="all"))
    step = trace_workload(tiny("gpt2", phase="train"))
    assert flop(step) == 3.0 * flop(forward)
    assert tally(step, "dropout")["dropout"] > 0


def test_a_classifier_of_texts_is_trained_with_one_label_a_text(tmp_path):
    model = configuration(tmp_path, model_type="bert", architectures=["BertForSequenceClassification"], **TINY["bert"])
    forward, step = (trace_workload(TraceRequest(model=model, batch=2, sequence=16, phase=phase)) for phase in ("prefill", "train"))
    assert flop(step) == pytest.approx(3.0 * flop(forward), rel=0.01)


def test_a_segmentation_is_trained_with_a_label_for_each_pixel(tmp_path):
    sizes = {"hidden_sizes": [8] * 4, "num_attention_heads": [1] * 4, "depths": [1] * 4, "decoder_hidden_size": 8, "image_size": 32}
    model = configuration(tmp_path, model_type="segformer", architectures=["SegformerForSemanticSegmentation"], **sizes)
    step = trace_workload(TraceRequest(model=model, batch=2, phase="train"))
    assert (1, 2 * 32 * 32) in [one.shape for one in step.operators if one.operator == "mean"]


@pytest.mark.parametrize("name", sorted({*model_names()} - {*SERVED}))
def test_every_shipped_model_is_built_and_traced(name):
    values = load_model_config(name).config
    short = {key: 1 for key in ("num_hidden_layers", "n_layer") if key in values}
    forward, step = (
        trace_workload(TraceRequest(model=name, sequence=16, settings=short, phase=phase, precision="bf16"))
        for phase in ("prefill", "train")
    )
    assert forward.unknown == step.unknown == ()
    assert flop(step) > flop(forward) > 0.0


@pytest.mark.parametrize("name", SCANNING)
def test_shipped_models_that_scan_are_served_only(name):
    layers = {} if name.startswith("nemotron") else {"num_hidden_layers": 4}
    with pytest.raises(WorkloadError, match="(GatedDeltaNet|Mamba2Mixer) scan a state over the tokens.* `estimate llm` serves"):
        trace_workload(TraceRequest(model=name, sequence=16, settings=layers))


@pytest.mark.parametrize("phase, precision", [("prefill", "fp32"), ("decode", "tf32"), ("train", "fp16")])
def test_experts_are_traced_in_every_precision_as_in_bf16(phase, precision):
    sizes = {"num_local_experts": 4, **TINY["qwen2"]}
    wide, usual = (
        trace_workload(TraceRequest(model="mixtral-8x7b", batch=4, sequence=32, settings=sizes, phase=phase, precision=name))
        for name in (precision, "bf16")
    )

    def experts(workload):
        return [o for o in workload.operators if o.family == "gemm" and o["batch"] == sizes["num_local_experts"]]

    assert [o.shape for o in experts(wide)] == [o.shape for o in experts(usual)] != []
    assert {(o.operator, o.precision) for o in experts(wide)} == {("linear", precision)}
    assert flop(wide) == flop(usual)


@pytest.mark.parametrize("size, tokens", [(0, (32 / 8) ** 2 + 1), (48, (48 / 8) ** 2 + 1)])
def test_the_image_side_of_a_model_of_text_and_images_is_built_for_its_size(tmp_path, size, tokens):
    vision = TOWER | {"image_size": 32, "patch_size": 8}
    model = configuration(tmp_path, model_type="clip", architectures=["CLIPForImageClassification"], vision_config=vision)
    workload = trace_workload(TraceRequest(model=model, batch=2, image_size=size))
    assert next(o for o in workload.operators if o.family == "softmax")["dim"] == tokens


TOWER = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
SIDES = {"text_config": TOWER, "vision_config": TOWER | {"image_size": 32, "patch_size": 8}}
CODERS = {
    "encoder_layers": 1, "decoder_layers": 1, "d_model": 32, "vocab_size": 100, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
}  # fmt: skip
NAMED = {
    "clip": {"architectures": ["CLIPModel"], **SIDES},
    "siglip": {"architectures": ["SiglipModel"], **SIDES},
    "whisper": {"architectures": ["WhisperForConditionalGeneration"], "max_source_positions": 40, "pad_token_id": 0, **CODERS},
    "resnet": {"architectures": ["ResNetForImageClassification"], "depths": [1, 1, 1, 1]},
}
"""Models of two towers, of speech, and of images without a stated size."""
MOST_TOKENS = {"clip": 77, "siglip": 64, "whisper": 448}


@pytest.mark.parametrize("kind", NAMED)
def test_towers_speech_and_images_are_built_from_a_configuration(tmp_path, kind):
    model = configuration(tmp_path, model_type=kind, **NAMED[kind])
    asked = () if kind == "resnet" else ("sequence",)
    traced = counted_by_pytorch(lambda: trace_calls(TraceRequest(model=model, batch=2, sequence=16), asked).workload)
    twice = trace_workload(TraceRequest(model=model, batch=4, sequence=16))
    assert flop(twice) / flop(traced) == pytest.approx(2.0, rel=0.01)  # the scores of two towers grow with its square
    assert traced.unknown == ()
    assert trace_calls(TraceRequest(model=model)).sequence == MOST_TOKENS.get(kind, 0)
    with pytest.raises(WorkloadError, match="longer than" if asked else "no sequence to choose"):
        trace_calls(TraceRequest(model=model, sequence=1024), ("sequence",))


@pytest.mark.parametrize("kind", ["whisper", "resnet"])
@pytest.mark.parametrize("weights, formats", [("fp8", {"fp8"}), ("bitsandbytes", set())])
def test_methods_for_weights_leave_convolutions_in_16_bits(tmp_path, kind, weights, formats):
    model = configuration(tmp_path, model_type=kind, **NAMED[kind])
    request = TraceRequest(model=model, batch=2, sequence=16 * (kind != "resnet"))
    wide, narrow = (trace_workload(replace(request, weights=form)) for form in ("bf16", weights))
    assert set() < {(one, count) for one, count in counted(wide) if "conv" in one.family + one.origin} <= set(counted(narrow))
    assert {one.precision for one in narrow.operators if one.operator == "linear"} - {"bf16"} == formats
    assert wide.footprint.weights_byte / 2 < narrow.footprint.weights_byte < wide.footprint.weights_byte


ENCODED = {
    "t5": {
        "architectures": ["T5ForConditionalGeneration"], "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2,
        "vocab_size": 100,
    },
    "bart": {"architectures": ["BartForConditionalGeneration"], **CODERS},
    "whisper": NAMED["whisper"],
}  # fmt: skip


@pytest.mark.parametrize("kind", ENCODED)
def test_a_decoding_step_attends_to_what_an_encoder_made_and_does_not_run_it(tmp_path, kind):
    encoded = 40 if kind == "whisper" else 16
    model = configuration(tmp_path, model_type=kind, **ENCODED[kind])
    found = trace_workload(TraceRequest(model=model, batch=3, sequence=16, phase="decode"))
    linear = [(o["m"], count) for o, count in counted(found) if o.operator == "linear" and o["n"] != 100]
    assert {rows for rows, _ in linear} == {3.0}
    assert sum(count for _, count in linear) == 4 + 2 + 2  # own attention, that to the encoder with cached keys, inner layer
    assert {o["dim"] for o in found.operators if o.family == "softmax"} == {16.0, encoded}
    assert found.footprint.cache_byte == 2 * 3 * 32 * (15 + encoded) * 2


def test_a_question_takes_the_options_of_a_trace(tmp_path):
    model = configuration(tmp_path, model_type="resnet", **NAMED["resnet"])
    asked = ("--model", model, "--gpu", "a100", "--phase", "train", "--kernels", "0")
    times = [printed(*asked, *words)["latency_s"] for words in ((), ("--master",), ("--image-size", "448"))]
    assert times[0] < min(times[1:])


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_master_weights_add_memory_and_copies_and_no_product(precision):
    plain, master = (trace_workload(tiny("qwen2", phase="train", precision=precision, master=mixed)) for mixed in (False, True))
    weights = plain.footprint.weights_byte / 2  # buffers, such as the frequencies of a rotary embedding, are no weights
    assert master.footprint.weights_byte == plain.footprint.weights_byte
    assert master.footprint.optimizer_byte == pytest.approx(12 * weights, rel=0.01)
    assert master.footprint.optimizer_byte == 3 * plain.footprint.optimizer_byte
    assert products(master) == products(plain)
    before, after = (dict(counted(one)) for one in (plain, master))
    casts = sum(
        (count - before.get(o, 0)) * o["elements"]
        for o, count in after.items()
        if (o.operator, o.precision, o.precision_out) == ("typecast", precision, "fp32")
    )
    lists = [(o["elements"], count) for o, count in after.items() if (o.operator, o.precision) == ("other", precision)]
    back = sum(elements * count for elements, count in lists if elements > weights / 2)
    assert (casts, back) == pytest.approx((weights, weights), rel=0.01), "gradients to fp32, weights back to 16 bits"
    for asked in ({"phase": "prefill"}, {"phase": "train", "precision": "fp32"}):
        with pytest.raises(WorkloadError, match="leave --master out"):
            trace_workload(tiny("qwen2", master=True, **asked))


# Memory ---------------------------------------------------------------------------------------------------------------

WIDE = {"gpt2": GPT2 | {"n_embd": 128, "vocab_size": 500}, "llama-3-8b": DECODER | WIDER}


def allocated_byte(model, settings, batch, sequence, train):
    """The most that PyTorch's allocator holds at a time, beyond what was there, while a real model with weights runs on the processor."""
    config = load_model_config(model)
    kind = transformers.CONFIG_MAPPING[config.model_type]
    real = getattr(transformers, config.architecture)._from_config(kind(**config.config | settings), attn_implementation="eager")
    tokens = torch.ones((batch, sequence), dtype=torch.int64)
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    real.train(train)
    optimizer = torch.optim.AdamW(real.parameters(), foreach=True)
    if train:
        inputs["labels"] = tokens
        for parameter in real.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile, torch.set_grad_enabled(train):
        if train:
            real(**inputs).loss.backward()
            optimizer.step()
        else:
            real(**inputs, logits_to_keep=1)
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    return int(np.cumsum([event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]).max())


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("batch, sequence", [(4, 64), (1, 128)])
@pytest.mark.parametrize("model", sorted(WIDE))
def test_what_passes_through_memory_is_what_the_allocator_holds(model, batch, sequence, train):
    dropouts = ("attn_pdrop", "embd_pdrop", "resid_pdrop") if model == "gpt2" else ()  # float masks on processors
    settings, phase = WIDE[model] | dict.fromkeys(dropouts, 0.0), "train" if train else "prefill"
    request = TraceRequest(model=model, batch=batch, sequence=sequence, precision="fp32", phase=phase, settings=settings)
    held = trace_workload(request).footprint
    inputs = 2 * 8 * batch * sequence  # tokens and mask, there before the profile begins
    assert held.passing_byte - inputs == pytest.approx(allocated_byte(model, settings, batch, sequence, train), abs=64)


def test_a_cache_holds_what_windows_keep(tmp_path):
    for window, kept in ((8, 7), (None, 15)):
        model = configuration(tmp_path, model_type="mistral", sliding_window=window, **DECODER)
        found = trace_workload(TraceRequest(model=model, sequence=16, phase="decode")).footprint.cache_byte
        assert found == pytest.approx(2 * 2 * kept * 2 * 16 * 2, abs=2 * 8)  # a number of 64 bits in each layer


def test_weights_moments_and_caches_are_those_of_the_model():
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**TINY["gpt2"]))
    weights = sum(p.numel() for p in model.parameters())
    held = [trace_workload(tiny("gpt2", **asked)).footprint for asked in ({"phase": "train"}, {"phase": "decode", "precision": "bf16"})]
    assert [(one.weights_byte, one.optimizer_byte, one.cache_byte) for one in held] == [
        (4 * weights, 2 * 4 * weights, 0),
        (2 * weights, 0, 2 * 2 * 2 * 2 * 15 * 64),
    ]
    assert trace_workload(tiny("gpt2", precision="fp8")).footprint.weights_byte == weights


# State, user code, faults ---------------------------------------------------------------------------------------------


def test_tracing_leaves_no_trace():
    before = global_state()
    trace_calls(tiny("qwen2", attention="flash"))
    trace_calls(tiny("gpt2", phase="train"))
    with pytest.raises(WorkloadError):
        trace_calls(tiny("gpt2", settings=TINY["gpt2"] | {"n_head": 7}))
    assert global_state() == before


def test_a_configuration_file_builds_what_the_shipped_name_builds(tmp_path):
    config = transformers.GPT2Config(architectures=["GPT2LMHeadModel"], dtype="float32", **TINY["gpt2"])
    config.save_pretrained(tmp_path / "mine")
    by_file = trace_workload(TraceRequest(model=str(tmp_path / "mine"), sequence=16))
    by_name = trace_workload(TraceRequest(model="gpt2", sequence=16, settings=TINY["gpt2"]))
    assert by_name.operators[0].precision == "fp32"
    assert (by_file.operators, by_file.counts) == (by_name.operators, by_name.counts)

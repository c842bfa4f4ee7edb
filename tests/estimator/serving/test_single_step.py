"""One step of a served model as a workload: what `estimate --model … --runtime serving` asks about."""

import json
from dataclasses import replace

import pytest

from estimator import bundle_for, estimate
from estimator.serving.architecture import Layout, read_architecture
from estimator.serving.costs import is_served, single_step
from estimator.serving.steps import weight_bytes
from estimator.serving.weights import read_weights
from estimator.vocabulary.errors import WorkloadError
from tests.estimator.estimating import fails, run, tabled
from tests.estimator.serving.test_steps import DENSE as LAYERS
from tests.words import changed

DENSE = LAYERS | {"architectures": ["LlamaForCausalLM"]}


def written(tmp_path, **fields):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({name: value for name, value in (DENSE | fields).items() if value is not None}))
    return str(path)


def test_memory_is_that_of_weights_and_cache_of_one_gpu(tmp_path):
    config = written(tmp_path)
    for parallel in (1, 2, 4):
        held = single_step(config, "decode", batch=3, sequence=1000, layout=Layout(tensor_parallel=parallel)).workload.footprint
        assert held.cache_byte == 3 * 1000 * 4 * 2 * (4 // parallel) * 64 * 2
        assert held.weights_byte == weight_bytes(read_architecture(DENSE), read_weights(DENSE), Layout(tensor_parallel=parallel))


def test_copies_of_the_attention_share_the_sequences_and_their_experts_get_those_of_all():
    layout = Layout(tensor_parallel=1, expert_parallel=8)
    step = single_step("deepseek-v3", "decode", batch=64, sequence=512, layout=layout)
    rows = {one.family: one.shape[:2] for one in step.workload.operators if one.family in ("mla", "moe")}
    assert (step.tokens, step.workload.gpus, rows["mla"], rows["moe"][0]) == (64, 8, (8.0, 1.0), 64.0)
    with pytest.raises(WorkloadError, match="8 copies of the attention do not divide a batch of 63"):
        single_step("deepseek-v3", "decode", batch=63, layout=layout)
    name = json.loads(run("--model deepseek-v3 --gpu b200 --phase decode --batch 64 --expert-parallel 8 --json")[1])["workload"]
    assert name.endswith("-serving-ep8")


def test_narrow_weights_and_cache_make_a_decoding_step_shorter():
    bundle, gpu = bundle_for("h100")
    times = []
    for words in ({}, {"weights": "fp8-static"}, {"weights": "fp8-static", "kv": "fp8"}):
        step = single_step("llama-3.1-8b", "decode", batch=64, sequence=4096, **words)
        times.append(estimate(step.workload, bundle, gpu=gpu)[0].latency_s)
    assert times == sorted(times, reverse=True)
    assert times[2] < 0.75 * times[0]


def test_decoding_is_that_of_an_engine_unless_something_else_is_asked_for(tmp_path):
    words = ("--model", written(tmp_path), "--gpu h100 --batch 2 --sequence 64 --json")
    status, out, err = run(words, "--phase decode")
    assert (status, "-serving" in json.loads(out)["workload"], "without its host" in err) == (0, True, True)
    assert run(words, "--phase decode --runtime serving")[1] == out
    assert json.loads(run(words, "--tensor-parallel 2")[1])["workload"].endswith("prefill-b2-s64-bf16-kv-bf16-serving-tp2")
    assert not is_served("resnet-101")
    assert not is_served("lab.py:build")


@pytest.mark.parametrize("command", [(), "sweep", "explain"])
def test_power_and_energy_of_a_group_are_those_of_all_its_gpus(tmp_path, command):
    asked = f"--model {written(tmp_path)} --gpu h100 --phase decode --batch 8 --tensor-parallel 4"
    words = (command, asked)
    bundle, gpu = bundle_for("h100")
    step = single_step(written(tmp_path), "decode", batch=8, layout=Layout(tensor_parallel=4))
    (one,) = estimate(replace(step.workload, gpus=1), bundle, gpu=gpu)
    found = json.loads(run(words, "--json")[1])
    found = found[0] if isinstance(found, list) else found
    assert (found["gpus"], found["latency_s"]) == (4, one.latency_s)
    for name in ("power_w", "power_w_high", "power_w_std", "energy_j", "energy_j_low", "energy_j_std"):
        assert found[name] == pytest.approx(4 * getattr(one, name)), name
    if command == ():
        parts = {kernel["operator"]: kernel for kernel in found["kernels"]}
        assert all(parts[kernel.operator]["power_w"] == pytest.approx(4 * kernel.power_w) for kernel in one.kernels)
    if command == "explain":
        assert sum(found["energy_parts_j"].values()) == pytest.approx(found["energy_j"])
    if command == "sweep":
        assert found["tokens_per_j"] == pytest.approx(8 / found["energy_j"])
    told = "power and energy of all 4 GPUs together"
    assert told in run(words)[1]
    assert told not in run(command, changed(asked, "--tensor-parallel 1"))[1]
    assert told in run("compare", asked, "--gpu h100,a100")[1]
    assert tabled(words)[0]["gpus"] == "4"


@pytest.mark.parametrize("command", [(), "sweep", "best", "compare --baselines", "explain"])
def test_every_question_takes_a_served_model(tmp_path, command):
    words = (command, "--model", written(tmp_path), "--gpu h100 --phase decode --kv fp8 --weights fp8")
    assert run(words)[0] == 0


BAD = [
    ({"model_type": "rwkv9"}, "--runtime serving", 1, "'rwkv9', which is not served; known: gpt2"),
    ({"quantization_config": "fp8"}, "", 1, "quantization_config"),
    ({}, "--runtime serving --precision bf16", 2, "--precision has no meaning with --runtime serving"),
    ({}, "--runtime serving --image-size 224", 2, "--image-size has no meaning with --runtime serving"),
    ({}, "--runtime eager --kv fp8", 2, "--kv has no meaning with --runtime eager"),
    ({}, "--runtime serving --phase train", 2, "own code and training are traced"),
    ({}, "--model lab.py:build --tensor-parallel 2", 2, "own code and training are traced"),
    ({}, "--weights nvfp4", 1, "choose another precision (--precision, of models --weights) or GPU"),
]


@pytest.mark.parametrize("fields, words, status, line", BAD)
def test_bad_input_is_one_line_and_writes_nothing(tmp_path, fields, words, status, line):
    out = tmp_path / "answer.json"
    assert line in fails(changed(f"--model {written(tmp_path, **fields)} --gpu h100 --phase decode -o {out}", words), status=status)
    assert not out.exists()


@pytest.mark.parametrize("option", ["--phase decode", "--weights fp8", "--kv fp8", "--tensor-parallel 2", "--master", "--image-size 64"])
def test_a_list_of_operators_has_no_options_of_a_model(option):
    assert "give the model by --model" in fails("examples/gpt2-prefill.json --gpu h100", option, status=2)

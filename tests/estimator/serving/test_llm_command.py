"""The command `estimate llm`, and the same in Python."""

import json
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from estimator import ArgumentError, OperatingPointError, Serving, bundle_for, serve_llm
from estimator.bundle.files import save_bundle
from estimator.serving.engines import HostTime, engine_names, load_engine
from estimator.uncertainty.nearest import known_gpu
from estimator.vocabulary.resources import resource_folder
from tests.estimator.estimating import fails, printed
from tests.estimator.estimating import run as estimate
from tests.estimator.serving import MEASURES
from tests.words import changed

LOAD = "llama-3-8b --gpu a100 --prompt 512 --output 128 --weights bf16"
BIG = json.loads("""
{"model_type": "llama", "vocab_size": 128256, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
"num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 8192, "torch_dtype": "bfloat16"}
""")


run, answers = (partial(asked, "llm") for asked in (estimate, printed))


def test_a_power_limit_holds_the_mean_of_all_steps():
    words = "llama-3.1-8b --gpu h100 --prompt 2048 --output 64 --engine tensorrt-llm-1.0 --batch"
    free = answers(words, "32 --tensor-parallel 2")
    caps = [factor * free["power_w"] / 2 for factor in (1.05, 0.9, 0.6)]
    found = [answers(words, "32 --tensor-parallel 2 --power-cap", cap) for cap in caps]
    assert [found[0][name] for name in MEASURES] == pytest.approx([free[name] for name in MEASURES], rel=1e-3)  # prompts alone draw more
    for one, cap in zip(found[1:], caps[1:], strict=True):
        assert 0.93 * cap < one["power_w"] / 2 < cap
    assert found[2]["sm_clock_mhz"] < free["sm_clock_mhz"]
    assert [one["tokens_per_s"] for one in (free, *found[1:])] == sorted({one["tokens_per_s"] for one in found}, reverse=True)
    crowded = answers(words, 256)  # more prompts than steps
    assert crowded["power_w_low"] < 0.98 * crowded["power_w"] < 0.98 * 700.0 < crowded["power_w_high"] < 1.03 * 700.0
    starved = answers(words, "1 --power-cap 100")
    assert starved["power_w"] > 100.0
    long = answers("llama-3.1-8b --gpu h100 --prompt 131000 --output 72 --batch 1")
    assert long["ttft_s"] == long["ttft_loaded_s"] < long["ttft_s_high"]
    assert starved["tpot_s"] == pytest.approx(answers(words, "1 --freqs", starved["sm_clock_mhz"])["tpot_s"], rel=1e-3)


def test_near_overload_no_token_comes_sooner_than_to_a_lone_request():
    words = "llama-3.1-8b --gpu h200 --prompt 700 --output 130"
    lone = answers(words, "--batch 1")
    for rate in (4.0, 20.0, 34.0):
        found = answers(words, "--rate", rate)
        assert 0.9 * lone["tpot_s_low"] < found["tpot_s_low"] < found["tpot_s"] < found["tpot_s_high"]


@pytest.mark.parametrize("words, expected", [("b200,b300", "mxfp4-mxfp8"), ("b200 --weights mxfp4", "mxfp4"), ("h100", "mxfp4")])
def test_experts_in_mxfp4_have_inputs_of_8_bits_where_engines_bring_them_to_these(words, expected):
    found = answers("gpt-oss-20b --prompt 512 --output 128 --batch 64 --gpu", words)
    found = found if isinstance(found, list) else [found]
    assert {one["weights"] for one in found} == {expected}
    rates = [one["tokens_per_s"] for one in found]
    assert max(rates) < 1.1 * min(rates)  # the same kernels


@pytest.mark.parametrize("gpu, ranks, told", [("l40s", 4, True), ("l40s", 2, False), ("h100", 4, False)])
def test_sums_over_pcie_are_noted(gpu, ranks, told):
    found = answers("llama-3.1-8b --gpu", gpu, "--prompt 128 --output 128 --batch 1 --tensor-parallel", ranks)
    assert any("over PCIe" in note for note in found["notes"]) == told


def test_a_board_without_bf16_serves_in_fp16():
    found, narrow = (answers("llama-2-7b --gpu v100 --prompt 128 --output 128 --batch 1", words) for words in ((), "--weights int4"))
    assert (found["weights"], found["state"], narrow["state"]) == ("fp16", "", "")
    assert 0.25 < narrow["tpot_s"] / found["tpot_s"] < 0.8
    # At best all weights cross the memory once for each token.
    assert 2 * 6.7e9 / 9e11 < found["tpot_s"] < 4 * 2 * 6.7e9 / 9e11
    step = printed("--model llama-2-7b --gpu v100 --phase decode --sequence 192")
    assert step["latency_s"] == pytest.approx(found["tpot_s"], rel=0.1)
    told = "v100-pcie-32gb has no bf16: fp16 in its place"
    assert told in found["notes"]
    assert told in step["notes"]


def test_weights_widened_in_registers_for_one_request_take_the_time_of_int4():
    words = "llama-3.1-8b --gpu h100 --prompt 512 --output 64 --batch"
    widened, narrow, many = (answers(words, more) for more in ("1 --weights bitsandbytes", "1 --weights int4", "8 --weights bitsandbytes"))
    assert widened["tpot_s"] == pytest.approx(narrow["tpot_s"])
    assert [one["validity"] for one in (widened, narrow, many)] == ["forecast", "forecast", "measured"]


def test_the_headline_names_the_format_of_the_checkpoint():
    half = Serving(model=BIG | {"torch_dtype": "float16"}, prompt=128, output=128, batch=1)
    found = serve_llm(half, bundle_for("h200")[0])
    assert (found.weights, found.kv) == ("fp16", "fp16")
    for weights, told in ((None, True), ("bf16", False)):
        found = serve_llm(
            replace(half, model=BIG | {"torch_dtype": "float32", "num_hidden_layers": 8}, weights=weights), bundle_for("h200")[0]
        )
        assert (found.weights, any("float32 are served in 16 bit" in line for line in found.notes)) == ("bf16", told)
    assert "gpt-oss-20b (mxfp4, cache bf16) on" in run("gpt-oss-20b --gpu h200 --prompt 128 --output 128 --batch 1")[1]


def test_experts_of_an_engine_that_no_table_holds_are_faster_than_the_tables():
    bundle, gpu = bundle_for("b200")
    ours = load_engine("sglang-0.5")
    asked = Serving(model="deepseek-v3", prompt=512, output=64, batch=16, tensor_parallel=8)
    times = {}
    for weights in ("fp8-block", "nvfp4"):
        for library in ("sglang", "trtllm"):
            one = serve_llm(replace(asked, weights=weights, engine=replace(ours, library=library)), bundle, gpu=gpu)
            times[weights, library] = one.slot_s * one.parts["experts"]
    assert 0.3 * times["fp8-block", "trtllm"] < times["fp8-block", "sglang"] < 0.9 * times["fp8-block", "trtllm"]
    assert times["nvfp4", "sglang"] == pytest.approx(times["nvfp4", "trtllm"])


def test_several_gpus_say_whose_power_it_is():
    words = (LOAD, "--batch 16")
    (_, alone, _), (_, pair, _), (status, both, error) = (run(words, "--tensor-parallel", ranks) for ranks in ("1", "2", "1,2,3"))
    assert "GPUs together" not in alone
    assert "power and energy of all 2 GPUs together" in pair
    assert "power and energy of all GPUs of a point together" in both
    assert (status, "bundle a100-sxm-80gb" in both, "left out: llama-3-8b: tensor parallelism 3" in error) == (0, True, True)


def test_an_engine_that_is_not_named_widens_the_interval():
    words = (LOAD, "--batch 64")
    known, unknown = (answers(words, more) for more in ("--engine vllm-0.12", ()))
    assert unknown["tokens_per_s"] > known["tokens_per_s"]  # later versions hide more of the host
    assert unknown["tokens_per_s_high"] / unknown["tokens_per_s_low"] > known["tokens_per_s_high"] / known["tokens_per_s_low"]
    assert "no engine named" in unknown["notes"][0]


@pytest.mark.parametrize(
    "asked, version",
    [
        ("vllm", "0.12"),
        ("vllm-0.18.1", "0.15"),
        ("vllm-1.0", "0.15"),
        ("vllm-0.11", "0.12"),
        ("vllm-0.5.4", "0.5"),
        ("vllm-0.6", "0.5"),
        ("vllm-0.2", "0.5"),
        ("vllm-dev", "0.12"),
    ],
)
def test_another_version_has_half_of_the_host_of_the_nearest(asked, version):
    found, shipped = load_engine(asked), load_engine(f"vllm-{version}")
    for name in ("sequence_s", "rank_s", "overlapped_step_s"):
        assert getattr(found.host, name) == getattr(shipped.host, name) / 2


def test_a_board_that_waits_for_ever_draws_what_the_runs_showed():
    bundle, gpu = bundle_for("h100")
    engine = load_engine("vllm-0.5")
    slow = replace(engine, host=replace(engine.host, step_s=9.0))
    load = Serving(model="llama-3.1-8b", prompt=90, output=480, batch=1, engine=slow)
    assert serve_llm(load, bundle, gpu=gpu).power_w == pytest.approx(188.0, rel=0.02)  # at rest 118 W


def test_each_further_gpu_takes_the_host_its_time():
    words = "llama-3.1-8b --gpu h100 --prompt 90 --output 480 --batch 256 --engine vllm-0.5 --tensor-parallel"
    single, pair = (answers(words, gpus) for gpus in (1, 2))
    assert pair["slot_s"] > single["slot_s"]


def test_prompts_are_launched_layer_by_layer():
    engine = load_engine("tensorrt-llm-1.0")
    slow = replace(engine, host=HostTime(step_s=0.0, sequence_s=0.0, request_s=0.0, overlapped_layer_s=0.1, spread=0.0))
    bundle, gpu = bundle_for("h100")
    for model, layers in (("llama-3.1-8b", 32), ("qwen3-32b", 64)):
        load = Serving(model=model, prompt=90, output=4, batch=3, engine=slow)
        assert serve_llm(load, bundle, gpu=gpu).slot_s == pytest.approx(3 * layers * 0.1, rel=1e-3)


def test_copies_without_a_request_make_no_tokens():
    words = "mixtral-8x7b --gpu h100 --prompt 64 --output 64 --expert-parallel 4 --batch"
    one, three, four = (answers(words, batch) for batch in (1, 3, 4))
    assert [found["running"] for found in (one, three, four)] == [1, 3, 4]
    for found in (one, three, four):
        assert found["tokens_per_s"] == pytest.approx(found["batch"] * 64 / found["slot_s"])
        assert found["energy_per_token_j"] == pytest.approx(found["power_w"] / found["tokens_per_s"])
    assert (one["tpot_s"], one["power_w"]) == (four["tpot_s"], four["power_w"])
    assert any("in each of the 4 copies" in line for line in one["notes"])


def test_between_two_tokens_come_no_more_prompts_than_a_step_takes():
    found = answers("llama-3.1-8b --gpu h100 --prompt 8192 --output 2 --batch 16 --engine vllm-0.15")
    assert found["ttft_s"] < found["tpot_s"] < 1.2 * found["ttft_s"]


def test_lists_make_a_table_in_the_order_of_the_options():
    found = answers(LOAD, "--batch 1,4,5 --freqs 900,1410")
    assert [(one["batch"], one["asked_clock_mhz"]) for one in found] == [(b, f) for b in (1, 4, 5) for f in (900.0, 1410.0)]
    assert found[4]["tokens_per_s"] == answers(LOAD, "--batch 5 --freqs 900")["tokens_per_s"]
    text, lines = (run(LOAD, "--batch 1,4,5", form)[1].splitlines() for form in ((), "--csv"))
    assert len(text) == 5
    assert [line.split(",")[0] for line in lines] == ["model", *["llama-3-8b"] * 3]
    headline = run(LOAD, "--rate 0.5 --freqs 900,1410")[1].splitlines()[0]
    board = "bundle a100-sxm-80gb 0.1.0, gpu a100-sxm-80gb, gpus 1, tensor parallel 1"
    assert headline == f"model llama-3-8b, {board}, engine vllm 0.12, rate 0.5"
    assert run(LOAD, "--batch 1,4")[1].splitlines()[0].endswith(", asked clock [MHz] 1410.0")


def test_layouts_of_as_many_gpus_are_told_apart(tmp_path):
    words = f"{LOAD} --expert-parallel 4 --batch 4,8 --tensor-parallel".replace("llama-3-8b", "mixtral-8x7b")
    out = tmp_path / "chart.svg"
    assert [line.split()[0] for line in run(words, "1,2,4")[1].splitlines()[2:-1]] == ["1", "1", "2", "2", "4", "4"]
    assert "4 x a100-sxm-80gb (tensor parallel 2)" in run(words, "2 --best tokens_per_s")[1]
    run(words, "1,2,4 -o", out)
    assert out.read_text().count("<polyline") == 3


def test_a_short_prompt_adds_little_to_steps_that_run_anyway():
    found = answers(changed(LOAD, "--batch 64 --prompt 4"))
    assert 0.0 < found["parts"]["prompts"] < 0.1


@pytest.mark.parametrize("gpu", ["l40s", "h100", "b200"])
def test_a_long_prompt_alone_is_within_the_power_limit(gpu):
    alone = answers(f"llama-3.1-8b --gpu {gpu} --prompt 16000 --output 9 --batch 1 --engine tensorrt-llm-1.0")["ttft_s"]
    step = printed(f"--model llama-3.1-8b --runtime serving --phase prefill --sequence 16000 --gpu {gpu}")["latency_s"]
    assert 0.94 < alone / step < 1.02


def test_a_lower_limit_makes_no_long_prompt_faster():
    words = "mixtral-8x7b --gpu l40s --prompt 4000 --output 3 --batch 400 --tensor-parallel 16 --engine sglang --power-cap"
    high, low = (answers(words, cap) for cap in (315, 210))
    assert low["tokens_per_s"] <= high["tokens_per_s"] * (1.0 + 1e-9)


@pytest.mark.parametrize("words", ["a10 --prompt 8000 --output 64 --batch 1", "b200 --power-cap 500 --prompt 48 --output 503 --batch 280"])
def test_a_board_at_its_limit_is_no_faster_at_a_locked_lower_clock(words):
    rates = [one["tokens_per_s"] for one in answers("llama-3.1-8b --freqs all --gpu", words)]
    assert rates == sorted(rates)


@pytest.mark.parametrize("words", ["h200 --power-cap 350 --prompt 125 --output 5 --weights fp8", "l4 --prompt 1024 --output 512"])
def test_a_rate_below_the_most_is_served_within_the_power_limit(words):
    words = f"llama-3.1-8b --gpu {words}"
    most = answers(words, "--batch 100000")
    found = [answers(words, "--rate", share * most["tokens_per_s"] / most["output"]) for share in (0.2, 0.6, 0.9, 0.999)]
    assert [one["state"] for one in found] == [""] * 4
    assert found[3]["power_w"] == pytest.approx(most["power_w"], rel=1e-3)
    for one in found:
        assert one["tokens_per_s_low"] <= one["tokens_per_s"] == one["tokens_per_s_high"]
        assert one["slot_s"] * one["tokens_per_s"] == pytest.approx(one["output"] * one["running"])
        assert one["prompt_energy_j"] + one["output_energy_j"] == pytest.approx(one["output"] * one["energy_per_token_j"])


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("prompt, output", [(12, 8), (32, 4), (90, 16), (16, 128)])
def test_more_requests_in_flight_make_more_tokens_and_take_longer_however_short_the_prompts(prompt, output, engine):
    words = ("--prompt", prompt, "--output", output, "--engine", engine, "--batch 1,16,64,128,192,256,512,1024")
    found = answers("llama-3.1-8b --gpu h100", *words)
    for name in ("tokens_per_s", "slot_s"):
        assert [one[name] for one in found] == sorted(one[name] for one in found)


@pytest.mark.parametrize("chart, axis", [("energy", "energy of a token [J]"), ("tokens", "output tokens [1/s]")])
def test_a_chart_has_a_line_for_each_gpu_over_what_varies(tmp_path, chart, axis):
    out = tmp_path / "chart.svg"
    words = f"{LOAD} --gpu a100,h100 -o {out} --chart {chart}"
    assert run(words, "--batch 16,1,4")[:2] == (0, "")
    drawing = out.read_text()
    for line in re.findall(r'<polyline[^>]*points="([^"]*)"', drawing):
        left = [float(point.split(",")[0]) for point in line.split()]
        assert left == sorted(left)
    assert [drawing.count(text) for text in ("<polyline", "<polygon", f">{axis}<", ">requests in flight<")] == [2, 2, 1, 1]
    assert run(words, "--batch 4 --freqs 1005,1200,1410 --force")[0] in (0, 3)
    assert ">asked SM clock [MHz]<" in out.read_text()
    assert "two points of one GPU" in fails(f"llm {words}", "--batch 4 --force")
    run(LOAD, "--batch 1,4 --bundle h100-sxm --bundle h200-sxm --force -o", out)
    assert out.read_text().count("<polyline") == 2
    run(LOAD, "--batch 1,4 --freqs 1005:1215:30 --force -o", out)
    assert [out.read_text().count(text) for text in ("<polyline", ">2 more<")] == [6, 1]


def test_the_best_point_is_the_cheapest_within_the_limits():
    words = (LOAD, "--batch 1,8,32,64")
    found = answers(words)
    limit_s = found[2]["tpot_s"] * 1.01
    best = answers(words, "--best energy_per_token --tpot-limit", limit_s * 1e3)
    assert best["batch"] == 32
    assert best["energy_per_token_j"] == min(one["energy_per_token_j"] for one in found if one["tpot_s"] <= limit_s)
    assert "none of 4 points" in fails("llm", words, "--best energy_per_token --tpot-limit 0.1")
    assert "--best looks at 1, 2, 3, " in run(LOAD, "--best energy_per_token")[2]


def test_a_bundle_without_power_chooses_no_energy(tmp_path):
    bundle = tmp_path / "cold.json"
    save_bundle(replace(bundle_for("a100")[0], power=None), bundle)
    words = "llama-3-8b --prompt 64 --output 8 --bundle"
    assert "no power coefficients" in fails("llm", words, bundle, "--best energy_per_token")
    assert answers(words, bundle, "--best tokens_per_s")["energy_per_token_j"] is None
    assert [line.split() for line in run(words, bundle, "--batch 1")[1].splitlines() if "–" in line] == [["power", "–"], ["J/token", "–"]]


def test_a_table_shows_the_first_tokens_that_a_limit_holds():
    """Under load they come later the more requests are in flight; in an empty engine they do not."""
    words = (LOAD, "--batch 1,64")
    small, large = answers(words)
    assert large["ttft_loaded_s"] > 2.0 * small["ttft_loaded_s"]
    out = run(words)[1]
    assert "TTFT under load" in out
    assert f"{1e3 * large['ttft_loaded_s']:.1f} ms" in out or f"{1e3 * large['ttft_loaded_s']:.2f} ms" in out


LISTS = [
    ("h100 --prompt 2048 --output 64 --engine tensorrt-llm-1.0", "--batch", (4, 32, 256)),
    ("h100 --prompt 2048 --output 64 --power-cap 400", "--batch", (4, 32, 256)),
    ("h100 --prompt 2048 --output 64 --power-cap 130", "--batch", (4, 32, 256)),
    ("4090 --prompt 532 --output 38 --batch 200 --weights fp8 --power-cap 250", "--freqs", (1200, 2115, 2400, 2730)),
    ("h100 --prompt 2048 --output 64 --rate 5 --power-cap 300", "--freqs", (900, 1395, 1980)),
]


@pytest.mark.parametrize("words, name, values", LISTS)
def test_a_point_says_of_itself_the_same_alone_and_in_a_list(words, name, values):
    words = f"llama-3.1-8b --gpu {words} {name}"
    table, alone = answers(words, ",".join(map(str, values))), [answers(words, value) for value in values]
    for name in ("validity", "warnings"):
        assert [one[name] for one in table] == [one[name] for one in alone], name
    for name in ("sm_clock_mhz", "ttft_s_high", "ttft_loaded_s", *MEASURES):
        assert [one[name] for one in table] == pytest.approx([one[name] for one in alone], rel=1e-9), name
    assert [one["parts"] for one in table] == [pytest.approx(one["parts"], rel=1e-9) for one in alone]


def test_more_gpus_than_a_node_has_are_no_measured_case():
    eight, more = answers(LOAD, "--batch 8 --tensor-parallel 8,16")
    assert not any("one node" in line for line in eight["warnings"])
    assert (more["validity"], any("16 GPUs: collectives of more than 8" in line for line in more["warnings"])) == ("extrapolated", True)


def test_what_does_not_fit_says_so_in_its_headline(tmp_path):
    config = tmp_path / "big.json"
    config.write_text(json.dumps(BIG))
    status, out, error = run(config, "--gpu a100 --prompt 64 --output 64 --batch 1")
    assert (status, "does not fit" in out.splitlines()[0], "--tensor-parallel" in out) == (3, True, True)
    assert len(error.splitlines()) == 1
    status, out, error = run(config, "--gpu a100 --prompt 64 --output 64 --best energy_per_token")
    assert (status, "does not fit" in out.splitlines()[0], "limits" in error) == (3, True, False)
    found = answers(config, "--gpu a100 --prompt 64 --output 64 --batch 1")
    assert (found["tokens_per_s"], found["validity"]) == (None, None)
    status, out, _ = run(LOAD, "--rate 10000.0")
    assert (status, "overloaded" in out.splitlines()[0]) == (3, True)
    most = float(out.partition("at most ")[2].split()[0])
    near = [answers(LOAD, f"--rate {share * most}")["warnings"] for share in (0.5, 1.0)]
    assert [any("within its interval" in line for line in lines) for lines in near] == [False, True]
    found = answers(LOAD, "--batch 5000")
    assert found["running"] == found["memory"]["sequences"] < 5000
    assert f"memory holds {found['running']:.0f} of 5000" in found["warnings"][0]


@pytest.mark.parametrize("gpus", ["h100,b200,a100", "h100,a100"])
def test_gpus_of_a_list_whose_memory_is_too_small_say_so_beside_the_others(gpus):
    status, out, error = run("llama-3.1-70b --prompt 64 --output 8 --batch 1,2 --gpu", gpus)
    assert (status, out.count("does not fit"), "left out" in error) == (3, 4, False)
    assert ("b200-sxm" in out) == ("b200" in gpus)


REFUSED = [
    ("--batch 1 --rate 1", 2, "exclude each other"),
    ("", 2, "name --batch"),
    ("--batch 0", 2, "at least 1"),
    ("--rate -1", 2, "--rate"),
    ("--batch 1 --tpot-limit 5", 2, "add --best"),
    ("--batch 1 --output 1", 2, "--output"),
    ("--batch 1 --prompt 8000 --output 1000", 1, "context of llama-3-8b, 8192"),
    ("--batch 1 --engine tgi", 1, "unknown engine 'tgi'; known: "),
    ("--batch 1 --engine missing.toml", 1, "missing.toml"),
    ("--batch 1 --weights fp8", 1, "cannot run gemm.linear fp8"),
    ("--batch 1 --weights nvfp4 --gpu rtx-2060-super --prompt 8000", 1, "cannot run gemm.linear nvfp4"),
    ("--batch 1 --freqs 9000", 1, "9000 MHz"),
]


@pytest.mark.parametrize("words, status, line", REFUSED)
def test_bad_input_is_one_line(words, status, line):
    assert line in fails(changed(f"llm {LOAD}", words), status=status)


def test_what_is_not_served_says_so_and_not_what_else_it_lacks():
    assert "which is not served" in fails("llm bert-large --gpu a100 --prompt 8 --output 8 --batch 1", status=1)


def test_python_gives_what_the_command_gives():
    bundle, gpu = bundle_for("a100")
    serving = Serving(model="llama-3-8b", prompt=512, output=128, batch=16, weights="bf16")
    assert serve_llm(serving, bundle, gpu=gpu).tokens_per_s == answers(LOAD, "--batch 16")["tokens_per_s"]
    with pytest.raises(OperatingPointError, match="2 clocks"):
        serve_llm(serving, bundle, gpu=gpu, sm_clock_mhz=[900.0, 1410.0])
    with pytest.raises(ArgumentError):
        serve_llm("llama-3-8b", bundle)
    with pytest.raises(OperatingPointError, match=r"prompt = .*512.*\(int64\): an int of at least 1 is needed"):
        serve_llm(replace(serving, prompt=np.int64(512)), bundle, gpu=gpu)


@pytest.mark.parametrize(
    "layers, quant, link, hint",
    [(80, None, 3e11, "--tensor-parallel 2 fits"), (640, None, 3e11, "--tensor-parallel 16 fits, beyond the 8 GPUs of a node"),
     (80, None, 0.0, "take fewer bits"), (320, {"quant_method": "awq", "group_size": 4096}, 3e11, "take fewer bits")],
)  # fmt: skip
def test_what_is_said_to_fit_is_answered(layers, quant, link, hint):
    bundle, gpu = bundle_for("a100")
    serving = Serving(model=BIG | {"num_hidden_layers": layers, "quantization_config": quant}, prompt=64, output=64, batch=1)
    board = replace(gpu or bundle.gpu, link_bytes_per_s=link)
    assert f"; {hint}" in serve_llm(serving, bundle, gpu=board).state


@pytest.mark.parametrize("batch, least, most", [(1, 1.0, 1.0), (64, 1.1, 1.5)])
def test_prompts_that_share_no_steps_with_running_sequences_take_longer(batch, least, most):
    bundle, gpu = bundle_for("a100")
    engines = [replace(load_engine("sglang"), mixes=mixes) for mixes in (True, False)]
    mixed, apart = (
        serve_llm(Serving(model="llama-3-8b", prompt=512, output=128, batch=batch, engine=one), bundle, gpu=gpu) for one in engines
    )
    assert least <= apart.slot_s / mixed.slot_s <= most


@pytest.mark.parametrize("gpu, engine, chunk", [
    ("l40s", "vllm", 2048), ("a100-sxm-80gb", "vllm-0.15", 2048), ("h100", "vllm", 8192), ("a100-sxm-40gb", "sglang", 4096),
    ("b200", "sglang", 16384),
])  # fmt: skip
def test_engines_schedule_less_on_smaller_boards(gpu, engine, chunk):
    assert load_engine(engine).on(known_gpu(gpu)).chunk == chunk


@pytest.mark.parametrize("name", engine_names())
def test_every_engine_states_its_sources(name):
    engine = load_engine(name)
    assert name == f"{engine.name}-{engine.version}"
    assert load_engine(resource_folder("engines") / f"{name}.toml") == engine
    assert set(engine.sources) == {"host", "queued", "memory_share", "reserve_bytes", "chunk", "mixes"}
    assert load_engine(f"{name}.9").host.spread > engine.host.spread

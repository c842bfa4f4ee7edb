"""What the page is told is what the commands print."""

import json
from dataclasses import replace

import pytest

from estimator.bundle.files import load_bundle, save_bundle
from estimator.display.text import known
from estimator.serve.catalogue import open_catalogue
from estimator.serve.server import Question, answer_document
from tests.estimator.estimating import printed
from tests.estimator.serve.conftest import BUNDLE, OWN_GPU

EXAMPLES = ("gpt2-prefill", "llama-8b-decode")
OWN = json.loads("""{
"format": "wattprint-workload", "format_version": "1.0", "name": "two layers", "operators": [
{"family": "gemm", "operator": "linear", "precision": "bf16", "count": 2, "batch": 1, "m": 512, "n": 768, "k": 768}
]}""")


def answer(served, name, **settings):
    status, document = served.ask("/api/answer", workload=served.workload_key(name), bundle=served.bundle_key(), **settings)
    assert status == 200, document
    return document


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize(
    "settings, words",
    [
        ({}, ()),
        ({"clock_mhz": 510.0, "precision": "fp16", "attention": "flash"}, "--freq 510 --precision fp16 --attention flash"),
        ({"attention": "eager", "power_cap_w": 90}, "--attention eager --power-cap 90"),
        ({"gpu": "h100-sxm", "precision": "fp8"}, "--gpu h100 --precision fp8"),
        ({"host_launch_us": 0}, "--host-launch-us 0"),
    ],
)
def test_an_answer_holds_the_estimate_as_the_command_prints_it(served, repository, name, settings, words):
    document = answer(served, name, **settings)
    expected = printed(repository / "examples" / f"{name}.json", f"--bundle {BUNDLE} --json", words)
    assert document["estimate"] == expected


def test_other_sizes_and_the_sweep_are_those_of_the_sweep_command(served, repository):
    document = answer(served, "gpt2-prefill", batch=16, sequence=256, power_cap_w=150, host_launch_us=90)
    words = "--batch 16 --sequence 256 --freqs all --power-cap 150 --host-launch-us 90"
    points = printed("sweep", repository / "examples" / "gpt2-prefill.json", f"--bundle {BUNDLE}", words)
    assert document["estimate"]["workload"] == "gpt2-prefill-b8-s512@b16s256" == points[0]["workload"]
    for name, column in document["sweep"].items():
        assert column == [point[name] for point in points], name


def test_the_explanation_is_that_of_the_explain_command(served, repository):
    document = answer(served, "llama-8b-decode", clock_mhz=900)
    expected = printed("explain", repository / "examples" / "llama-8b-decode.json", f"--bundle {BUNDLE} --freq 900 --json")
    for name, value in document["explanation"].items():
        assert value == expected[name], name


def test_a_file_from_the_page_is_read_as_the_command_reads_it(served, shared_data):
    path = shared_data / "energaizer" / "workloads" / "gpt2model_gpt2_pbf16_b8_s512_modeprefill.json"
    status, _, content = served.request("POST", f"/api/load?name={path.name}", path.read_bytes())
    assert status == 200
    assert json.loads(content)["name"] == path.stem
    document = answer(served, path.stem, clock_mhz=900)
    assert document["estimate"] == printed(path, f"--bundle {BUNDLE} --freq 900 --json")


def test_sizes_of_a_file_that_states_none_can_be_stated(served):
    _, known = served.ask("/api/workload", workload=served.workload_key("gpt2-prefill"))
    assert known["at"] == {"batch": 8, "sequence": 512}
    assert 16 in known["batch"]["values"]
    served.request("POST", "/api/load?name=plain.json", json.dumps(OWN).encode())
    key = served.workload_key("two layers")
    _, unknown = served.ask("/api/workload", workload=key)
    assert (unknown["at"], unknown["batch"]["values"], unknown["sequence"]["values"]) == (None, [], [])
    assert "does not tell" in unknown["batch"]["reason"]
    _, stated = served.ask("/api/workload", workload=key, at={"batch": 4, "sequence": 128})
    assert 8 in stated["batch"]["values"]
    status, document = served.ask("/api/answer", workload=key, bundle=served.bundle_key(), at={"batch": 4, "sequence": 128}, batch=8)
    assert (status, document["estimate"]["workload"]) == (200, "two layers@b8s128")


def test_a_bundle_without_power_gives_times_and_no_charts_of_energy(tmp_path):
    path = tmp_path / "times.json"
    save_bundle(replace(load_bundle(BUNDLE), power=None), path)
    catalogue = open_catalogue([], [str(path)], [])
    assert len({(bundle.name, bundle.version) for bundle in catalogue.bundles.values()}) == len(
        catalogue.bundles
    )  # names alike are told apart
    document = known(answer_document(Question(workload="example-0", bundle="bundle-0"), catalogue))
    assert [document["estimate"][name] is None for name in ("latency_s", "power_w", "energy_j")] == [False, True, True]
    assert set(document["charts"]) == {"latency", "time"}
    assert "NaN" not in json.dumps(document)


def test_every_gpu_has_the_bundle_that_the_command_takes_for_it(served):
    bundles = {bundle["key"]: bundle["name"] for bundle in served.choices()["bundles"]}
    nearest = {entry["gpu"]: bundles[entry["bundle"]] for entry in served.choices()["gpus"]}
    listed = {one["name"]: one["bundle"] for one in printed("gpus --json")}
    assert {gpu: name.split()[0] for gpu, name in nearest.items()} == listed | {OWN_GPU: "l40s"}
    assert answer(served, "gpt2-prefill", gpu="a100-pcie-40gb")["estimate"]["validity"] == "extrapolated"


LOAD = {"prompt": 512, "output": 64, "batch": 8}


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"model": "llama-3-8b", "gpu": "h100-sxm"}, "--gpu h100-sxm"),
        ({"model": "qwen3-32b", "gpu": "a100-sxm-80gb", "tensor_parallel": 2}, "--gpu a100-sxm-80gb --tensor-parallel 2"),
        (
            {"model": "llama-3-8b", "gpu": "l4", "weights": "fp8", "engine": "vllm-0.12"},
            "--gpu l4 --weights fp8 --engine vllm-0.12",
        ),
        ({"model": "llama-3.1-70b", "gpu": OWN_GPU}, f"--gpu {OWN_GPU}"),
    ],
)
def test_a_served_model_is_answered_as_by_the_command(served, settings, words):
    status, document = served.ask("/api/served", **LOAD, **settings)
    assert status == 200, document
    assert document == printed("llm", settings["model"], "--prompt 512 --output 64 --batch 8 --json", words)
    assert bool(document["state"]) == (settings["model"] == "llama-3.1-70b")


def test_every_offered_model_can_be_served(served):
    for model in served.choices()["models"]:
        status, document = served.ask(
            "/api/served", **LOAD, model=model, gpu="b200-sxm", tensor_parallel=8 if model == "deepseek-v3" else 1
        )
        assert status == 200, (model, document)

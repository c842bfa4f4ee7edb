"""The commands sweep, best, compare and explain, from files to text and exit status."""

import csv
import io
import json
import re
from dataclasses import replace

import pytest

from estimator import Footprint, load_bundle, write_workload
from estimator.bundle.files import save_bundle
from estimator.vocabulary.work import operator_work
from estimator.vocabulary.workload import UnknownOperator
from examples.gpt2_prefill import VOCABULARY, gpt2_prefill
from tests.estimator.estimating import fails, printed, run, tabled
from tests.estimator.traced import counted

BUNDLE = "a100-pcie-40gb-eager"


def layers():
    """GPT-2's layers without the output layer, whose vocabulary is wider than anything the bundle was fitted on."""
    whole = gpt2_prefill(8, 512)
    kept = [(o, c) for o, c in counted(whole) if not (o.family == "gemm" and o["n"] == VOCABULARY)]
    return replace(whole, operators=tuple(o for o, _ in kept), counts=tuple(c for _, c in kept))


@pytest.fixture(scope="module")
def workload(tmp_path_factory):
    path = tmp_path_factory.mktemp("workloads") / "gpt2_b8_s512.json"
    write_workload(layers(), path)
    return str(path)


def test_a_sweep_is_a_row_for_every_combination(workload):
    words = f"--bundle {BUNDLE} --freqs 600,900 --at batch=8,sequence=512 --batch 4,8 --precision bf16,fp32"
    status, out, err = run("sweep", workload, words, "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(row["batch"], row["precision"], row["asked_clock_mhz"]) for row in rows] == [
        (b, p, c) for b in ("4", "8") for p in ("bf16", "fp32") for c in ("600.0", "900.0")
    ]
    assert float(rows[0]["tokens_per_j"]) == pytest.approx(4 * 512 / float(rows[0]["energy_j"]))
    assert status == 0
    assert "no kernels in fp32 of gemm" in err


@pytest.mark.parametrize(
    "words", ["sweep --chart energy", "sweep --chart front", "best --goal latency --chart power", "explain --chart modules"]
)
def test_a_chart_without_a_value_is_refused(workload, tmp_path, words):
    bundle, out = tmp_path / "b.json", tmp_path / "x.svg"
    save_bundle(replace(load_bundle(BUNDLE), power=None, uncertainty={}), bundle)
    assert "no point has a value that this chart shows" in fails(words, workload, "--bundle", bundle, "-o", out)
    assert not out.exists()


@pytest.mark.parametrize("command", ["sweep", "best", "explain"])
def test_the_ending_of_the_output_names_its_form_and_pictures_stand_alone(workload, tmp_path, command):
    start = {
        "csv": b"workload,",
        "json": (b"[", b"{"),
        "svg": b"<svg xmlns=",
        "png": b"\x89PNG\r\n",
        "txt": (b"workload", b"least", b"gpt2"),
    }
    if command == "explain":
        start["csv"] = b"operator,"
    outs = [tmp_path / f"points.{ending}" for ending in start]
    for out, begin in zip(outs, start.values(), strict=True):
        words = ("--freqs", "900" if command == "explain" else "510:1410:90")
        assert run(command, workload, f"--bundle {BUNDLE}", words, "--out", out)[:2] == (0, "")
        assert out.read_bytes().startswith(begin)
    assert sorted(tmp_path.iterdir()) == sorted(outs)
    text = outs[2].read_text()
    assert not re.search(r"<script|<link|src=|url\(|https?://(?!www\.w3\.org/2000/svg)", text)
    assert "var(--" not in text
    assert "nan" not in re.sub(r"<title.*?</title>", "", text)


def test_best_keeps_its_limits_or_says_what_is_possible(workload):
    words = ("best", workload, f"--bundle {BUNDLE} --latency-limit 19.5 --power-limit 200")
    status, out, _ = run(words, "--json")
    answer = json.loads(out)
    low, high = answer["indistinguishable"]["low_clock_mhz"], answer["indistinguishable"]["high_clock_mhz"]
    assert (status, low <= answer["best"]["asked_clock_mhz"] <= high) == (0, True)
    assert answer["best"]["latency_s"] < 0.0195
    assert answer["best"]["power_w"] < 200
    assert f"cannot be told from it: {low:g} to {high:g} MHz" in run(words)[1]


def test_best_without_power_coefficients_says_so_and_answers_for_latency(workload, tmp_path):
    asked = ("best", workload, "--bundle", tmp_path / "latency.json")
    save_bundle(replace(load_bundle(BUNDLE), name="latency", power=None), asked[-1])
    for words in ("--goal edp", "--goal latency --power-limit 200"):
        assert "the bundle has no power coefficients" in fails(asked, words)
    assert "bundle latency has no power coefficients: the clock under a cap is unknown" in fails(asked[1:], "--power-cap 100")
    assert run(asked, "--goal latency")[0] in (0, 3)


def test_sizes_that_are_unknown_are_empty_or_null(tmp_path):
    bare, named = tmp_path / "layers.json", tmp_path / "layers_b8_s512.json"
    for path in (bare, named):
        write_workload(replace(layers(), name=path.stem), path)
    words = ("sweep", bare, named, f"--bundle {BUNDLE} --freqs 900")
    found = [(row["batch"], row["sequence"]) for row in tabled(words)]
    assert found == [("", ""), ("8", "512")]
    assert [(point["batch"], point["sequence"]) for point in printed(words)] == [(None, None), (8, 512)]
    assert "None" not in run(words)[1]
    assert "None" not in run("compare", bare, named, f"--bundle {BUNDLE}")[1]


def test_a_sweep_and_the_best_point_answer_what_can_run_and_name_what_cannot(workload):
    words = (workload, f"--bundle {BUNDLE} --freqs 510,1410 --json --precision")
    status, out, err = run("sweep", words, "bf16,fp8")
    points, alone = json.loads(out), printed("sweep", words, "bf16")
    assert status == 3
    assert [row["energy_j"] for row in points[:2]] == pytest.approx([row["energy_j"] for row in alone], rel=1e-12)
    for row in points[2:]:
        assert (row["precision"], row["latency_s"], row["sm_clock_mhz"]) == ("fp8", None, row["asked_clock_mhz"])
        assert "a100-pcie-40gb cannot run gemm" in row["warnings"]
    assert err.count("a100-pcie-40gb cannot run gemm") == 1
    status, out, err = run("best", words, "bf16,fp8")
    assert (status, json.loads(out)["points_within_limits"]) == (0, 2)
    assert "a100-pcie-40gb cannot run gemm" in err


@pytest.mark.parametrize("command", ["estimate", "sweep", "best", "compare", "llm"])
def test_gpus_of_a_list_that_cannot_run_are_named_and_the_others_answer(workload, command):
    load = "llama-3-8b --prompt 64 --output 8 --batch 1 --weights"
    words = load if command == "llm" else (workload, "--precision")
    asked = (() if command == "estimate" else command, words, "fp8")
    status, out, err = run(asked, "--gpu a100,h100,h200,v100")
    assert (status, err.count("left out: ")) == (0, 2)
    assert all(f"{name} cannot run gemm.linear fp8" in err and name not in out for name in ("a100-sxm-80gb", "v100-pcie-32gb"))
    assert "h100-sxm" in out or "h200-sxm" in out
    status, out, err = run(asked, "--gpu a100,v100 -q")
    assert (status, out, len(err.splitlines())) == (1, "", 1) or command == "sweep"
    assert "a100-sxm-80gb cannot run gemm.linear fp8" in err or (command, status) == ("sweep", 3)


@pytest.mark.parametrize("command", ["estimate", "sweep", "best", "compare", "explain"])
@pytest.mark.parametrize(
    "held_gib, unknown, words, status",
    [
        (39.0, 0.0, (), 0), (41.0, 0.0, (), 3), (1.0, 0.005, (), 0), (1.0, 0.02, (), 3), (1.0, 0.0, "--strict", 0),
        (1.0, 0.005, "--strict", 3), (1.0, 0.0, "--gpu h100,a10", 0), (39.0, 0.0, "--gpu own,h100,a10", 3),
        (90.0, 0.0, "--gpu own,a10", 3),
    ],
)  # fmt: skip
def test_an_answer_is_unusable_where_a_model_does_not_fit_or_a_part_is_missing(tmp_path, command, held_gib, unknown, words, status):
    whole = layers()
    written = sum(count * operator_work(o).write_byte / 2.0 for o, count in counted(whole))
    odd = (UnknownOperator(name="odd", count=1, elements=written * unknown / (1.0 - unknown)),) if unknown else ()
    path = tmp_path / "w.json"
    write_workload(replace(whole, name="w", footprint=Footprint(weights_byte=held_gib * 2**30), unknown=odd), path)
    if "--gpu" in words and command in ("explain", "best"):
        pytest.skip("answers for one GPU")
    more = "--freqs 900 --baselines" if command == "compare" else "--freqs 900"
    asked = (() if command == "estimate" else command, path, f"--bundle {BUNDLE}", more, words)
    found, out, err = run(asked)
    headline = out.splitlines()[1 if command == "best" else 0]
    assert found == status
    assert ("does not fit in the memory of" in headline) == (held_gib > 38.0 and status == 3)
    assert err.count("warning: ") <= 3
    assert "left out: the model" not in err


def test_a_changed_board_alone_is_compared_with_the_board_as_it_is(workload):
    words = ("compare", workload, f"--bundle {BUNDLE} --freqs 900 --set dram_bytes_per_s=3.11e12")
    status, out, err = run(words, "--json")
    answer = json.loads(out)
    (other,) = answer["others"]
    assert (status, answer["reference"]["validity"], other["validity"]) == (0, "measured", "forecast")
    assert "forecast: " in err
    assert other["ratios"]["latency"]["high"] < 1.0
    assert [line.split()[0] for line in run(words)[1].splitlines()[1:]] == ["validity", "measured", "forecast", "ratio"]


@pytest.mark.parametrize(
    "words, status, reason",
    [
        ("sweep", 2, "name workload files, or a --model"),
        ("sweep W --model gpt2", 2, "not both"),
        ("sweep W --batch 2:9000:1 --sequence 2:9000:1", 2, "combinations of batch"),
        ("sweep W --batch 4", 1, "--at batch=8,sequence=512"),
        ("sweep W --at batch=0", 2, "whole numbers of at least 1"),
        ("sweep W -o W", 1, "is what this command reads"),
        ("sweep W --gpu-spec own,h100-sxm --freqs 5000", 1, "can lock: 210 to 1410 MHz"),
        ("sweep W --gpu-spec own,h100-sxm --power-cap 300 --csv", 1, "power cap 300 W is above"),
        ("best W --precision fp8", 1, "a100-pcie-40gb cannot run gemm"),
        ("compare W --precision fp8,bf16", 1, "has no finite time on a100-pcie-40gb"),
        ("best W -o x.parquet", 2, "known: csv, json, txt, svg, png"),
        ("compare W", 2, "1 to compare; name 2 to 50"),
        ("explain W --freqs 600,900", 2, "one workload"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(tmp_path, monkeypatch, words, status, reason):
    monkeypatch.chdir(tmp_path)
    write_workload(replace(layers(), name="prefill"), tmp_path / "W")
    assert reason in fails(words, f"--bundle {BUNDLE} --quiet", status=status)
    assert [path.name for path in tmp_path.iterdir()] == ["W"]

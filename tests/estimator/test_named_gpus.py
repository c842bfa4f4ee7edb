"""GPUs by name: short names, the bundle that answers, its validity, power at rest of one's own board."""

import math
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from estimator import bundle_for, bundle_names, estimate, explain, load_bundle, load_gpu, with_precision
from estimator.bundle.files import VARIABLE, BundleHead, bundle_heads, bundle_path, head_of, save_bundle
from estimator.engine.board import board_tables
from estimator.model.power_limit import UNLIMITED_W
from estimator.serving.costs import single_step
from estimator.uncertainty.forecast import distance, forecast_std
from estimator.uncertainty.nearest import nearest_bundle
from estimator.vocabulary.gpu import simulated_uuid
from estimator.vocabulary.quantities import NORMAL_90
from estimator.vocabulary.specifications import gpu_names
from examples.gpt2_prefill import gpt2_prefill
from tests.estimator.estimating import fails, printed, question, run, tabled
from tests.estimator.synthetic import matmul, transformer, workload_of

A10 = load_bundle("a10-eager")
WORK = transformer(1024, 512, 4)


def test_every_spelling_of_a_gpu_is_one_gpu_s_alone():
    spellings = {
        (word.lower().removeprefix("nvidia ").replace(" ", "-"), name)
        for name in gpu_names()
        for word in (name, *load_gpu(name).short_names, *load_gpu(name).product_names)
    }
    assert len({word for word, _ in spellings}) == len(spellings)
    assert all(load_gpu(word).name == name for word, name in spellings)
    typed = {"h100": "h100-sxm", "A100": "a100-sxm-80gb", "4090": "rtx-4090", "v100": "v100-pcie-32gb", "RTX 3090": "rtx-3090"}
    assert {word: load_gpu(word).name for word in typed} == typed


@pytest.mark.parametrize("name", bundle_names())
def test_the_fixed_cost_of_a_kernel_is_no_hosts_time_to_launch_one(name):
    single = ("gemm", "conv", "softmax", "norm", "elementwise", "copy", "reduction")  # others run several kernels, or wait for each other
    costs = {key: one.coefficients["epsilon_s"] for key, one in load_bundle(name).groups.items() if key.startswith(single)}
    assert max(costs.values()) < 20e-6, max(costs, key=costs.get)


@pytest.mark.parametrize("name", bundle_names())
def test_a_product_in_fp32_is_one_on_cuda_cores_whether_a_workload_says_so_or_not(name):
    plain = matmul(2, 3136, 1984, "fp32")
    workloads = [workload_of(plain), workload_of(replace(plain, cuda_cores=True))]
    first, second = (estimate(one, load_bundle(name), host_launch_s=0.0)[0].latency_s for one in workloads)
    assert first == second


NEAREST = {
    "a40": "a10", "rtx-3090": "a10", "a100-sxm-40gb": "a100-pcie-40gb", "h100-pcie": "h100-sxm", "h200-nvl": "h200-sxm",
    "gb200": "b200-sxm", "b300-sxm": "b200-sxm", "l4": "l40s", "rtx-4090": "l40s", "rtx-5090": "l40s", "rtx-a6000": "a10", "l20": "l40s",
}  # fmt: skip


@pytest.mark.parametrize("asked", NEAREST)
def test_the_nearest_bundle_is_of_the_silicon_that_one_would_choose(asked):
    heads = {name: BundleHead(load_gpu(name), True, frozenset()) for name in {*NEAREST.values(), "v100-pcie-32gb"}}
    nearest = NEAREST[asked]
    assert nearest_bundle(load_gpu(asked), heads) == nearest_bundle(load_gpu(asked), heads, ["bf16", "int4_wo"]) == nearest
    heads[nearest] = BundleHead(load_gpu(nearest), False, frozenset())
    assert nearest_bundle(load_gpu(asked), heads) != nearest  # a forecast without power is of less use
    assert nearest_bundle(load_gpu(nearest), heads) == nearest


SEEN = {
    ("h100", "int4_wo"): "h200-sxm", ("h100", "sq"): "h200-sxm", ("h100", "fp8_static"): "h100-sxm", ("h100", "fp32"): "h100-sxm",
    ("a10", "int8_wo"): "a100-sxm-80gb", ("rtx-5090", "nvfp4"): "b200-sxm", ("a10", "bf16"): "a10-eager", ("l40s", "int8"): "l40s",
    ("a100-pcie", "fp32"): "a100-pcie-40gb-fp32", ("a100-80gb-pcie", "fp32"): "a100-pcie-40gb-fp32",
    ("a100-pcie", "tf32"): "a100-pcie-40gb-eager",
}  # fmt: skip


@pytest.mark.parametrize("asked, precision", SEEN)
def test_products_in_narrow_formats_come_from_a_board_on_which_some_were_seen(asked, precision):
    assert bundle_for(asked, [precision])[0].name == SEEN[asked, precision]


def test_a_served_model_comes_from_kernels_measured_alone():
    found = {gpu: bundle_for(gpu, ["bf16"], served=True)[0].name for gpu in ("a10", "a100-pcie", "v100", "h100", "4090")}
    assert found == {**dict.fromkeys(("a10", "a100-pcie", "v100"), "a100-sxm-80gb"), "h100": "h100-sxm", "4090": "l40s"}
    heads = {"own": BundleHead(load_gpu("t4"), True, frozenset({"fp16"})), "other": BundleHead(load_gpu("a10"), True, frozenset({"bf16"}))}
    assert nearest_bundle(load_gpu("t4"), heads, ["fp16"], served=True) == "own"


def test_formats_that_are_asked_together_are_answered_as_alone(workload):
    alone = [row for name in ("bf16", "int8") for row in tabled("sweep", workload, "--gpu h100,a10 --precision", name)]
    assert alone[:2] == tabled("sweep", workload, "--gpu h100,h100-sxm,a10 --precision bf16"), "a GPU by two of its names"
    together = tabled("sweep", workload, "--gpu h100,a10 --precision bf16,int8")
    assert sorted(map(str, alone)) == sorted(map(str, together))
    assert {row["bundle"].split()[0] for row in together} == {"h100-sxm", "h200-sxm", "a10-eager", "a100-sxm-80gb"}


def test_the_bundle_of_a_board_that_has_seen_only_some_of_the_formats_is_no_better_than_its_others():
    assert bundle_for("a100-pcie", ["bf16", "fp32"])[0].name == bundle_for("a100-pcie")[0].name == "a100-pcie-40gb-eager"


def test_no_other_bundle_states_a_smaller_deviation():
    gpus = [load_gpu(name) for name in gpu_names()]
    for asked in gpus:
        stated = sorted((distance(one, asked), math.hypot(*forecast_std(one, asked)), one.name) for one in gpus if one is not asked)
        assert [std for _, std, _ in stated] == sorted(std for _, std, _ in stated), (asked.name, stated)


def test_the_head_of_a_bundle_is_that_of_the_whole():
    assert bundle_heads() == {name: head_of(load_bundle(name)) for name in bundle_names()}
    assert bundle_heads()["h200-sxm"].formats >= {"bf16", "fp8", "int4_wo"}


def test_own_bundles_answer_first_simulated_ones_never(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    h100 = replace(A10, name="sim", gpu=load_gpu("h100-sxm"), gpu_uuid=simulated_uuid("h100-sxm"))
    save_bundle(h100, tmp_path / "sim.json")
    assert bundle_for("h100")[0].name == "h100-sxm"
    save_bundle(replace(A10, name="mine"), tmp_path / "zz-mine.json")
    assert [bundle_for(word)[0].name for word in ("a10", "a40", "a100-pcie")] == ["mine", "mine", "a100-pcie-40gb-eager"]
    save_bundle(replace(A10, name="ada", gpu=load_gpu("l40s"), power=None), tmp_path / "ada.json")
    assert [bundle_for(word)[0].name for word in ("l40s", "4090")] == ["ada", "l40s"]
    assert [bundle_for(word)[1] for word in ("l40s", "4090")] == [None, load_gpu("rtx-4090")]
    corrected = {"anchored": "forecast: corrected"}
    for name, told in {"lab-1": {}, "lab-2": corrected}.items():  # GPUs that are not shipped
        save_bundle(replace(A10, name=f"own-{name}", gpu=replace(A10.gpu, name=name), environment=told), tmp_path / f"{name}.json")
        assert bundle_for(f"NVIDIA {name}")[0].name == f"own-{name}"
    assert [one["latency_90"] for one in printed("gpus")[-2:]] == [None, None], "each is the board's own"
    assert estimate(WORK, bundle_for("lab-2")[0])[0].validity == "forecast"


def test_broken_bundles_of_the_store_are_named_and_the_others_answer(workload, tmp_path, monkeypatch):
    whole = bundle_path("h100-sxm").read_text()
    broken = {"cut": whole[:-9], "deep": '{"gpu": {"a":' + "[" * 10**5, "empty": '{"gpu": {"specification": {}}}'}
    (tmp_path / "store").mkdir()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "store"))
    for name, text in broken.items():
        (tmp_path / "store" / f"{name}.json").write_text(text)
    with pytest.warns(UserWarning, match="left out: bundle ") as warned:
        assert bundle_for("h100")[0].name == "h100-sxm"
    assert [name in str(one.message) for one, name in zip(warned, broken, strict=True)] == [True] * 3
    for words in ("gpus h100", (workload, "--gpu h100")):
        status, out, err = run(words)
        assert (status, "h100-sxm" in out, err.count("note: left out: bundle ")) == (0, True, 3)
    assert "cut.json: not valid JSON" in fails(workload, "--bundle cut")


def test_several_gpus_answer_in_one_list_each_with_its_bundle_and_validity(workload, tmp_path):
    own = tmp_path / "mine.toml"
    text = (load_gpu.__globals__["resource_folder"]("gpus") / "a10.toml").read_text()
    own.write_text(text.replace('name = "a10"', 'name = "mine"').replace("num_sms = 72", "num_sms = 80"))
    found = printed(workload, "--gpu", f"a10,h100-nvl,{own}")
    told = [(one["gpu"], one["bundle"], one["validity"]) for one in found]
    a10, h100 = (f"{name} {load_bundle(name).version}" for name in ("a10-eager", "h100-sxm"))
    assert told[1:] == [("h100-nvl", h100, "forecast"), ("mine", a10, "forecast")]
    assert told[0][:2] == ("a10", a10)
    assert found[1] == printed(workload, "--bundle h100-sxm --gpu-spec h100-nvl")
    assert found[0] == printed(workload, "--bundle a10-eager") == printed(workload, "--bundle a10-eager --gpu a10")
    own.write_text(text.replace("num_sms = 72", "num_sms = 80"))  # a file counts even under a known name
    assert printed(workload, "--gpu", own)["validity"] == "forecast"
    assert printed("gpus", own)[0]["latency_90"] > 1.0
    _, out, _ = run("explain", workload, "--gpu h100-nvl --csv")
    assert all(line.endswith(f",{h100},h100-nvl,forecast") for line in out.splitlines()[1:])
    points = printed("sweep", workload, "--gpu a10 --gpu h100-nvl")
    assert [(one["gpu"], one["validity"]) for one in points] == [(one["gpu"], one["validity"]) for one in found[:2]]
    head = run(workload, "--gpu h100-nvl")[1].splitlines()[0]
    assert f"bundle {h100}, gpu h100-nvl" in head
    assert head.endswith(", validity forecast")


@pytest.mark.parametrize(
    "words, status, message",
    [
        ((), 2, "name a --gpu, such as h100"),
        ("--gpu own", 2, "name a --gpu, such as h100"),
        ("--gpu a60", 1, "unknown GPU 'a60'; nearest: rtx-a6000, a40, a30; `estimate gpus` lists all; or describe it in a TOML file"),
        ("--gpu 'Tesla V100'", 1, "unknown GPU 'Tesla V100'; nearest: v100-pcie-32gb; "),
        (("--gpu", "?"), 1, "unknown GPU '?'; `estimate gpus`"),
        ("--gpu h100 --idle-power 700", 1, "idle power 700 W at 1980 MHz contradicts h100-sxm: "),
        ("--gpu a10 --set power_limit_w=30", 1, "W at rest, more than its limit, 30 W; state what it draws (--idle-power)"),
        ("--gpu h100 --idle-power 45", 1, "there it draws 48 W more than at its lowest clock"),
        ("--gpu h100 --idle-power 120 --power-cap 110", 1, "and less than its limit, 110 W; read it with a context"),
        ("--gpu h100 --idle-power 90@5000", 1, "SM clock 5000 MHz is outside what h100-sxm can lock"),
        ("--gpu h100 --idle-power 0", 2, "--idle-power"),
        ("--gpu h100,l4 --idle-power 60", 2, "was read on one board"),
        ("--gpu h100 --idle-power 90@", 2, "--idle-power"),
        ("--gpu l40s --freqs 600,2520 --idle-power 90", 2, "--idle-power was read at one of the clocks of --freqs: say at which, 90@MHZ"),
    ],
)
def test_what_cannot_be_is_one_line(words, status, message, workload):
    assert message in fails(workload, words, status=status)


def idle_w(**settings):
    answer = explain(question(WORK, A10, **settings))
    return answer.energy_parts_j["idle"] / answer.result.latency_s


def test_power_at_rest_that_was_read_replaces_the_rule_and_keeps_its_course_over_the_clock():
    gpu = load_gpu("l40s")
    expected = board_tables(A10, gpu).rest_w(np.array([600.0, 2520.0]))
    read = {clock: idle_w(gpu=gpu, sm_clock_mhz=(clock,), idle_power=(90.0, 2520.0)) for clock in (600.0, 2520.0)}
    assert read[2520.0] == pytest.approx(90.0)
    assert read[600.0] == pytest.approx(90.0 + expected[0] - expected[1])
    assert idle_w(gpu=gpu, sm_clock_mhz=(600.0,)) == pytest.approx(expected[0])


@pytest.mark.parametrize("freqs, at_mhz", [("--freqs 600", 600), ("", load_gpu("l40s").sm_clock_max_mhz)])
def test_a_reading_without_a_clock_is_of_the_asked_one(workload, freqs, at_mhz):
    words = (workload, f"--gpu l40s {freqs} --idle-power")
    assert printed(words, "90") == printed(words, f"90@{at_mhz}") != printed(words, "90@900")


@pytest.mark.parametrize("name, narrower", [("b200-sxm", True), ("h100-sxm", False), ("l40s", False), ("new", False), ("a10", False)])
def test_a_reading_narrows_a_forecast_that_rests_on_the_rule(name, narrower):
    gpu = replace(load_gpu("l40s"), name="new", process="") if name == "new" else None if name == "a10" else load_gpu(name)
    work = transformer(64, 128, 2)  # far from any limit
    at_mhz = 900.0
    rest = float(board_tables(A10, gpu or A10.gpu).rest_w(np.array([at_mhz]))[0])
    before, after = (
        estimate(work, A10, gpu=gpu, sm_clock_mhz=at_mhz, host_launch_s=0.0, idle_power=reading)[0] for reading in (None, (rest, at_mhz))
    )
    assert after.power_w == pytest.approx(before.power_w)
    widths = [math.log(one.power_w_high / one.power_w_low) / (2.0 * NORMAL_90) for one in (before, after)]
    stated = [forecast_std(A10.gpu, gpu or A10.gpu, known)[1] for known in (False, narrower)]
    assert widths[0] ** 2 - widths[1] ** 2 == pytest.approx(stated[0] ** 2 - stated[1] ** 2, rel=1e-3, abs=1e-9)
    assert (widths[1] < widths[0]) == narrower


@pytest.mark.parametrize("field", ["process", "memory"])
def test_a_process_or_memory_that_nobody_states_widens_a_forecast_of_power(field):
    stated = replace(load_gpu("h100-sxm"), name="own", idle_w=None)
    unstated = replace(stated, **{field: ""})
    assert forecast_std(A10.gpu, unstated)[1] > forecast_std(A10.gpu, stated)[1]
    assert board_tables(A10, unstated).rest_w(900.0) == board_tables(A10, stated).rest_w(900.0), "HBM unless it says otherwise"


def test_the_list_of_gpus_says_who_answers_and_how_well(repository):
    lines = {line.split()[0]: line for line in run("gpus")[1].splitlines()}
    assert [*lines] == ["name", *gpu_names()]
    assert "forecast from a10 " in lines["a40"]
    assert "own" in lines["a10"].split()
    h100, nvl, a10, old = printed("gpus h100 h100-nvl 'NVIDIA A10'", repository / "examples" / "m2075.toml")
    assert (h100["short_names"][0], h100["idle_power_w"], h100["idle_power_from"], h100["asleep_w"]) == ("h100", 118.22, "table", 68.0)
    assert [nvl["latency_90"], nvl["power_90"]] == pytest.approx(
        [math.exp(NORMAL_90 * std) for std in forecast_std(load_gpu(nvl["bundle_gpu"]), load_gpu("h100-nvl"))]
    )
    assert (a10["bundle"], a10["latency_90"], a10["idle_power_from"]) == ("a10-eager", None, "rule")
    assert a10["idle_power_w"] == pytest.approx(idle_w(power_cap_w=UNLIMITED_W))
    assert (old["name"], old["asleep_w"]) == ("m2075", None)
    assert "unknown GPU" in fails("gpus x1")


def test_power_asleep_is_in_no_estimate_and_in_no_bundle(tmp_path):
    gpu = load_gpu("h100-sxm")
    assert gpu.asleep_w
    one, other = (estimate(WORK, A10, gpu=board)[0] for board in (gpu, replace(gpu, asleep_w=1.0)))
    assert one == other
    save_bundle(replace(A10, gpu=gpu), tmp_path / "b.json")
    assert load_bundle(tmp_path / "b.json").gpu.asleep_w is None


def test_a_gpu_with_more_of_everything_is_no_slower():
    works = [with_precision(gpt2_prefill(8, 512), "fp16"), single_step("llama-3.1-8b", "decode", batch=8, weights="fp16").workload]
    figures, seconds = {}, {}
    for name in gpu_names():
        gpu = load_gpu(name)
        rates = gpu.usual_clock_mhz, gpu.dram_bytes_per_s, gpu.matrix_flop_per_clock("fp16", False), float(gpu.compute_capability)
        figures[name] = np.array((gpu.num_sms, gpu.l2_bytes, gpu.power_limit_w, *rates))
        for i, work in enumerate(works):
            bundle, other = bundle_for(name, served=i == 1)
            seconds[name, i] = estimate(work, bundle, gpu=other, host_launch_s=0.0)[0].latency_s
    larger = [(one, two) for one, two in permutations(figures, 2) if (figures[one] >= figures[two]).all()]
    assert len(larger) > 500
    slower = [(one, two, i) for one, two in larger for i in range(2) if seconds[one, i] > 1.12 * seconds[two, i]]
    assert slower == []

"""The Python interface: names and signatures, pickles, threads, notebooks; what it cannot take is a named error of one line."""

import inspect
import pickle
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import estimator
from estimator import (
    Asked,
    EstimatorError,
    Sizes,
    Variant,
    best,
    compare,
    estimate,
    explain,
    load_bundle,
    load_gpu,
    override_gpu,
    read_workload,
    sweep,
    variants,
    with_precision,
)
from estimator.engine.board import Settings
from examples.gpt2_prefill import gpt2_prefill
from tests.estimator.estimating import question
from tests.words import one_line

SETTINGS = {"sm_clock_mhz", "gpu", "collection", "power_cap_w", "host_launch_s", "efficiency", "idle_power"}
CLASSES = {
    "Asked", "Best", "Bundle", "Case", "Comparison", "Estimate", "Explanation", "Footprint", "Gain", "GpuSpec",
    "KernelEstimate", "KernelTable", "Operator", "ServedEstimate", "Serving", "Sizes", "Sweep", "Variant", "Workload",
}  # fmt: skip
SIGNATURES = {
    "best": "asked, goal, power_limit_w, latency_limit_s",
    "bundle_for": "gpu, formats, served",
    "bundle_names": "",
    "compare": "left, right",
    "estimate": "workload, bundle, settings",
    "explain": "asked",
    "load_bundle": "name_or_path",
    "load_gpu": "name_or_path",
    "make_operator": "family, operator, precision, details",
    "merge_operators": "sequence",
    "override_gpu": "spec, settings",
    "pareto_front": "points",
    "predict_kernels": "operators, bundle, gpu, sm_clock_mhz, warm, known, sustained, scale",
    "read_workload": "path, completion",
    "roofline_latency_s": "asked",
    "serve_llm": "serving, bundle, settings",
    "sweep": "workloads, bundle, gpu, settings",
    "sweep_chunks": "workloads, bundle, gpu, most_numbers, settings",
    "variants": "workload, at, batch, sequence, precision, attention",
    "with_attention": "workload, form",
    "with_precision": "workload, precision, wide",
    "with_sizes": "workload, at, to",
    "write_workload": "workload, path",
}
"""Functions with their parameters; a change here is a change for users and belongs in the change log."""

ERRORS = {"ArgumentError", "BundleError", "EstimatorError", "OperatingPointError", "SpecificationError", "WorkloadError"}


def test_names_parameters_and_settings_are_these_and_no_others():
    assert set(estimator.__all__) == set(SIGNATURES) | CLASSES | ERRORS | {"__version__"}
    assert {name: ", ".join(inspect.signature(getattr(estimator, name)).parameters) for name in SIGNATURES} == SIGNATURES
    assert set(Settings.__annotations__) == SETTINGS
    assert all(getattr(estimator, name).__doc__ for name in CLASSES)


BUNDLE = load_bundle("a100-pcie-40gb-eager")
ASKED = Asked(variant=Variant(workload=gpt2_prefill(8, 512), batch=8), bundle=BUNDLE, sm_clock_mhz=(900.0, 1020.0))


@pytest.mark.parametrize(
    "value",
    [
        BUNDLE,
        gpt2_prefill(2, 64),
        ASKED,
        estimate(gpt2_prefill(8, 512), BUNDLE)[0],
        sweep(ASKED.variant, BUNDLE),
        best(ASKED),
        compare(ASKED, ASKED),
        explain(ASKED),
    ],
    ids=lambda value: type(value).__name__,
)
def test_results_and_inputs_survive_a_pickle(value):
    copy = pickle.loads(pickle.dumps(value))
    assert type(copy) is type(value)
    assert content_of(copy) == content_of(value)


def content_of(value):
    """All fields of a result, of what they hold in turn, and arrays as lists."""
    if is_dataclass(value):
        return {field.name: content_of(getattr(value, field.name)) for field in fields(value) if field.compare}
    if isinstance(value, Mapping):
        return {key: content_of(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [content_of(item) for item in value]
    return repr(value.tolist() if isinstance(value, np.ndarray) else value)  # two nan are the same here


def test_threads_get_what_one_caller_gets():
    chosen = variants(gpt2_prefill(4, 333), at=Sizes(batch=4, sequence=333), batch=range(2, 18))
    alone = [sweep(one, BUNDLE, sm_clock_mhz=(600.0, 900.0)).energy_j for one in chosen]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda one: sweep(one, BUNDLE, sm_clock_mhz=(600.0, 900.0)).energy_j, chosen * 4))
    for number, energy in enumerate(together):
        np.testing.assert_array_equal(energy, alone[number % len(alone)])


def test_the_code_of_the_page_runs(repository, monkeypatch):
    monkeypatch.chdir(repository)
    page = (repository / "docs" / "how-to" / "use-from-python.md").read_text()
    names = {}
    exec(compile("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), "use-from-python.md", "exec"), names)
    assert {"points", "answer", "one", "why"} <= names.keys()


A10 = load_bundle("a10-eager")
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "llama-8b-decode.json"
WORKLOAD = gpt2_prefill(1, 128)
ANY = None
CAPPED = question(WORKLOAD, A10, power_cap_w=151.0)

WRONG_SETTINGS = {
    "a name for a GPU": ("gpu", "a10", "gpu must be a GpuSpec"),
    "a text for a clock": ("sm_clock_mhz", "900", "sm_clock_mhz must be a number"),
    "a mapping for clocks": ("sm_clock_mhz", {900.0: 1}, "sm_clock_mhz must be"),
    "a table of clocks": ("sm_clock_mhz", [[900.0]], "sm_clock_mhz must be a number or a list"),
    "no clocks": ("sm_clock_mhz", np.array([]), "no SM clock given"),
    "nan for a clock": ("sm_clock_mhz", float("nan"), "SM clock nan MHz is outside"),
    "a cap above the board's": ("power_cap_w", 151, "above the limit of a10, 150 W"),
    "a text for a cap": ("power_cap_w", "200", "power_cap_w must be a number in W"),
    "a power at rest without its clock": ("idle_power", 60.0, "a pair is needed, W and MHz"),
    "a text for power at rest": ("idle_power", ("60", 900), "idle_power must be"),
    "an absurd launch": ("host_launch_s", 1e30, "at most 1 s"),
    "a list of efficiencies": ("efficiency", [0.8], "efficiency must be a mapping"),
    "a text for an efficiency": ("efficiency", {"dram": "1"}, "efficiency of dram must be"),
}
"""A setting of an estimate, its wrong value, and what is said."""

WRONG = {
    "a path for a workload": (lambda: estimate("gpt2.json", A10), "workload must be a Workload, as read_workload gives it"),
    "a cap above the board's of a comparison": (lambda: compare(CAPPED, CAPPED), "above the limit of a10, 150 W"),
    "a list of settings": (lambda: override_gpu(A10.gpu, ["num_sms=1"]), "settings must be a mapping such as"),
    "the name of a board to change": (lambda: override_gpu("h100", {"num_sms": 1}), "spec must be a GpuSpec, as load_gpu gives it"),
    "a path for a workload to rewrite": (lambda: with_precision("gpt2.json", "bf16"), "workload must be a Workload"),
    "no precision": (lambda: with_precision(WORKLOAD, None), "precision must be a text such as bf16"),
    "no workloads": (lambda: sweep(ANY, A10), "workloads must be a Workload"),
    "nothing to sweep": (lambda: sweep([], A10), "nothing to sweep"),
    "no operators": (
        lambda: replace(WORKLOAD, name="none", operators=(), counts=()),
        "none: 0 operators and 0 counts; a workload has at least one",
    ),
    "a count too few": (lambda: replace(WORKLOAD, counts=WORKLOAD.counts[:-1]), "a count for each"),
    "names for bundles": (lambda: sweep(WORKLOAD, ["a10-eager"]), "bundle must be a Bundle"),
    "a size of a file that states none": (
        lambda: variants(replace(WORKLOAD, name="w"), batch=(2,)),
        "in Python at=Sizes(batch=8, sequence=512)",
    ),
    "a mapping for sizes": (lambda: variants(WORKLOAD, at={"batch": 1}, batch=(2,)), "at must be a Sizes("),
    "a workload for a variant": (lambda: Asked(variant=WORKLOAD, bundle=A10), "variant must be a Variant, as variants gives it"),
    "a name for a query's bundle": (lambda: replace(CAPPED, bundle="a10"), "bundle must be a Bundle"),
    "a text for a query's clock": (lambda: replace(CAPPED, sm_clock_mhz="900"), "sm_clock_mhz must be a number"),
    "workloads to compare": (lambda: compare(WORKLOAD, WORKLOAD), "a query must be an Asked"),
    "a workload to explain": (lambda: explain(WORKLOAD), "a query must be an Asked"),
    "a workload to choose for": (lambda: best(WORKLOAD), "asked must be an Asked, or several"),
    "nan for a limit": (lambda: best(question(WORKLOAD, A10), power_limit_w=float("nan")), "no point keeps nan W"),
    "no file": (lambda: read_workload(ANY), "path must be the name of a workload file"),
    "a number for a rule set": (lambda: read_workload(EXAMPLE, completion=3), "completion must be True or False"),
    "no name of a bundle": (lambda: load_bundle(ANY), "name_or_path must be the name of a bundle"),
    "a number for a GPU": (lambda: load_gpu(3), "name_or_path must be the name of a GPU"),
    **{name: (partial(estimate, WORKLOAD, A10, **{key: value}), reason) for name, (key, value, reason) in WRONG_SETTINGS.items()},
}


@pytest.mark.parametrize("case", sorted(WRONG))
def test_an_argument_of_the_wrong_kind_is_named(case):
    call, reason = WRONG[case]
    with one_line(EstimatorError) as caught:
        call()
    assert reason in str(caught.value)


@pytest.mark.parametrize("clocks", [900, 900.0, np.float32(900), [900], (900, 1005.0), np.array([900, 1005]), range(900, 960, 15)])
def test_numbers_of_every_kind_are_clocks(clocks):
    answers = estimate(WORKLOAD, A10, sm_clock_mhz=clocks)
    assert [answer.asked_clock_mhz for answer in answers] == [float(clock) for clock in np.atleast_1d(clocks)]
    assert explain(question(WORKLOAD, A10, sm_clock_mhz=clocks)).result == answers[0]

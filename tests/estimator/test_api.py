"""The Python interface: its names and signatures, pickles, threads, notebooks, and what it does without."""

import inspect
import pickle
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, is_dataclass

import numpy as np
import pytest

import estimator
from estimator import Asked, Sizes, Variant, best, compare, estimate, explain, load_bundle, sweep, variants
from estimator.engine.board import Settings
from examples.gpt2_prefill import gpt2_prefill

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
    "predict_kernels": "operators, bundle, gpu, sm_clock_mhz, warm, known, temperature_c, sustained, scale",
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
    page = (repository / "docs" / "how-to" / "use-from-python.md").read_text(encoding="utf-8")
    names = {}
    exec(compile("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), "use-from-python.md", "exec"), names)
    assert {"points", "answer", "one", "why"} <= names.keys()

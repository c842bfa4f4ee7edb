"""The Python interface: its names and signatures, pickles, threads, notebooks, and what it does without."""

import inspect
import pickle
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np
import pytest

import estimator
from estimator import Asked, Sizes, Variant, baseline_estimates, best, compare, estimate, explain, load_bundle, sweep, variants
from estimator.engine.board import Settings
from examples.gpt2_prefill import gpt2_prefill

SETTINGS = "sm_clock_mhz, gpu, power_cap_w, host_launch_s, efficiency"

LIMITS = "sm_clock_mhz_low, sm_clock_mhz_high, latency_s_low, latency_s_high, power_w_low, power_w_high, energy_j_low, energy_j_high"

SIGNATURES = {
    "Asked": f"variant, bundle, {SETTINGS}",
    "BaselineEstimate": "method, sm_clock_mhz, latency_s, power_w, energy_j, ratios",
    "Best": "points, fits, index, goal, alike, clocks_mhz, usual_clock_mhz, gains, within_limits, front",
    "Case": (
        "workload, model_family, bundle, gpu, simulated, batch, sequence, tokens, precision, attention, power_limit_w, "
        "fitted_clocks_mhz, validity, warnings, notes, too_large"
    ),
    "Comparison": "left, right, ratios",
    "Estimate": (
        "workload, bundle, gpu, asked_clock_mhz, sm_clock_mhz, latency_s, latency_s_std, power_w, power_w_std, energy_j, energy_j_std, "
        f"{LIMITS}, gpu_s, host_s, launch_bound_share, validity, warnings, notes, _kernels"
    ),
    "Explanation": "result, kernels, limits_s, energy_parts_j, waiting_s, capped_s",
    "Footprint": "weights_byte, optimizer_byte, cache_byte, passing_byte",
    "Gain": "ratio, low, high",
    "KernelEstimate": "operator, family, count, latency_s, power_w, energy_j, utilization, group, origin, outside_validity",
    "KernelTable": "latency_s, latency_ln_std, power_w, power_ln_std, groups, limited",
    "Operator": "family, operator, precision, shape, precision_out, precision_kv, cuda_cores, host_share, origin",
    "Sizes": "batch, sequence",
    "Sweep": (
        "cases, case, asked_clock_mhz, sm_clock_mhz, latency_s, latency_s_std, power_w, power_w_std, energy_j, energy_j_std, gpu_s, "
        f"launch_bound_share, {LIMITS}, above_limit"
    ),
    "Variant": "workload, batch, sequence, tokens, precision, attention",
    "Workload": "name, operators, counts, model_family, unknown, completion, warnings, notes, footprint",
    "baseline_estimates": "asked",
    "best": "asked, goal, power_limit_w, latency_limit_s, confidence",
    "bundle_names": "",
    "compare": "left, right",
    "estimate": "workload, bundle, settings",
    "explain": "asked",
    "load_bundle": "name_or_path",
    "load_gpu": "name_or_path",
    "make_operator": "family, operator, precision, where, details",
    "merge_operators": "sequence",
    "override_gpu": "spec, settings",
    "pareto_front": "points",
    "predict_kernels": "operators, bundle, gpu, sm_clock_mhz, warm, known, temperature_c",
    "read_workload": "path, completion, attention",
    "sweep": "workloads, bundle, gpu, settings",
    "sweep_chunks": "workloads, bundle, gpu, most_numbers, settings",
    "variants": "workload, at, batch, sequence, precision, attention",
    "with_attention": "workload, form, causal",
    "with_precision": "workload, precision",
    "with_sizes": "workload, at, to",
    "write_workload": "workload, path",
}
"""Stable names with their parameters; a change here is a change for users and belongs in the change log."""

FIELDS_PINNED_ELSEWHERE = {"Bundle", "GpuSpec"}  # their fields are those of files with schemas
ERRORS = {"ArgumentError", "BundleError", "EstimatorError", "OperatingPointError", "SpecificationError", "WorkloadError"}


def test_names_are_these_and_no_others() -> None:
    assert set(estimator.__all__) == set(SIGNATURES) | FIELDS_PINNED_ELSEWHERE | ERRORS | {"__version__"}


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_parameters_keep_their_names_and_order(name: str) -> None:
    value = getattr(estimator, name)
    assert ", ".join(inspect.signature(value).parameters) == SIGNATURES[name]
    assert value.__doc__


def test_the_settings_of_an_estimate_are_these() -> None:
    assert set(Settings.__annotations__) == set(SETTINGS.split(", "))


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
        baseline_estimates(ASKED)[0],
    ],
    ids=lambda value: type(value).__name__,
)
def test_results_and_inputs_survive_a_pickle(value: object) -> None:
    copy = pickle.loads(pickle.dumps(value))
    assert type(copy) is type(value)
    assert content_of(copy) == content_of(value)


def content_of(value: object) -> object:
    """All fields of a result, of what they hold in turn, and arrays as lists."""
    if is_dataclass(value):
        return {field.name: content_of(getattr(value, field.name)) for field in fields(value) if field.compare}
    if isinstance(value, Mapping):
        return {key: content_of(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [content_of(item) for item in value]
    return repr(value.tolist() if isinstance(value, np.ndarray) else value)  # two nan are the same here


def test_threads_get_what_one_caller_gets() -> None:
    chosen = variants(gpt2_prefill(4, 333), at=Sizes(batch=4, sequence=333), batch=range(2, 18))
    alone = [sweep(one, BUNDLE, sm_clock_mhz=(600.0, 900.0)).energy_j for one in chosen]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda one: sweep(one, BUNDLE, sm_clock_mhz=(600.0, 900.0)).energy_j, chosen * 4))
    for number, energy in enumerate(together):
        np.testing.assert_array_equal(energy, alone[number % len(alone)])


def test_the_code_of_the_page_runs(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    page = (repository / "docs" / "how-to" / "use-from-python.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    exec(compile("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), "use-from-python.md", "exec"), names)
    assert {"points", "answer", "one", "why"} <= names.keys()

"""The Python interface given what it cannot take: a named error of one line that says which argument and what it should be."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from estimator import (
    Asked,
    EstimatorError,
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
from examples.gpt2_prefill import gpt2_prefill
from tests.estimator.estimating import question
from tests.words import one_line

BUNDLE = load_bundle("a10-eager")
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "llama-8b-decode.json"
WORKLOAD = gpt2_prefill(1, 128)
ANY = None
CAPPED = question(WORKLOAD, BUNDLE, power_cap_w=151.0)

SETTINGS = {
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
    "a path for a workload": (lambda: estimate("gpt2.json", BUNDLE), "workload must be a Workload, as read_workload gives it"),
    "a cap above the board's of a comparison": (lambda: compare(CAPPED, CAPPED), "above the limit of a10, 150 W"),
    "a list of settings": (lambda: override_gpu(BUNDLE.gpu, ["num_sms=1"]), "settings must be a mapping such as"),
    "the name of a board to change": (lambda: override_gpu("h100", {"num_sms": 1}), "spec must be a GpuSpec, as load_gpu gives it"),
    "a path for a workload to rewrite": (lambda: with_precision("gpt2.json", "bf16"), "workload must be a Workload"),
    "no precision": (lambda: with_precision(WORKLOAD, None), "precision must be a text such as bf16"),
    "no workloads": (lambda: sweep(ANY, BUNDLE), "workloads must be a Workload"),
    "nothing to sweep": (lambda: sweep([], BUNDLE), "nothing to sweep"),
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
    "a workload for a variant": (lambda: Asked(variant=WORKLOAD, bundle=BUNDLE), "variant must be a Variant, as variants gives it"),
    "a name for a query's bundle": (lambda: replace(CAPPED, bundle="a10"), "bundle must be a Bundle"),
    "a text for a query's clock": (lambda: replace(CAPPED, sm_clock_mhz="900"), "sm_clock_mhz must be a number"),
    "workloads to compare": (lambda: compare(WORKLOAD, WORKLOAD), "a query must be an Asked"),
    "a workload to explain": (lambda: explain(WORKLOAD), "a query must be an Asked"),
    "a workload to choose for": (lambda: best(WORKLOAD), "asked must be an Asked, or several"),
    "nan for a limit": (lambda: best(question(WORKLOAD, BUNDLE), power_limit_w=float("nan")), "no point keeps nan W"),
    "no file": (lambda: read_workload(ANY), "path must be the name of a workload file"),
    "a number for a rule set": (lambda: read_workload(EXAMPLE, completion=3), "completion must be True or False"),
    "no name of a bundle": (lambda: load_bundle(ANY), "name_or_path must be the name of a bundle"),
    "a number for a GPU": (lambda: load_gpu(3), "name_or_path must be the name of a GPU"),
    **{name: (partial(estimate, WORKLOAD, BUNDLE, **{key: value}), reason) for name, (key, value, reason) in SETTINGS.items()},
}


@pytest.mark.parametrize("case", sorted(WRONG))
def test_an_argument_of_the_wrong_kind_is_named(case):
    call, reason = WRONG[case]
    with one_line(EstimatorError) as caught:
        call()
    assert reason in str(caught.value)


@pytest.mark.parametrize("clocks", [900, 900.0, np.float32(900), [900], (900, 1005.0), np.array([900, 1005]), range(900, 960, 15)])
def test_numbers_of_every_kind_are_clocks(clocks):
    answers = estimate(WORKLOAD, BUNDLE, sm_clock_mhz=clocks)
    assert [answer.asked_clock_mhz for answer in answers] == [float(clock) for clock in np.atleast_1d(clocks)]
    assert explain(question(WORKLOAD, BUNDLE, sm_clock_mhz=clocks)).result == answers[0]

"""Bundles that come with the package: sound, dated, with stated errors, and good for the example workload."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from estimator import bundle_names, estimate, load_bundle, make_operator, read_workload, with_precision
from estimator.bundle.files import bundle_path
from scripts.bundles import main
from tests.estimator.bundle_example import VALIDATOR
from tests.estimator.synthetic import workload_of

shipped = pytest.mark.parametrize("name", bundle_names())
EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "gpt2-prefill.json"


@shipped
def test_a_shipped_bundle_is_small_and_says_with_its_card_what_it_was_fitted_on_and_how_wrong_it_is(name):
    bundle, path = load_bundle(name), bundle_path(name)
    VALIDATOR.validate(json.loads(path.read_text()))
    assert path.stat().st_size <= 300_000
    assert bundle.name == name
    assert not bundle.simulated
    assert bundle.power is not None
    assert bundle.errors
    stated = bundle.uncertainty["latency"]
    assert stated.get("gpu", max(stated.get("groups", {}).values(), default=0.0)) > 0.02
    card = path.with_suffix(".md").read_text()
    assert bundle.digest in card
    for record in bundle.provenance.datasets:
        assert record.sha256
        assert "/" not in record.name
        assert record.name in card


@shipped
def test_a_shipped_bundle_estimates_the_example(name):
    bundle = load_bundle(name)
    workload = read_workload(EXAMPLE)
    if "bf16" not in bundle.gpu.tensor_flop_per_clock:
        workload = with_precision(workload, "fp16")
    answer = estimate(workload, bundle, sm_clock_mhz=900.0)[0]
    assert 0.003 < answer.latency_s < 0.1  # 4,096 tokens through GPT-2 small on a data-centre board
    assert 0.25 * bundle.gpu.power_limit_w < answer.power_w <= bundle.gpu.power_limit_w
    of_runs = "gpu" in bundle.uncertainty["latency"]
    assert 0 < answer.latency_s_std < (0.2 if of_runs else 0.5) * answer.latency_s


@shipped
def test_a_softmax_whose_rows_outgrow_a_warp_does_not_leap(name):
    """Rows of 2,056 elements have a block each, those of 2,048 a warp: on H200 they take 2 times as long, which no other board measured."""
    seconds = []
    for dim in (2048, 2056):
        operator = make_operator("softmax", "softmax", "fp32", rows=65536, dim=dim)
        workload = workload_of(operator, counts=(100.0,), name="softmax")
        seconds.append(estimate(workload, load_bundle(name), host_launch_s=0.0)[0].latency_s)
    assert seconds[1] < 4.0 * seconds[0]


@pytest.mark.parametrize("name", ["a10-eager", "v100-pcie-32gb"])
def test_a_bundle_without_its_data_or_its_prior_is_refused_in_one_line(name, tmp_path):
    found = CliRunner().invoke(main, [name, "--data", str(tmp_path), "--out", str(tmp_path)])
    assert (found.exit_code, found.output.count("\n"), "cannot be read" in found.output) == (1, 1, True)

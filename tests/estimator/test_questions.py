"""Best points, what cannot be told from them, limits, and what energy costs."""

import math
from pathlib import Path

import numpy as np
import pytest

from estimator.bundle.files import load_bundle
from estimator.formats import read_workload
from estimator.questions.choosing import best, compare
from estimator.questions.costs import Tariff, cost_columns
from estimator.questions.judging import Asked
from estimator.questions.sweeping import sweep
from estimator.transforms.variation import Variant, variants
from estimator.vocabulary.errors import OperatingPointError
from estimator.vocabulary.specifications import load_gpu
from examples.gpt2_prefill import gpt2_prefill

BUNDLE = load_bundle("a100-pcie-40gb-eager")
ASKED = Asked(variant=Variant(workload=gpt2_prefill(8, 512), batch=8, sequence=512, tokens=4096), bundle=BUNDLE)


def test_the_best_clock_needs_the_least_energy_of_all_clocks() -> None:
    answer = best(ASKED)
    assert answer.index == int(answer.points.energy_j.argmin())
    assert answer.points.asked_clock_mhz.min() >= BUNDLE.clocks_mhz[0]
    assert answer.gains["energy"].high < 1.0  # the published clock is no optimum on this board
    assert answer.gains["latency"].low > 1.0


@pytest.mark.parametrize(("power_w", "latency_s"), [(150.0, math.inf), (math.inf, 0.0205), (220.0, 0.02)])
def test_the_best_point_keeps_its_limits_with_the_asked_confidence(power_w: float, latency_s: float) -> None:
    half = best(ASKED, power_limit_w=power_w, latency_limit_s=latency_s)
    sure = best(ASKED, power_limit_w=power_w, latency_limit_s=latency_s, confidence=0.9)
    assert half.points.power_w[half.index] <= power_w
    assert half.points.latency_s[half.index] <= latency_s
    assert sure.fits.sum() < half.fits.sum()
    assert sure.within_limits > 0.8
    assert half.fits[half.alike].all()
    assert sure.fits[sure.alike].all()
    assert sure.points.energy_j[sure.index] >= half.points.energy_j[half.index]


def test_limits_that_nothing_keeps_are_refused_with_what_is_possible() -> None:
    with pytest.raises(OperatingPointError, match=r"no point keeps 20 W \(least: .* W\) and 1 ms \(least: .* ms\); allow more"):
        best(ASKED, power_limit_w=20.0, latency_limit_s=0.001)


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"goal": "beauty"}, "unknown goal"), ({"power_limit_w": -1.0}, "power limit"), ({"latency_limit_s": math.nan}, "latency limit"),
     ({"confidence": 1.0}, "confidence")],
)  # fmt: skip
def test_questions_that_make_no_sense_are_refused(change: dict[str, float], reason: str) -> None:
    with pytest.raises(OperatingPointError, match=reason):
        best(ASKED, **change)  # type: ignore[arg-type]


def test_energies_of_several_batches_are_compared_per_request() -> None:
    chosen = variants(gpt2_prefill(8, 333), batch=(2, 8, 32))
    answer = best([Asked(variant=one, bundle=BUNDLE, sm_clock_mhz=(900.0, 1020.0)) for one in chosen])
    per_request = answer.points.energy_j / np.array(answer.points.label("batch"))
    assert per_request[answer.index] == per_request.min()
    assert answer.points.label("batch")[answer.index] != 2  # a small batch leaves the board idle


def test_a_thousand_requests_cost_energy_times_price() -> None:
    points = sweep(ASKED.variant, BUNDLE, sm_clock_mhz=900.0)
    costs = cost_columns(points, Tariff(price_per_kwh=0.5, carbon_g_per_kwh=400.0, overhead=1.2))
    kwh = float(points.energy_j[0]) / 8 * 1000 * 1.2 / 3.6e6
    assert costs["kwh_per_1000"][0] == pytest.approx(kwh)
    assert costs["cost_per_1000"][0] == pytest.approx(0.5 * kwh)
    assert costs["carbon_kg_per_1000"][0] == pytest.approx(0.4 * kwh)
    assert costs["tokens_per_j"][0] == pytest.approx(4096 / float(points.energy_j[0]))
    unknown = cost_columns(sweep(gpt2_prefill(8, 512), BUNDLE, sm_clock_mhz=900.0))
    assert np.isnan(unknown["kwh_per_1000"]).all()
    assert np.isfinite(cost_columns(points, requests=4.0, tokens=100.0)["tokens_per_s"]).all()


@pytest.mark.parametrize("values", [{"overhead": 0.5}, {"price_per_kwh": -1.0}, {"carbon_g_per_kwh": math.inf}, {"overhead": math.nan}])
def test_impossible_tariffs_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(OperatingPointError):
        Tariff(**values)


def test_a_forecast_is_less_certain_than_a_prediction_and_a_new_architecture_less_than_a_sister_board() -> None:
    own, sister, other = (
        sweep(gpt2_prefill(8, 512), BUNDLE, gpu=gpu, sm_clock_mhz=1200.0) for gpu in (None, load_gpu("a100-sxm-80gb"), load_gpu("h100-sxm"))
    )
    relative = [float(one.latency_s_std[0] / one.latency_s[0]) for one in (own, sister, other)]
    power = [float(one.power_w_std[0] / one.power_w[0]) for one in (own, sister, other)]
    assert relative == sorted(relative)
    assert power == sorted(power)
    assert relative[2] > 2 * relative[0]


MODELS = ("optmodel_opt-1p3b_pbf16_b8_s1024", "optmodel_opt-1p3b_pbf16_b8_s2048")


@pytest.mark.parametrize("name", MODELS)
def test_bf16_is_four_to_five_times_as_fast_as_fp32_and_draws_more(name: str, shared_data: Path) -> None:
    """Published speed-up on A100-PCIe-40GB: 4 to 5 (EnergAIzer, section VI-D)."""
    narrow, wide = pair(name, shared_data, precision=("bf16", "fp32"))
    one = compare(narrow, wide)
    assert one.ratios["latency"].low < 5.0
    assert one.ratios["latency"].high > 4.0
    assert 3.5 < one.ratios["latency"].ratio < 6.5
    assert one.ratios["power"].ratio < 1.0


@pytest.mark.parametrize("name", MODELS[:2])
def test_fused_attention_is_another_two_to_three_times_as_fast_for_long_sequences_and_draws_more(name: str, shared_data: Path) -> None:
    """Published speed-up on A100-PCIe-40GB: 2 to 3, power rising (EnergAIzer, section VI-D)."""
    fused, eager = pair(name, shared_data, attention=("flash", "eager"))
    one = compare(fused, eager)
    assert one.ratios["latency"].low < 3.0
    assert one.ratios["latency"].high > 2.0
    assert one.ratios["power"].ratio < 1.0


def pair(name: str, shared_data: Path, **change: tuple[str, str]) -> list[Asked]:
    """A recorded workload in two forms at 900 MHz, where no power limit acts."""
    workload = read_workload(shared_data / "energaizer" / "workloads" / f"{name}_modeprefill.json")
    return [Asked(variant=one, bundle=BUNDLE, sm_clock_mhz=(900.0,)) for one in variants(workload, **change)]

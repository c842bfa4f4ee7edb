"""What the power equation leaves over: kept where it helps, bounded, wider where nothing was measured; on published measurements too."""

from dataclasses import replace

import numpy as np
import pytest

from estimator import load_gpu, predict_kernels
from estimator.engine.board import board_tables
from estimator.model.power_limit import LIMIT_SHARE
from estimator.model.residuals import POWER_TIER, log_power_corrections
from estimator.vocabulary.frozen import FrozenMapping
from fitter.bundle.data_facts import board_knowledge
from fitter.bundle.drafts import draft_from_rows
from fitter.latency.groups import fit_kernel_groups
from fitter.power.tier import with_power_tiers
from fitter.rows.selection import read_selection
from fitter.validate.predictions import predict_kernel_rows
from tests.fitter.measured import PLANTED, kernel_rows, selection_of, various_operators

A100 = load_gpu("a100-pcie-40gb")
STREAMS = [o for o in various_operators(240, seed=3) if o.family == "softmax"]


@pytest.fixture(scope="module")
def rows():
    """Rows of one group whose power lies a quarter below the equation, more so for long rows."""
    found = kernel_rows(PLANTED, STREAMS, noise=0.01)
    excess = 0.25 + 0.03 * np.log2(np.array([o["dim"] for o in found.row_operators()]) / 1024.0)
    return replace(found, power_w=found.power_w * np.exp(-excess))


@pytest.fixture(scope="module")
def bundle(rows):
    fit = fit_kernel_groups(rows, A100, seed=0)
    groups = {key: replace(PLANTED.groups["softmax"], coefficients=one.coefficients, rows=one.rows) for key, one in fit.groups.items()}
    return replace(PLANTED, groups=groups, residuals=fit.residuals)


def predicted(bundle, rows, **more):
    return predict_kernels(rows.row_operators(), bundle, A100, sm_clock_mhz=rows.sm_clock_mhz, warm=rows.l2_warm, **more)


def powers(bundle, rows):
    """Predicted power and its stated deviation."""
    table = predicted(bundle, rows)
    return table.power_w, table.power_ln_std


def halves(rows, bundle):
    """The bundle with tiers of every other row, and the other rows."""
    half = np.arange(len(rows)) % 2 == 0
    return with_power_tiers(bundle, rows.select(half), seed=0), rows.select(~half)


def test_neighbours_remove_what_is_left_over_and_stated_deviations_hold_others(rows, bundle):
    tiered, others = halves(rows, bundle)
    before, after = (np.abs(np.log(powers(b, others)[0] / others.power_w)) for b in (bundle, tiered))
    deviation = powers(tiered, others)[1]
    assert before.mean() > 0.15
    assert after.mean() < 0.03
    stated = np.isfinite(deviation)
    assert stated.mean() > 0.5
    assert np.mean(after[stated] <= 1.645 * deviation[stated]) > 0.8
    assert np.median(deviation[stated]) < 0.05


def test_power_that_the_limit_bounds_is_the_limit_and_is_marked(rows, bundle):
    lifted = with_power_tiers(bundle, replace(rows, power_w=rows.power_w * 2.0), seed=0)
    table, free = predicted(lifted, rows), predicted(lifted, rows, sustained=np.zeros(len(rows), dtype=bool))
    limited = table.sm_clock_mhz < rows.sm_clock_mhz
    assert 0 < limited.sum() < len(rows)
    held_w = LIMIT_SHARE * A100.power_limit_w
    assert np.all(table.power_w[limited] == held_w)
    assert np.all(table.power_w[~limited] < held_w)
    slower = table.latency_s / free.latency_s
    assert np.all(slower[~limited] == 1.0)
    assert np.all(slower[limited] >= 1.0)
    assert slower.max() > 1.05
    assert np.all(table.latency_ln_std >= free.latency_ln_std)


def test_power_that_grows_more_slowly_than_the_equation_is_found_and_stays_within_what_was_measured(rows, bundle):
    bare = powers(bundle, rows)[0]
    milder = replace(rows, power_w=bare.mean() * (bare / bare.mean()) ** 0.6)
    tiered, others = halves(milder, bundle)
    group = next(key for key, tier in tiered.residuals.items() if tier.get(POWER_TIER, {}).get("slope"))
    tier = tiered.residuals[group][POWER_TIER]
    assert tier["slope"] == pytest.approx(-0.4, abs=0.1)
    trend = {group: {POWER_TIER: FrozenMapping({**tier, "ln_error": (0.0,) * len(tier["ln_error"])})}}
    asked = np.array([tier["low_w"] / 9.0, tier["low_w"], tier["high_w"], tier["high_w"] * 9.0])
    correction, _ = log_power_corrections(STREAMS[:4], [group] * 4, trend, asked)
    assert correction[0] == correction[1] > correction[2] == correction[3]
    assert np.abs(np.log(powers(tiered, others)[0] / others.power_w)).mean() < 0.03


def test_latency_does_not_change_and_few_rows_tell_only_what_they_have_in_common(rows, bundle):
    tiered = with_power_tiers(bundle, rows, seed=0)
    bursts = np.zeros(len(rows), dtype=bool)  # too short for the power limit
    assert np.array_equal(predicted(bundle, rows, sustained=bursts).latency_s, predicted(tiered, rows, sustained=bursts).latency_s)
    few = with_power_tiers(bundle, rows.select(np.arange(10)), seed=0)
    assert not any(np.any(tier[POWER_TIER]["ln_error"]) for tier in few.residuals.values() if POWER_TIER in tier)
    errors = [np.abs(np.log(powers(one, rows)[0] / rows.power_w)).mean() for one in (bundle, few)]
    assert errors[1] < errors[0]


def test_a_less_certain_latency_makes_power_less_certain_but_never_more_than_its_own_share(rows, bundle):
    tiered = with_power_tiers(bundle, rows, seed=0)
    wide = {key: FrozenMapping({**tier, "near": 9.0 * tier["near"], "far": 9.0 * tier["far"]}) for key, tier in tiered.residuals.items()}
    narrow, loose = (predicted(one, rows) for one in (tiered, replace(tiered, residuals=FrozenMapping(wide))))
    own = log_power_corrections(rows.row_operators(), narrow.groups, tiered.residuals, narrow.power_w)[1]
    known = np.isfinite(narrow.power_ln_std)
    assert known.mean() > 0.5
    assert np.all(narrow.power_ln_std[known] >= own[known])
    assert np.all(loose.power_ln_std[known] > narrow.power_ln_std[known])
    assert np.all(loose.power_ln_std[known] <= np.hypot(own, loose.latency_ln_std)[known] * (1 + 1e-12))


GB200 = load_gpu("gb200")


@pytest.fixture(scope="module")
def trusted(shared_data):
    gb200 = read_selection([shared_data / "aiconfigurator" / "power.csv"], "gb200").kernels
    return gb200.select(np.isfinite(gb200.power_w) & ~gb200.at_limit)


@pytest.fixture(scope="module")
def kept(trusted):
    """Four fifths of the rows."""
    return np.random.default_rng(0).random(len(trusted)) < 0.8


@pytest.fixture(scope="module")
def free_bundle(trusted, kept):
    part = trusted.select(kept)
    return draft_from_rows(part, None, GB200, board_knowledge(selection_of(part), GB200), 0).bundle


def error(free_bundle, rows):
    """Mean error of power at predicted latency [%]."""
    found = predict_kernel_rows(free_bundle, rows)
    return float((found["predicted_power"] / found["measured_power"] - 1.0).abs().mean() * 100.0)


def without_neighbours(free_bundle):
    """The free_bundle with what kinds of kernels have in common, and nothing of shapes near by."""
    tiers = {}
    for group, tier in free_bundle.residuals.items():
        own = (
            {POWER_TIER: FrozenMapping({**tier[POWER_TIER], "ln_error": (0.0,) * len(tier[POWER_TIER]["ln_error"])})}
            if POWER_TIER in tier
            else {}
        )
        tiers[group] = FrozenMapping({**tier, **own})
    return replace(free_bundle, residuals=FrozenMapping(tiers))


def test_kinds_of_kernels_have_in_common_what_the_equation_lacks(free_bundle, trusted, kept):
    others = trusted.select(~kept)
    assert error(without_neighbours(free_bundle), others) < 7.0
    assert error(free_bundle, others) < 4.0


def test_idle_power_that_no_table_knows_lies_below_every_kernel(trusted, free_bundle):
    rest_w = board_tables(free_bundle, free_bundle.gpu).rest_w(free_bundle.gpu.clocks_mhz())
    assert rest_w.max() < trusted.power_w.min()

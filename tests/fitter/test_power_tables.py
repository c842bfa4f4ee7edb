"""Power of a board with a free clock, on published measurements: rows below the limit that the fit has not seen."""

from dataclasses import replace

import numpy as np
import pytest

from estimator import load_gpu
from estimator.engine.board import board_tables
from estimator.model.residuals import POWER_TIER
from estimator.vocabulary.frozen import FrozenMapping
from fitter.bundle.data_facts import board_knowledge
from fitter.bundle.drafts import draft_from_rows
from fitter.rows.selection import read_selection
from fitter.validate.predictions import predict_kernel_rows
from tests.fitter.measured import selection_of

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
def bundle(trusted, kept):
    part = trusted.select(kept)
    return draft_from_rows(part, None, GB200, board_knowledge(selection_of(part), GB200), 0).bundle


def error(bundle, rows):
    """Mean error of power at predicted latency [%]."""
    found = predict_kernel_rows(bundle, rows)
    return float((found["predicted_power"] / found["measured_power"] - 1.0).abs().mean() * 100.0)


def without_neighbours(bundle):
    """The bundle with what kinds of kernels have in common, and nothing of shapes near by."""
    tiers = {}
    for group, tier in bundle.residuals.items():
        own = (
            {POWER_TIER: FrozenMapping({**tier[POWER_TIER], "ln_error": (0.0,) * len(tier[POWER_TIER]["ln_error"])})}
            if POWER_TIER in tier
            else {}
        )
        tiers[group] = FrozenMapping({**tier, **own})
    return replace(bundle, residuals=FrozenMapping(tiers))


def test_kinds_of_kernels_have_in_common_what_the_equation_lacks(bundle, trusted, kept):
    others = trusted.select(~kept)
    assert error(without_neighbours(bundle), others) < 7.0
    assert error(bundle, others) < 4.0


def test_idle_power_that_no_table_knows_lies_below_every_kernel(trusted, bundle):
    rest_w = board_tables(bundle, bundle.gpu).rest_w(bundle.gpu.clocks_mhz())
    assert rest_w.max() < trusted.power_w.min()

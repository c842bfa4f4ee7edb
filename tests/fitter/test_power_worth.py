"""Capacitances are quoted only where the power equation says more than the mean of what was measured."""

from dataclasses import replace

import numpy as np

from fitter.bundle.power_evidence import power_notes
from tests.fitter.measured import kernel_rows, planted_bundle, various_operators

ROWS = kernel_rows(planted_bundle(), various_operators(90), noise=0.03)


def test_an_equation_that_follows_the_measurements_is_not_called_weak() -> None:
    assert power_notes(planted_bundle(), ROWS) == ()


def test_an_equation_that_a_constant_could_replace_is_called_weak() -> None:
    shuffled = np.random.default_rng(1).permutation(ROWS.power_w)
    (note,) = power_notes(planted_bundle(), replace(ROWS, power_w=shuffled))
    assert "should not be quoted" in note
    assert "\n" not in note


def test_few_rows_no_power_and_rows_at_the_limit_tell_nothing() -> None:
    shuffled = replace(ROWS, power_w=np.random.default_rng(1).permutation(ROWS.power_w))
    assert power_notes(planted_bundle(), shuffled.select(np.arange(20))) == ()
    assert power_notes(planted_bundle(), replace(shuffled, at_limit=np.ones(len(ROWS), dtype=bool))) == ()
    assert power_notes(planted_bundle(), replace(shuffled, power_w=shuffled.power_w * np.nan)) == ()
    assert power_notes(replace(planted_bundle(), power=None), shuffled) == ()
    assert power_notes(planted_bundle(), None) == ()

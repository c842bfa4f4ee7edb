"""Coefficients that data cannot tell apart are named, and none is driven to zero unsaid."""

from dataclasses import replace

import numpy as np

from estimator.bundles.content import Covariance
from fitter.bundle.collinearity import collinearity_notes, tied_sets
from tests.fitter.measured import planted_bundle


def covariance(correlation: np.ndarray, spread: np.ndarray) -> np.ndarray:
    return correlation * np.outer(spread, spread)


def test_only_strongly_correlated_coefficients_are_tied_whatever_their_units() -> None:
    correlation = np.array([[1.0, -0.97, 0.1], [-0.97, 1.0, 0.0], [0.1, 0.0, 1.0]])
    for unit in (1.0, 1e-9, 1e6):
        spread = np.array([1.0, unit, 3.0])
        assert tied_sets(("l2", "shared", "dram"), covariance(correlation, spread)) == [("l2", "shared")]


def test_a_chain_of_ties_is_one_set() -> None:
    rng = np.random.default_rng(0)
    common = rng.standard_normal(200)
    samples = np.stack(
        [common, -common + 0.05 * rng.standard_normal(200), common + 0.05 * rng.standard_normal(200), rng.standard_normal(200)]
    )
    assert tied_sets(("a", "b", "c", "d"), np.cov(samples)) == [("a", "b", "c")]


def test_constants_are_tied_to_nothing() -> None:
    assert tied_sets(("a", "b"), np.zeros((2, 2))) == []
    assert tied_sets((), np.zeros((0, 0))) == []


def test_a_bundle_names_ties_and_terms_at_zero() -> None:
    bundle = planted_bundle()
    assert bundle.power is not None
    matrix = np.eye(len(bundle.power.terms))
    matrix[0, 1] = matrix[1, 0] = -0.95
    power = replace(
        bundle.power,
        covariance=tuple(tuple(row) for row in matrix.tolist()),
        event_energy_j={**bundle.power.event_energy_j, "shared": 0.0},
    )
    latency = Covariance(names=("gemm.math", "gemm.l2"), covariance=((1.0, 0.99), (0.99, 1.0)))
    notes = collinearity_notes(replace(bundle, power=power, latency_parameters=latency))
    assert [note.split()[0] for note in notes] == ["latency", "power", "power"]
    assert "gemm.math with gemm.l2" in notes[0]
    assert f"{bundle.power.terms[0]} with {bundle.power.terms[1]}" in notes[1]
    assert "shared" in notes[2]
    plain = replace(
        bundle, latency_parameters=Covariance(), power=replace(bundle.power, covariance=tuple(map(tuple, np.eye(len(matrix)).tolist())))
    )
    assert collinearity_notes(plain) == ()

"""Coefficients of kernel groups: where they start, derivatives, recovery of planted values, floors and hosts."""

from dataclasses import replace

import numpy as np
import pytest

from estimator import load_gpu
from estimator.model.coefficients import COLUMN, Prior, coefficient_vector, group_key
from estimator.model.lowering import candidates_of, lower
from estimator.model.power import tensor_rate
from estimator.model.timeline import kernel_seconds, measured_seconds, warm_ratio
from estimator.vocabulary.quantities import HZ_PER_MHZ
from fitter.latency.group_fit import KernelProblem, fit_group, predicted_seconds
from fitter.latency.runs import MATRIX_GROUPS, prior_groups
from fitter.latency.sensitivities import log_measured
from fitter.priors import kernel_priors
from tests.estimator.synthetic import addition, matmul

GPU = load_gpu("h100-sxm")
CLOCK_HZ = GPU.sm_clock_max_mhz * 1e6

PLANTED = {
    "math": 1.15, "l2": 0.5, "dram": 1.2, "dram_activations": 1.1, "loop": 0.9, "prologue": 0.2, "epilogue": 1.1, "reduce": 0.8,
    "reduce_launch": 2.2, "exponent": 3.2, "wave_exponent": 0.3, "small_tile_exponent": 0.1, "epsilon_s": 2.6e-6,
}  # fmt: skip


STREAM = {"dram": 1.05, "l2": 1.0, "issue": 1.0, "loop": 1.0, "wait": 1.0, "waves": 0.7, "exponent": 2.5, "epsilon_s": 3e-6}


def products(count, seed=0):
    sizes = np.exp2(np.random.default_rng(seed).uniform(5, 13, (count, 3))).astype(int) // 8 * 8
    return [matmul(float(m), float(n), float(k)) for m, n, k in sizes]


def additions(count):
    sizes = np.exp2(np.random.default_rng(0).uniform(8, 27, count)).astype(int)
    return [addition(float(size), "fp32") for size in sizes]


def problem_of(operators, values, *, noise=0.0, warm=False, clocks=False):
    """Rows that the planted values give, with relative noise, at one clock or at several."""
    rng = np.random.default_rng(1)
    clock_hz = np.full(len(operators), CLOCK_HZ) * (rng.choice([0.4, 0.7, 1.0], len(operators)) if clocks else 1.0)
    candidates, settled = candidates_of(operators, GPU, None, 0.0)
    first = candidates.take(np.zeros(len(operators), dtype=np.int64))
    blank = KernelProblem(
        candidates=candidates, settled=settled, choice_hz=CLOCK_HZ, sm_clock_hz=clock_hz, weight=np.ones(len(operators)),
        ratio=warm_ratio(first, GPU, np.full(len(operators), warm)), latency_s=np.full(len(operators), np.nan),
    )  # fmt: skip
    exact = predicted_seconds(blank, values)
    return replace(blank, latency_s=exact * np.exp(noise * rng.standard_normal(len(exact))))


def fitted(problem, key, *, warm=False, one_clock=True):
    return fit_group(problem, kernel_priors(key, GPU, cuda_cores=False, warm=warm, one_clock=one_clock))


@pytest.fixture(scope="module")
def lowered():
    """Phases of products, their clocks and working sets."""
    problem = problem_of(products(60), PLANTED, clocks=True)
    phases = problem.candidates.take(np.arange(60) % problem.candidates.tile_area.shape[1])
    return phases, problem.sm_clock_hz, np.where(np.arange(60) % 2, 0.3, np.inf)


ALL_SET = PLANTED | {
    "quantise": 1.0, "offset_s": 2e-6, "floor_s": 9e-6, "l2_knee": 0.7,
    "l2_knee_exponent": 3.0, "strided": 1.3, "sfu": 0.4, "issue": 0.2, "start": 1.3, "ceiling": 1.4,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ALL_SET))
def test_derivatives_are_those_of_the_equations(name, lowered):
    phases, clock_hz, ratio = lowered
    vector = coefficient_vector(ALL_SET)
    value, slope = log_measured(phases, vector, clock_hz, ratio)

    def at(factor):
        moved = vector.copy()
        moved[COLUMN[name]] *= factor
        return np.log(measured_seconds(kernel_seconds(phases, moved, clock_hz, ratio), moved))

    np.testing.assert_allclose(value, at(1.0), rtol=1e-12)
    step = 1e-5
    difference = (at(np.exp(step)) - at(np.exp(-step))) / (2 * step)
    np.testing.assert_allclose(slope[:, COLUMN[name]], difference, atol=1e-7)


def test_planted_coefficients_come_back_with_free_tiles_and_predict_again():
    fit = fitted(problem_of(products(900), PLANTED, noise=0.02), "gemm.linear.bf16")
    test = problem_of(products(300, seed=7), PLANTED)
    assert np.abs(predicted_seconds(test, fit.coefficients) / test.latency_s - 1).mean() < 0.012
    for name in ("math", "dram", "loop", "epsilon_s"):
        assert abs(np.log(fit.coefficients[name] / PLANTED[name])) < 3 * fit.ln_std[name] + 0.02, name
        assert fit.identified[name], name


@pytest.mark.parametrize("least, known, near", [(0, {}, 0.1), (2**19, {"floor_s": Prior(centre=30e-6, width=0.01)}, 0.3)])
def test_a_hosts_launch_floor_is_found_or_known_from_others_and_the_kernels_own_cost_stays_small(least, known, near):
    operators = [operator for operator in additions(400) if operator["elements"] > least]
    problem = problem_of(operators, STREAM | {"floor_s": 30e-6, "offset_s": 18e-6}, noise=0.01)
    priors = kernel_priors("elementwise.add.fp32", GPU, cuda_cores=False, warm=False, one_clock=True)
    found = fit_group(problem, priors | known).coefficients
    assert found["floor_s"] == pytest.approx(30e-6, rel=0.02)
    assert found["offset_s"] + found["epsilon_s"] == pytest.approx(21e-6, rel=near)
    assert found["epsilon_s"] < 5e-6


def test_without_a_plateau_there_is_no_floor():
    large = [operator for operator in additions(400) if operator["elements"] > 2**19]
    fit = fitted(problem_of(large, STREAM, noise=0.01), "elementwise.add.fp32")
    assert fit.coefficients.get("floor_s", 0.0) == 0.0
    assert fit.coefficients.get("offset_s", 0.0) == 0.0


def test_warm_launches_show_how_much_fits_into_l2():
    planted = STREAM | {"l2_knee": 0.6, "l2_knee_exponent": 5.0}
    fit = fitted(problem_of(additions(500), planted, noise=0.01, warm=True), "elementwise.add.fp32", warm=True)
    assert fit.coefficients["l2_knee"] == pytest.approx(0.6, rel=0.1)


def test_a_fit_started_from_a_similar_one_ends_where_it_would_have():
    problem = problem_of(products(300), PLANTED, noise=0.02)
    priors = kernel_priors("gemm.linear.bf16", GPU, cuda_cores=False, warm=False, one_clock=True)
    first = fit_group(problem, priors)
    again = fit_group(problem, priors, start=first.coefficients, rounds=2)
    np.testing.assert_allclose(predicted_seconds(problem, again.coefficients), predicted_seconds(problem, first.coefficients), rtol=0.01)


ALIKE = ("a100-pcie-40gb", "a10", "l4", "t4", "v100-pcie-32gb")
"""Boards of four architectures whose matrix products have no persistent blocks; an SM's rate is 512, 1,024 or 2,048 flop per clock."""


@pytest.mark.parametrize("group", MATRIX_GROUPS)
def test_filling_a_pipeline_takes_as_many_clocks_on_every_board(group):
    rates = [tensor_rate(load_gpu(name)) for name in ALIKE]
    clocks = [prior_groups(load_gpu(name))[group]["prologue"] / rate for name, rate in zip(ALIKE, rates, strict=True)]
    assert len(set(rates)) > 1
    assert clocks == pytest.approx([clocks[0]] * len(ALIKE))


def seconds(operator, coefficients, clock_mhz=900.0):
    """GPU time of an operator on an A100."""
    table = np.array([coefficient_vector(coefficients)])
    phases = lower([operator], load_gpu("a100-pcie-40gb"), table)
    return float(kernel_seconds(phases, table, clock_mhz * HZ_PER_MHZ)[0])


def alone(operator):
    """Priors of an operator that was measured alone, at several locked clocks."""
    gpu = load_gpu("a100-pcie-40gb")
    return kernel_priors(group_key(operator), gpu, cuda_cores=False, warm=False, one_clock=False)


@pytest.mark.parametrize("elements", [1e4, 1e6, 1e8])
def test_a_memory_kernel_is_expected_to_take_as_long_in_a_run_as_alone(elements):
    operator = addition(elements)
    own = {name: prior.centre for name, prior in alone(operator).items()}
    assert seconds(operator, prior_groups(load_gpu("a100-pcie-40gb"))["elementwise"]) == pytest.approx(seconds(operator, own))


def test_phases_of_a_product_overlap_in_a_run_as_they_do_alone():
    operator = matmul(1024, 1024, 1024)
    assert prior_groups(load_gpu("a10"))["gemm"]["exponent"] == alone(operator)["exponent"].centre

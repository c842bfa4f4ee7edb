"""Planted coefficients and voltages are recovered from runs and kernels within the fit's stated errors, also with slowed runs."""

from dataclasses import replace

import numpy as np
import pytest

from estimator import load_gpu
from estimator.model.coefficients import CoefficientTable
from estimator.model.power import POWER_TERMS, SWITCHING_EXPONENT, warm_dram_share
from estimator.model.timeline import smooth_maximum
from estimator.vocabulary.gpu import ClockTable
from estimator.vocabulary.quantities import HZ_PER_MHZ
from fitter.bundle.runs import fit_runs
from fitter.latency.runs import (
    fit_latency,
    prior_groups,
    run_kernels,
    run_seconds,
    shifted,
)
from fitter.power.coefficients import fit_power
from fitter.power.rows import workload_power_rows
from fitter.power.solver import PRIOR, STATIC_TERMS, TERMS, PowerProblem
from fitter.power.voltage import infer_voltage
from tests.estimator.estimating import unlimited
from tests.estimator.synthetic import known_bundle, tables_of, transformer
from tests.fitter.measured import power_rows, workload_rows

SHAPES = [(tokens, width, layers) for tokens in (128, 512, 2048, 4096) for width in (512, 1024, 2048) for layers in (2, 12)]
PLANTED_SHIFT = np.array([0.3, 0.7, 0.15, 0.2, 0.0, 0.08, -0.1, 0.3, 0.2, 0.25, -0.3])
NOISE = 0.01
A100 = load_gpu("a100-pcie-40gb")
TABLES = tables_of(A100)
LEAKAGE_W_PER_K = 0.2
ENERGIES = np.array([PRIOR[term][0] for term in TERMS]) * np.array([1.05, 0.85, 1.2, 1.0, 1.2, 0.8, 1.0, 0.9, 1.2])


def runs():
    """Runs that obey the equations with planted coefficients, with noise of 1 %."""
    groups, host = shifted(prior_groups(), PLANTED_SHIFT)
    workloads = [transformer(*shape, name=f"w{i}", family=f"f{i % 3}") for i, shape in enumerate(SHAPES)]
    return workload_rows(unlimited(known_bundle(A100, groups, ENERGIES, host)), workloads, NOISE, clocks_mhz=(510.0, 900.0, 1200.0, 1410.0))


def power_of_runs(rows, board):
    return fit_power(workload_power_rows(rows, A100, fit_latency(rows, A100)), board)


def assert_energies_come_back(fit, slack, terms=TERMS):
    spread = np.sqrt(np.diag(fit.covariance))
    for term, found, planted, std in zip(TERMS, fit.values, ENERGIES, spread, strict=False):
        if term in terms:
            watt = 2.5 if term in STATIC_TERMS else 0.0  # of 250 W: the static terms share it out among themselves
            assert abs(found - planted) < 3.0 * std + slack * planted + watt, (term, found, planted, std)


def test_identified_lambdas_come_back_within_their_stated_uncertainty():
    fit = fit_latency(runs(), A100)
    for (name, std), found, planted in zip(fit.ln_std.items(), fit.log_shift, PLANTED_SHIFT, strict=True):
        assert abs(found - planted) < 3.5 * std + 0.03, name
    known = {name for name, decided in fit.identified.items() if decided}
    assert {"host_launch", "math.gemm", "dram"} <= known
    assert "math.conv" not in known  # no run holds a convolution
    assert fit.scales == {"planted": (0.0, 0.0)}  # the only laboratory needs no scale


def test_planted_energies_come_back_within_their_stated_uncertainty():
    fit = power_of_runs(runs(), TABLES)
    assert_energies_come_back(fit, 0.05)
    assert fit.exponent == 3.0


def test_power_follows_an_inferred_voltage_where_the_board_reports_none():
    rows = runs()
    fit = power_of_runs(rows.select(rows.sm_clock_asked_mhz != 1200.0), replace(TABLES, voltage_v=None))
    found, true, ends = fit.tables.voltage_v, A100.voltage_v, np.array([900.0, 1410.0])
    # planted power follows V³, an inferred voltage V²: it stands for the 1.5th power of the true ratio
    assert np.divide(*found.at(ends)) == pytest.approx(np.divide(*true.at(ends)) ** 1.5, rel=0.1)


def test_covariances_are_symmetric_however_few_the_rows():
    for count in (1, 2, 3):
        bundle = fit_runs(runs().select(np.arange(count)), A100, TABLES)
        for covariance in map(np.array, (bundle.latency_parameters.covariance, bundle.power.covariance)):
            assert np.array_equal(covariance, covariance.T)
            assert np.linalg.eigvalsh(covariance).min() > -1e-9


def kernels():
    """Kernels of twelve kinds at three clocks that obey the equations with planted energies and leakage."""
    rng = np.random.default_rng(0)
    kind = np.repeat(np.arange(12), 30)
    count = len(kind)
    mix = rng.uniform(0.1, 1.0, (12, len(POWER_TERMS)))[kind] * rng.uniform(0.5, 1.0, (count, 1))
    mix[:, 1] = mix[:, 0]  # both parts of DRAM's energy belong to the same bytes
    rows = power_rows(
        np.tile([510.0, 900.0, 1410.0], count // 3),
        event_rate=mix * 6.0 / (ENERGIES[: len(POWER_TERMS)] * 1e-12),  # each term alone would draw about 6 W
        warm_ratio=np.exp(rng.uniform(-1.5, 1.5, count)),
        busy=rng.uniform(0.5, 1.0, count),
        kind=np.array([f"kind {i}" for i in kind]),
    )
    point, watt = TABLES.at(rows.clock_mhz), power_by(ENERGIES, rows)
    warmer_k = 0.08 * watt + rng.normal(0.0, 3.0, count)
    watt += LEAKAGE_W_PER_K * point.voltage_ratio**3 * warmer_k
    return replace(rows, power_w=watt * np.exp(0.5 * NOISE * rng.standard_normal(count)))


def power_by(values, rows, exponent=2.0):
    return TABLES.at(rows.clock_mhz).idle_w + PowerProblem(rows=rows, tables=TABLES, priors=PRIOR).design(exponent) @ values


def test_columns_are_watts_by_the_power_equation():
    """DRAM's own energy does not follow the core's voltage; traffic falls where operands stay in L2."""
    rows = kernels().select(np.arange(360) < 30)
    problem = PowerProblem(rows=rows, tables=TABLES, priors=PRIOR)
    found, point = problem.design(2.0), TABLES.at(rows.clock_mhz)
    core = point.voltage_ratio**2
    share = warm_dram_share(rows.warm_ratio)
    np.testing.assert_allclose(found[:, 0], rows.event_rate[:, 0] * share * 1e-12)
    np.testing.assert_allclose(found[:, 1], rows.event_rate[:, 1] * share * core * 1e-12)
    np.testing.assert_allclose(found[:, 3:7], rows.event_rate[:, 3:] * 1e-12 * core[:, None])
    static = np.column_stack([rows.busy * core * rows.clock_mhz / 900.0, point.idle_ratio])
    np.testing.assert_allclose(found[:, 7:], static)


def test_leakage_of_a_warmer_die_is_part_of_the_energies_and_moves_no_power():
    rows = kernels()
    fit = fit_power(rows, TABLES)
    assert fit.exponent == pytest.approx(2.0, abs=0.6)
    assert np.abs(power_by(fit.values, rows, fit.exponent) / rows.power_w - 1.0).mean() < 0.015  # noise alone: 0.004
    assert_energies_come_back(fit, 0.1, TERMS[2:])


def test_a_kind_of_kernel_that_is_counted_wrongly_widens_the_stated_deviations():
    rows, tensor = kernels(), TERMS.index("tensor")
    rate = rows.event_rate.copy()
    rate[rows.kind == "kind 3", tensor] *= 2.0
    honest, wrong = (fit_power(one, TABLES) for one in (rows, replace(rows, event_rate=rate)))
    assert wrong.covariance[tensor, tensor] > 2.0 * honest.covariance[tensor, tensor]
    assert abs(wrong.values[tensor] - ENERGIES[tensor]) < 3.0 * np.sqrt(wrong.covariance[tensor, tensor])


@pytest.fixture(scope="module")
def planted_rows():
    return runs()


def paced(rows, host_launch_s, slow_runs):
    """Latencies of `rows` become those of a host at `host_launch_s`, a share of them a quarter slower.  Share of runs it paces."""
    gpu = rows.gpus[0]
    groups, host = shifted(prior_groups(), PLANTED_SHIFT)
    kernels = run_kernels(rows.workloads, rows.workload_index, rows.clock_mhz(gpu) * HZ_PER_MHZ, gpu, groups)
    gpu_s, host_s = run_seconds(kernels, CoefficientTable(groups).vectors, host_launch_s)
    rng = np.random.default_rng(0)
    pace = np.where(rng.random(len(rows)) < slow_runs, 1.25, 1.0)
    rows.latency_s[:] = smooth_maximum(gpu_s, host_s * pace, host.overlap_exponent) * np.exp(NOISE * rng.standard_normal(len(rows)))
    return gpu, float(np.mean(host_s > 1.3 * gpu_s))


@pytest.mark.parametrize("host_launch_s", [20e-6, 36e-6, 45e-6, 60e-6])
def test_the_launch_cost_comes_back_and_runs_that_a_host_slowed_move_it_less_than_they_are_slower(planted_rows, host_launch_s):
    for slow_runs, tolerance in ((0.0, 0.015), (0.15, 0.1)):
        gpu, host_paced = paced(planted_rows, host_launch_s, slow_runs)
        assert host_paced > 0.15  # otherwise nothing is tested
        assert fit_latency(planted_rows, gpu).host.launch_s == pytest.approx(host_launch_s, rel=tolerance)


KERNELS = 24
POWER_NOISE = 0.02

SWEEPS = {"510-1410": (510.0, 900.0, 1410.0), "900-1410": (900.0, 1155.0, 1410.0), "1000-1980": (1000.0, 1500.0, 1980.0)}
"""Sweeps of three clocks, of which a fit that bounds the knee in absolute clocks refuses all three."""


def planted(clocks, knee, slope):
    """A flat and then rising voltage, 0.8 V where flat."""
    grid = np.linspace(clocks[0], clocks[-1], 60)
    start = knee * clocks[-1]
    value = 0.8 * (1.0 + slope * np.clip((grid - start) / (clocks[-1] - start), 0.0, 1.0))
    return ClockTable(sm_clock_mhz=tuple(grid.tolist()), value=tuple(value.tolist()), source="planted")


def board(voltage, clock_mhz):
    return replace(tables_of(A100, clock_mhz), voltage_v=voltage, idle_w=None)


def sweep_rows(clocks, voltage, seed):
    """Kernels at every clock, their power by the planted curve with noise."""
    rng = np.random.default_rng(seed)
    clock = np.tile(clocks, KERNELS)
    load = np.repeat(rng.uniform(0.1, 1.0, (KERNELS, len(TERMS) - 2)), len(clocks), axis=0)
    centres = np.array([PRIOR[term][0] for term in TERMS])
    rate = load * (40.0 / centres[:-2]) * 1e12 * (clock / clocks[-1])[:, None]
    count = len(clock)
    rows = power_rows(clock, event_rate=rate, kind=np.repeat(np.arange(KERNELS), len(clocks)).astype(str))
    tables = board(voltage, clocks[0])
    problem = PowerProblem(rows=rows, tables=tables, priors=PRIOR)
    watt = tables.at(clock).idle_w + problem.design(SWITCHING_EXPONENT)[:, : len(TERMS)] @ centres
    return replace(rows, power_w=watt * np.exp(POWER_NOISE * rng.standard_normal(count)))


def inferred(clocks, voltage, seed=0, **changed):
    rows = replace(sweep_rows(clocks, voltage, seed), **changed)
    return infer_voltage(PowerProblem(rows=rows, tables=board(None, clocks[0]), priors=PRIOR))


@pytest.mark.parametrize("clocks", SWEEPS.values(), ids=SWEEPS)
def test_three_clocks_tell_the_rise(clocks):
    true = planted(clocks, knee=0.7, slope=0.25)
    ends = np.array([clocks[0], clocks[-1]])
    wanted = float(np.divide(*true.at(ends)[::-1]))
    found = [table.at(ends) for seed in range(4) if (table := inferred(clocks, true, seed)) is not None]
    assert [high / low for low, high in found] == pytest.approx([wanted] * 4, abs=0.08)


@pytest.mark.parametrize("clocks", [(900.0, 1410.0), (1400.0, 1405.0, 1410.0)])
def test_fewer_than_three_different_clocks_tell_nothing(clocks):
    assert inferred(clocks, planted((900.0, 1410.0), knee=0.7, slope=0.3)) is None


def test_clocks_that_nobody_locked_tell_nothing():
    """A limit lowers the clock of some kernels only: their energies and the voltage cannot be told apart."""
    clocks = SWEEPS["510-1410"]
    assert inferred(clocks, planted(clocks, knee=0.7, slope=0.3), asked_mhz=np.full(KERNELS * len(clocks), np.nan)) is None


def test_power_that_does_not_rise_beyond_the_clock_is_no_voltage():
    clocks = SWEEPS["510-1410"]
    assert inferred(clocks, planted(clocks, knee=0.7, slope=0.0)) is None

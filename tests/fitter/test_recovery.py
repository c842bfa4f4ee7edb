"""Planted coefficients come back from runs of whole workloads, within what the fit says of itself."""

from dataclasses import replace

import numpy as np
import pytest

from estimator.model.power import POWER_TERMS, BoardTables, warm_dram_share
from estimator.questions.estimates import estimate
from estimator.vocabulary.gpu import GpuSpec
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.specifications import load_gpu
from fitter.bundle.runs import MOST_FOLDS, fit_runs, stated_uncertainty, workload_folds
from fitter.latency.runs import TIED, fit_latency, prior_groups, shifted
from fitter.power.coefficients import fit_power
from fitter.power.rows import workload_power_rows
from fitter.power.solver import PRIOR, TERMS, PowerRows
from fitter.rows.columns import WorkloadRows
from tests.estimator.estimating import unlimited
from tests.estimator.synthetic import known_bundle, transformer

SHAPES = [(tokens, width, layers) for tokens in (128, 512, 2048, 4096) for width in (512, 1024, 2048) for layers in (2, 12)]
PLANTED_SHIFT = np.array([0.3, 0.7, -0.15, 0.2, 0.0, 0.08, -0.1, 0.2, 0.25, -0.3])
PLANTED_FACTOR = np.array([1.05, 0.8, 1.3, 1.0, 1.4, 0.7, 1.0, 0.9, 1.2])
NOISE = 0.01
CLOCKS_MHZ = (510.0, 900.0, 1200.0, 1410.0)


@pytest.fixture(scope="module")
def a100() -> GpuSpec:
    return load_gpu("a100-pcie-40gb")


def planted_energies() -> Array:
    planted: Array = np.array([PRIOR[term][0] for term in TERMS]) * PLANTED_FACTOR
    return planted


def runs(gpu: GpuSpec, seed: int = 0, noise: float = NOISE) -> WorkloadRows:
    """Runs that obey the equations with planted coefficients, with noise of 1 %."""
    groups, host = shifted(prior_groups(), TIED, PLANTED_SHIFT)
    bundle = known_bundle(gpu, groups, planted_energies(), host)
    workloads = tuple(transformer(*shape, name=f"w{i}", family=f"f{i % 3}") for i, shape in enumerate(SHAPES))
    rng = np.random.default_rng(seed)
    index, clocks, seconds, joules = [], [], [], []
    for i, workload in enumerate(workloads):
        for clock in CLOCKS_MHZ:
            answer = estimate(workload, unlimited(bundle), sm_clock_mhz=clock)[0]
            index.append(i)
            clocks.append(clock)
            seconds.append(answer.latency_s * np.exp(noise * rng.standard_normal()))
            joules.append(answer.power_w * seconds[-1] * np.exp(noise * rng.standard_normal()))
    count = len(index)
    nothing, ones = np.full(count, np.nan), np.ones(count)
    return WorkloadRows(
        workloads=workloads,
        workload_index=np.array(index),
        gpus=(gpu.name,),
        gpu_index=np.zeros(count, dtype=np.int64),
        sm_clock_asked_mhz=np.array(clocks),
        sm_clock_measured_mhz=np.array(clocks),
        latency_s=np.array(seconds),
        energy_j=np.array(joules),
        raw_latency_s=np.array(seconds),
        raw_energy_j=np.array(joules),
        iterations=ones * 1000,
        temperature_c=nothing,
        startup_s=np.zeros(count),
        planned_latency_s=nothing,
        perturbed=np.zeros(count, dtype=np.bool_),
        weight=ones,
        sources=("planted",),
        source_index=np.zeros(count, dtype=np.int64),
        row=np.arange(1, count + 1),
    )


def tables(gpu: GpuSpec) -> BoardTables:
    return BoardTables(voltage_v=gpu.voltage_v, idle_w=gpu.idle_w, reference_clock_mhz=900.0, power_limit_w=gpu.power_limit_w)


def test_identified_lambdas_come_back_within_their_stated_uncertainty(a100: GpuSpec) -> None:
    fit = fit_latency(runs(a100), a100)
    spread = np.sqrt(np.diag(fit.covariance))
    for name, found, planted, std in zip(fit.names, fit.log_shift, PLANTED_SHIFT, spread, strict=True):
        assert abs(found - planted) < 3.5 * std + 0.03, (name, found, planted, std)
    for name in ("host_launch", "math.gemm", "dram"):
        assert fit.identified[name], name
    assert not fit.identified["math.conv"]  # no run holds a convolution


def test_planted_energies_come_back_within_their_stated_uncertainty(a100: GpuSpec) -> None:
    rows = runs(a100)
    latency = fit_latency(rows, a100)
    fit = fit_power(workload_power_rows(rows, a100, latency), tables(a100), 900.0)
    spread = np.sqrt(np.diag(fit.covariance))
    for term, found, planted, std in zip(TERMS, fit.values, planted_energies(), spread, strict=True):
        assert abs(found - planted) < 3.0 * std + 0.05 * planted, (term, found, planted, std)
    assert fit.voltage_exponent == 3.0
    assert np.mean(np.abs(fit.relative_residuals)) < 2.0 * NOISE


def test_predictions_of_unseen_runs_are_as_good_as_the_noise(a100: GpuSpec) -> None:
    fit = fit_runs(runs(a100), a100, tables(a100))
    fresh = runs(a100, seed=1, noise=0.0)
    for i in range(0, len(fresh), 5):
        answer = estimate(fresh.row_workloads()[i], unlimited(fit.bundle), sm_clock_mhz=float(fresh.sm_clock_asked_mhz[i]))[0]
        assert answer.latency_s == pytest.approx(fresh.latency_s[i], rel=0.03)
        assert answer.power_w == pytest.approx(fresh.power_w[i], rel=0.03)


def test_a_failed_run_cannot_bend_the_fit(a100: GpuSpec) -> None:
    rows = runs(a100)
    clean = fit_latency(rows, a100)
    rows.latency_s[7] *= 10.0
    bent = fit_latency(rows, a100)
    assert np.abs(bent.log_shift - clean.log_shift).max() < 0.05


@pytest.mark.parametrize("workloads", [1, 7, MOST_FOLDS, 3 * MOST_FOLDS + 1])
def test_every_workload_is_left_out_once_and_alone_while_they_are_few(workloads: int) -> None:
    one = runs(load_gpu("a100-pcie-40gb"))
    index = np.repeat(np.arange(workloads), 2)
    rows = replace(one.select(np.zeros(len(index), dtype=np.int64)), workload_index=index, workloads=one.workloads[:1] * workloads)
    folds = np.array(workload_folds(rows, seed=3))
    assert folds.sum(axis=0).tolist() == [1] * len(index)
    assert (folds[:, ::2] == folds[:, 1::2]).all()  # both runs of a workload
    assert len(folds) == min(workloads, MOST_FOLDS)
    assert folds.sum(axis=1).max() <= 2 * -(-workloads // MOST_FOLDS)


def test_an_effect_that_the_model_lacks_widens_the_stated_intervals(a100: GpuSpec) -> None:
    rows = runs(a100)
    rows = rows.select(rows.sm_clock_asked_mhz <= 900.0)  # planted runs know no power limit
    honest = stated_uncertainty(rows, a100, tables(a100), seed=0)
    extra = np.array([0.35 if i % 4 == 0 else 0.0 for i in rows.workload_index])  # a module that works in every fourth model
    rows.energy_j[:] *= 1.0 + extra
    surprised = stated_uncertainty(rows, a100, tables(a100), seed=0)
    assert float(str(surprised["power"]["gpu"])) > 2.0 * float(str(honest["power"]["gpu"]))


def test_a_voltage_curve_is_inferred_from_three_clocks(a100: GpuSpec) -> None:
    rows = runs(a100)
    rows = rows.select(np.isin(rows.sm_clock_asked_mhz, (510.0, 900.0, 1410.0)))
    latency = fit_latency(rows, a100)
    unknown = BoardTables(voltage_v=None, idle_w=a100.idle_w, reference_clock_mhz=900.0, power_limit_w=a100.power_limit_w)
    power_rows = workload_power_rows(rows, a100, latency)
    fit = fit_power(power_rows, unknown, 900.0)
    assert fit.tables.voltage_v is not None
    assert "inferred" in fit.tables.voltage_v.source
    ends = fit.tables.voltage_v.at(np.array([900.0, 1410.0]))
    assert a100.voltage_v is not None
    true = a100.voltage_v.at(np.array([900.0, 1410.0]))
    # planted power follows V³, an inferred voltage V²: it stands for the 1.5th power of the true ratio
    assert ends[1] / ends[0] == pytest.approx((true[1] / true[0]) ** 1.5, rel=0.1)
    assert np.mean(np.abs(fit.relative_residuals)) < 0.04


def test_no_voltage_is_inferred_from_two_clocks(a100: GpuSpec) -> None:
    rows = runs(a100)
    rows = rows.select(np.isin(rows.sm_clock_asked_mhz, (900.0, 1410.0)))
    latency = fit_latency(rows, a100)
    unknown = BoardTables(voltage_v=None, idle_w=a100.idle_w, reference_clock_mhz=900.0, power_limit_w=a100.power_limit_w)
    fit = fit_power(workload_power_rows(rows, a100, latency), unknown, 900.0)
    assert fit.tables.voltage_v is None


def test_covariances_are_symmetric_however_few_the_rows(a100: GpuSpec) -> None:
    for count in (1, 2, 3):
        rows = runs(a100).select(np.arange(count))
        fit = fit_runs(rows, a100, tables(a100))
        assert fit.power is not None
        for covariance in (fit.latency.covariance, fit.power.covariance):
            assert np.array_equal(covariance, covariance.T)
            assert np.linalg.eigvalsh(covariance).min() > -1e-9


IDLE_C, PLANTED_LEAKAGE_W_PER_K = 38.0, 0.2


def kernels(gpu: GpuSpec, seed: int = 0) -> PowerRows:
    """Kernels of twelve kinds at three clocks that obey the equations with planted energies, leakage and edge of L2."""
    rng = np.random.default_rng(seed)
    kind = np.repeat(np.arange(12), 30)
    clock = np.tile([510.0, 900.0, 1410.0], len(kind) // 3)
    mix = rng.uniform(0.1, 1.0, (12, len(POWER_TERMS)))[kind] * rng.uniform(0.5, 1.0, (len(kind), 1))
    mix[:, 1] = mix[:, 0]  # both parts of DRAM's energy belong to the same bytes
    ratio = np.exp(rng.uniform(-1.5, 1.5, len(kind)))
    energy = planted_energies()
    share = 0.1 / (energy[: len(POWER_TERMS)] * 1e-12) * 60.0  # each term alone would draw about 6 W
    rate = mix * share
    busy = rng.uniform(0.5, 1.0, len(kind))
    point = tables(gpu).at(clock)
    core = point.voltage_ratio**2
    crossing = warm_dram_share(ratio, 0.65, 5.0)
    watt = point.idle_w + energy[-2] * busy * core * clock / 900.0 + energy[-1] * point.idle_ratio
    for i in range(len(POWER_TERMS)):
        watt += energy[i] * 1e-12 * rate[:, i] * (crossing if i < 2 else 1.0) * (1.0 if i == 0 else core)
    temperature = IDLE_C + 0.08 * watt + rng.normal(0.0, 3.0, len(kind))
    watt += PLANTED_LEAKAGE_W_PER_K * point.voltage_ratio**3 * (temperature - IDLE_C)
    return PowerRows(
        power_w=watt * np.exp(0.5 * NOISE * rng.standard_normal(len(kind))),
        clock_mhz=clock,
        event_rate=rate,
        warm_ratio=ratio,
        busy=busy,
        temperature_c=temperature,
        weight=np.ones(len(kind)),
        relative_std=np.zeros(len(kind)),
        kind=np.array([f"kind {i}" for i in kind]),
    )


def warm_tables(gpu: GpuSpec) -> BoardTables:
    return replace(tables(gpu), idle_temperature_c=IDLE_C)


def test_leakage_and_the_edge_of_l2_come_back_from_kernels_at_known_temperatures(a100: GpuSpec) -> None:
    fit = fit_power(kernels(a100), warm_tables(a100), 900.0)
    assert fit.leakage is not None
    assert abs(fit.leakage.w_per_k - PLANTED_LEAKAGE_W_PER_K) < 3.0 * fit.leakage.std_w_per_k
    assert fit.leakage.std_w_per_k < 0.5 * PLANTED_LEAKAGE_W_PER_K
    assert fit.leakage.operating_k_per_w == pytest.approx(0.08, rel=0.2)
    assert fit.warm_knee == pytest.approx(0.65, abs=0.06)
    assert fit.voltage_exponent == pytest.approx(2.0, abs=0.3)
    spread = np.sqrt(np.diag(fit.covariance))
    for term, found, planted, std in zip(TERMS, fit.values, planted_energies(), spread, strict=True):
        if not term.startswith("dram"):
            assert abs(found - planted) < 3.0 * std, (term, found, planted, std)


def test_no_leakage_is_told_apart_where_the_temperature_at_rest_is_unknown(a100: GpuSpec) -> None:
    rows = kernels(a100)
    assert fit_power(rows, tables(a100), 900.0).leakage is None
    assert fit_power(replace(rows, temperature_c=np.full(len(rows.power_w), np.nan)), warm_tables(a100), 900.0).leakage is None


def test_a_kind_of_kernel_that_is_counted_wrongly_widens_the_stated_deviations(a100: GpuSpec) -> None:
    rows = kernels(a100)
    honest = fit_power(rows, warm_tables(a100), 900.0)
    tensor = TERMS.index("tensor")
    rate = rows.event_rate.copy()
    rate[rows.kind == "kind 3", tensor] *= 2.0
    wrong = fit_power(replace(rows, event_rate=rate), warm_tables(a100), 900.0)
    assert wrong.covariance[tensor, tensor] > 2.0 * honest.covariance[tensor, tensor]
    assert abs(wrong.values[tensor] - planted_energies()[tensor]) < 3.0 * np.sqrt(wrong.covariance[tensor, tensor])


def test_priors_know_that_hopper_shares_out_its_last_wave() -> None:
    ampere, hopper = prior_groups(load_gpu("a10")), prior_groups(load_gpu("h100-sxm"))
    assert ampere == prior_groups()
    for group in ("gemm", "gemm.bmm", "conv"):
        assert hopper[group]["wave_exponent"] < 0.5 < ampere[group]["wave_exponent"]
    assert hopper["elementwise"] == ampere["elementwise"]

"""Fits of very few rows, and of runs of which few have an energy: a useful bundle with an honest width, or one clear line."""

from dataclasses import replace

import numpy as np
import pytest

from estimator import estimate, load_bundle, load_gpu
from estimator.bundle.files import save_bundle
from fitter.bundle.calibration import calibrate, few_power_warnings
from fitter.report.check import check_bundle
from fitter.rows.columns import join_rows
from fitter.rows.selection import read_selection
from tests.estimator.synthetic import transformer
from tests.fitter.measured import kernel_rows, planted_bundle, selection_of, various_operators

GPU_NAME = "a100-pcie-40gb"
WORKLOAD = transformer(4096, 768, 12, name="small", family="small")
"""Paced by the GPU: its width is that of the kernels, not of a host."""

LEAST_STD = 0.05
"""No fit of one kernel knows a whole model better than this [relative]."""


def random_subsets(rows, seed):
    """Few rows of all families, of one family, and of one kernel measured over and over; some with power."""
    rng = np.random.default_rng(seed)
    families = np.array([rows.operators[i].family for i in rows.operator_index])
    for count in (1, 2, 5, 12):
        yield rows.select(rng.choice(len(rows), count, replace=False))
        own = np.flatnonzero(families == rng.choice(np.unique(families)))
        yield replace(some := rows.select(rng.choice(own, count)), power_w=rng.uniform(90.0, 240.0, len(some)))
        yield rows.select(np.repeat(rng.integers(len(rows)), count))


def bundle_of(selection, folder):
    """Fit, save, load, check and estimate; the relative standard deviation of the estimate."""
    calibration = calibrate(selection, load_gpu(GPU_NAME), seed=0)
    save_bundle(calibration.bundle, folder / "few.json")
    bundle = load_bundle(str(folder / "few.json"))
    check_bundle(bundle, selection)
    answer = estimate(WORKLOAD, bundle)[0]
    assert np.isfinite(answer.latency_s)
    assert answer.latency_s > 0
    return answer.latency_s_std / answer.latency_s


def test_few_rows_of_any_kind_give_a_bundle_that_knows_how_little_it_knows(shared_data, tmp_path):
    tables = (read_selection([shared_data / "neusight" / f"{name}_train.csv"], GPU_NAME).kernels for name in ("vector", "bmm"))
    for rows in random_subsets(join_rows([*tables]), seed=3):
        assert bundle_of(selection_of(rows), tmp_path) > LEAST_STD


def test_one_kernel_measured_often_is_one_kernel(tmp_path):
    product = various_operators(1)
    once = bundle_of(selection_of(kernel_rows(planted_bundle(), product)), tmp_path)
    often = bundle_of(selection_of(kernel_rows(planted_bundle(), product * 30, noise=0.001)), tmp_path)
    assert often == pytest.approx(once, rel=0.2)


PRODUCTS = various_operators(10)[::3]


@pytest.mark.parametrize(
    "kernels, factors, warned",
    [
        (PRODUCTS, (1, 1, 1, 1), ""),
        (PRODUCTS, (1, 30, 1, 30), "latency of rows left out of the fit"),
        (PRODUCTS[:1] * 2, (1, 1.1), ""),
        (PRODUCTS[:1] * 2, (1, 30), "latency of the fitted rows themselves"),
    ],
)
def test_few_rows_that_the_fit_misses_by_far_are_a_warning(kernels, factors, warned):
    rows = kernel_rows(planted_bundle(), kernels)
    found = calibrate(selection_of(replace(rows, latency_s=rows.latency_s * factors)), load_gpu(GPU_NAME))
    told = [line.partition(" is poorly described")[0] for line in found.warnings if "poorly" in line]
    assert told == [warned] * bool(warned)


def test_fewer_energies_never_give_a_narrower_power(shared_data):
    runs, spreads, warnings = read_selection([shared_data / "energaizer" / "a10_900mhz.csv"]).workloads.select(np.arange(12)), [], []
    for count in (0, 1, 3, 9):
        some = replace(runs, energy_j=np.where(np.arange(12) < count, runs.energy_j, np.nan))
        found = calibrate(selection_of(None, some), load_gpu("a10"), holdout=0.2)
        warnings.append(" ".join(found.warnings))
        if count:
            answer = estimate(transformer(512, 768, 12, name="new", family="new"), found.bundle)[0]
            spreads.append(answer.power_w_std / answer.power_w)
        else:
            assert found.bundle.power is None
    assert spreads[0] > spreads[1] > spreads[2]
    assert "no row has an energy: the bundle has no power" in warnings[0]
    assert ["power rests on" in line for line in warnings] == [False, True, True, False]
    kernels = kernel_rows(planted_bundle(), various_operators(4))
    silent = selection_of(replace(kernels, power_w=np.full(len(kernels), np.nan)))  # usual, and no cause for a warning
    assert few_power_warnings(silent, replace(planted_bundle(), power=None)) == ()

"""Kernels of four H200 boards (bundles/data/h200-sxm): a fit to two of them on another one, whose shapes no choice was made on.

The limits are above what was seen: 15 % in latency, 11 % in power, of products 12 %, and 88 % inside.
"""

from pathlib import Path

import numpy as np
import pytest

from estimator.vocabulary.quantities import NORMAL_90
from estimator.vocabulary.specifications import load_gpu
from fitter.bundle.calibration import calibrate
from fitter.rows.selection import read_selection
from fitter.validate.predictions import predict_kernel_rows

ROWS = Path(__file__).parents[2] / "bundles" / "data" / "h200-sxm"
GPU = "h200-sxm"


@pytest.fixture(scope="module")
def bundle():
    selection = read_selection([ROWS / f"{name}.parquet" for name in ("anchors-1", "campaign-2", "again-2")], GPU)
    return calibrate(selection, gpu=load_gpu(GPU), holdout=0.0).bundle


@pytest.fixture(scope="module")
def found(bundle):
    rows = read_selection([ROWS / "campaign-4.parquet"], GPU).kernels
    return predict_kernel_rows(bundle, rows).dropna(subset="predicted_latency")


def test_another_board_is_predicted_by_a_fit_to_two(found):
    error = np.log(found["predicted_latency"] / found["measured_latency"])
    products = found["family"] == "gemm"
    assert len(found) == 108
    assert np.expm1(np.abs(error)).mean() < 0.22
    assert np.expm1(np.abs(error[products])).mean() < 0.16
    assert abs(np.log(found["predicted_power"] / found["measured_power"])).mean() < 0.14
    assert (np.abs(error) < NORMAL_90 * found["std_latency"]).mean() > 0.8


def test_power_counts_where_the_limit_lowered_a_clock_that_was_measured(found):
    watt = found["measured_power"].dropna()
    assert len(watt) == 73
    assert (watt > load_gpu(GPU).power_limit_w).sum() > 10


def test_kernels_above_the_limit_do_not_raise_the_share_that_a_board_holds(bundle):
    assert 0.96 < bundle.power.limit_share < 1.0

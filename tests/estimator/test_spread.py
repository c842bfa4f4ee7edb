"""Stated uncertainty: what the fit has not seen widens it."""

from dataclasses import replace

import numpy as np
import pytest

from estimator.uncertainty.sources import UNTESTED_STD, error_sources, group_shares, joined
from tests.fitter.measured import PLANTED

GROUPS = ("conv", "gemm")
SHARES = np.array([0.5, 0.5])


def stating(**latency):
    return replace(PLANTED, uncertainty={"latency": latency, "power": {}})


def latency_std(bundle, family, launch_share):
    return float(joined(error_sources(bundle, "latency", family, launch_share, group_shares(GROUPS, SHARES)).values()))


def of_runs(family, **more):
    bundle = stating(gpu=0.04, launch=0.1, family=0.05, families=("bert", "vit"), **more)
    return latency_std(bundle, family, 0.0)


def test_kernels_that_one_family_alone_used_widen_the_interval_of_another_family_and_not_of_that_one():
    counted = of_runs("resnet", families_by_group={"conv": 1, "gemm": 2})
    assert counted**2 == pytest.approx(of_runs("resnet") ** 2 + (0.5 * UNTESTED_STD[1]) ** 2)
    assert of_runs("resnet", families_by_group={"gemm": 2}) > counted
    assert of_runs("vit", families_by_group={"conv": 1}) == pytest.approx(0.04)


def test_what_only_the_host_decides_does_not_depend_on_untested_kernels():
    bundle = stating(gpu=0.04, launch=0.1, family=0.05, families=("bert",), families_by_group={})
    assert latency_std(bundle, "bert", 1.0) == pytest.approx(0.1)
    assert latency_std(bundle, "resnet", 1.0) == pytest.approx(np.hypot(0.1, 0.05))


def test_kernels_that_the_host_hides_are_no_error_of_the_latency():
    """What is unknown of the GPU's time counts by its share in the latency, which falls faster than its weight in the fitted spread."""
    share = 0.99
    bundle = stating(gpu=0.0, launch=0.0, family=0.0, families=("bert",), families_by_group={"gemm": 2})
    assert latency_std(bundle, "resnet", share) == pytest.approx(np.sqrt(1.0 - share) * 0.5 * UNTESTED_STD[0])


def power_std(model_family, launch_share, **power):
    bundle = replace(PLANTED, uncertainty={"latency": {}, "power": {"gpu": 0.03, "families": ("bert",), **power}})
    return float(joined(error_sources(bundle, "power", model_family, launch_share, group_shares(GROUPS, SHARES)).values()))


def test_power_of_what_the_host_paces_has_its_own_spread():
    for share, weight in ((0.0, 0.0), (0.1, 0.25), (0.5, 0.5), (1.0, 1.0)):
        known = power_std("bert", share, launch=0.07)
        assert known**2 == pytest.approx((1.0 - weight) * 0.03**2 + weight * 0.07**2)
        assert power_std("vit", share, launch=0.07, family=0.02) == pytest.approx(np.hypot(known, 0.02))

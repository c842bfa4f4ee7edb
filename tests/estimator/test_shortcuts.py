"""What spares work on the way from a file to an estimate changes no answer."""

import copy
import pickle
from dataclasses import replace

import pytest

from estimator import Workload, estimate, load_bundle
from estimator.uncertainty.sources import unfitted_groups
from estimator.uncertainty.unseen import fitted_precisions
from estimator.vocabulary.frozen import FrozenMapping
from tests.estimator.synthetic import transformer

BUNDLE = load_bundle("a100-pcie-40gb-eager")


def test_the_order_of_operators_and_of_equal_ones_changes_no_total():
    workload = transformer(512, 768, 2)
    whole = estimate(workload, BUNDLE)[0]
    turned = replace(workload, operators=workload.operators[::-1], counts=workload.counts[::-1])
    half = tuple(count / 2.0 for count in workload.counts)
    doubled = Workload(name=workload.name, operators=workload.operators * 2, counts=half * 2, model_family=workload.model_family)
    for other in (estimate(turned, BUNDLE)[0], estimate(doubled, BUNDLE)[0]):
        for name in ("latency_s", "power_w", "energy_j", "latency_s_std"):
            assert getattr(other, name) == pytest.approx(getattr(whole, name), rel=1e-10), name
    kernels = [kernel.operator for kernel in estimate(turned, BUNDLE)[0].kernels]
    assert kernels == [kernel.operator for kernel in whole.kernels][::-1]


def test_what_a_bundle_was_asked_for_does_not_tell_bundles_apart_nor_outlive_a_change():
    fresh = load_bundle("a100-pcie-40gb-eager")
    estimate(transformer(512, 768, 1), fresh)
    assert fresh == BUNDLE
    assert hash(fresh.gpu) == hash(BUNDLE.gpu)
    assert pickle.loads(pickle.dumps(fresh)) == copy.deepcopy(fresh) == fresh
    group = next(iter(fresh.groups))
    prior = replace(fresh, groups=FrozenMapping({**fresh.groups, group: replace(fresh.groups[group], rows=0, ln_std=FrozenMapping({}))}))
    assert group in unfitted_groups(prior, [group, None, "no such group"])
    assert fresh.once(fitted_precisions) == fitted_precisions(fresh)

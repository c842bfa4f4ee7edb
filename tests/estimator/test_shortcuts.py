"""What spares work on the way from a file to an estimate changes no answer."""

import copy
import pickle
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from estimator import Workload, estimate, load_bundle
from estimator.bundle.content import Bundle
from estimator.model.coefficients import coefficient_rows, group_key
from estimator.model.lowering import KnownTiles, lower
from estimator.model.phases import Phases
from estimator.uncertainty.sources import unfitted_groups
from estimator.uncertainty.unseen import fitted_precisions
from estimator.vocabulary.errors import WorkloadError
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.workload import Listing, Operator, make_operator
from examples.gpt2_prefill import gpt2_prefill
from fitter.latency.runs import prior_groups
from tests.estimator.synthetic import transformer


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return load_bundle("a100-pcie-40gb-eager")


def products() -> tuple[Operator, ...]:
    """Products with and without tensor cores, with streams between them."""
    shapes = ((1, 512, 1536, 1536), (12, 512, 512, 128), (1, 17, 4096, 9000), (3, 2048, 64, 640))
    tensor = [make_operator("gemm", "linear", "bf16", batch=b, m=m, n=n, k=k) for b, m, n, k in shapes]
    cuda = [make_operator("gemm", "bmm", "fp32", batch=b, m=m, n=n, k=k, cuda_cores=True) for b, m, n, k in shapes]
    stream = make_operator("softmax", "softmax", "fp32", rows=6144, dim=512)
    return (tensor[0], cuda[0], stream, *tensor[1:], *cuda[1:])


def assert_rows_equal(all_of_them: Phases, row: int, alone: Phases) -> None:
    for name in Phases.__slots__:
        assert_allclose(getattr(all_of_them, name)[row], getattr(alone, name)[0], rtol=1e-13, err_msg=name)


def test_a_tile_that_was_searched_for_and_the_same_tile_told_make_the_same_kernel(bundle: Bundle) -> None:
    operators = products()
    coefficients, _ = coefficient_rows(prior_groups(), [group_key(o) for o in operators])
    searched = lower(operators, bundle.gpu, coefficients)
    known = {name: getattr(searched, name).copy() for name in KnownTiles.__slots__}
    for column in known.values():
        column[3:5] = np.nan  # some are told, some are searched for
    known["split"][5] = np.nan  # and of one the tile alone is told
    told = lower(operators, bundle.gpu, coefficients, KnownTiles(**known))
    for i in range(len(operators)):
        assert_rows_equal(searched.phases, i, Phases(**{name: getattr(told.phases, name)[i : i + 1] for name in Phases.__slots__}))


pieces = st.sampled_from(['{"a": 1}, ["x"', '{"a": 2}, ["x"', '{}, ["y", "z"', '{"b": [1, [2]]}, ["x"', '["[[", "]]"], ["x"'])


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.sets(st.integers(0, 5)))
def test_places_are_those_where_an_operator_stands(order: list[int], wanted: set[int]) -> None:
    operators = tuple(make_operator("elementwise", "add", "bf16", elements=i + 1, reads=i + 1) for i in range(6))
    counter = Counter(order)
    listing = Listing(operators=operators, order=tuple(order), counts=tuple(float(counter[i]) for i in range(6)))
    assert listing.places(wanted) == [place for place, number in enumerate(order) if number in wanted]


def test_the_order_of_operators_and_of_equal_ones_changes_no_total(bundle: Bundle) -> None:
    workload = transformer(512, 768, 2)
    whole = estimate(workload, bundle)[0]
    turned = replace(workload, operators=workload.operators[::-1], counts=workload.counts[::-1])
    half = tuple(count / 2.0 for count in workload.counts)
    doubled = Workload(name=workload.name, operators=workload.operators * 2, counts=half * 2, model_family=workload.model_family)
    for other in (estimate(turned, bundle)[0], estimate(doubled, bundle)[0]):
        for name in ("latency_s", "power_w", "energy_j", "latency_s_std"):
            assert getattr(other, name) == pytest.approx(getattr(whole, name), rel=1e-10), name
    kernels = [kernel.operator for kernel in estimate(turned, bundle)[0].kernels]
    assert kernels == [kernel.operator for kernel in whole.kernels][::-1]


def test_what_a_bundle_was_asked_for_does_not_tell_bundles_apart_nor_outlive_a_change(bundle: Bundle) -> None:
    fresh = load_bundle("a100-pcie-40gb-eager")
    estimate(transformer(512, 768, 1), fresh)
    assert fresh == bundle
    assert hash(fresh.gpu) == hash(bundle.gpu)
    assert pickle.loads(pickle.dumps(fresh)) == copy.deepcopy(fresh) == fresh
    group = next(iter(fresh.groups))
    prior = replace(fresh, groups=FrozenMapping({**fresh.groups, group: replace(fresh.groups[group], rows=0, ln_std=FrozenMapping({}))}))
    assert group in unfitted_groups(prior, [group, None, "no such group"])
    assert fresh.once(fitted_precisions) == fitted_precisions(fresh)


def test_a_workload_without_operators_or_with_a_count_missing_is_refused() -> None:
    with pytest.raises(WorkloadError, match="^none: 0 operators and 0 counts; a workload has at least one"):
        Workload(name="none", operators=(), counts=())
    one = gpt2_prefill(1, 64)
    with pytest.raises(WorkloadError, match="a count for each"):
        replace(one, counts=one.counts[:-1])

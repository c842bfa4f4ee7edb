"""Checks of a bundle's values: a column looked at in one go is judged as one looked at item by item."""

import copy
import json
import math
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.bundles import checks, records
from estimator.bundles.limits import Limits
from estimator.bundles.sections import COMPLETIONS, TREE_FEATURES
from estimator.completion import DEFAULT_RULE_SET, RULE_SETS
from estimator.errors import BundleError
from estimator.frozen import FrozenMapping
from estimator.tiles.predictor import FEATURES

SCALARS = st.one_of(
    st.floats(),
    st.integers(),
    st.sampled_from([2**63, -(2**63), 2**63 + 1, 2**70, -(2**70), 10**400, -0.0, 1e308, 5e-324]),
    st.booleans(),
    st.none(),
    st.text(max_size=2),
)
COLUMNS = st.one_of(
    st.lists(SCALARS, max_size=6),
    st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=6),
    st.lists(st.integers(-(2**64), 2**64), max_size=6),
)

LIMITS = st.sampled_from([(-math.inf, math.inf, ""), (0.0, math.inf, ""), (1.5, 1e9, "W"), (-3.0, 3.0, "")])


def verdict(check: Callable[[], object]) -> object:
    """What a check gives, or the message with which it refuses."""
    try:
        return repr(check())
    except BundleError as error:
        return str(error)


@given(COLUMNS)
def test_a_free_column_is_refused_just_when_one_of_its_items_is(column: list[object]) -> None:
    one_by_one = verdict(lambda: tuple(checks.frozen(item, f"x[{i}]") for i, item in enumerate(column)))
    assert verdict(lambda: checks.frozen(column, "x")) == one_by_one


@given(COLUMNS, LIMITS)
def test_a_column_of_numbers_is_refused_just_when_one_of_its_items_is(column: list[object], limits: Limits) -> None:
    one_by_one = verdict(lambda: tuple(checks.number(item, f"x[{i}]", limits) for i, item in enumerate(column)))
    assert verdict(lambda: checks.numbers_of(column, "x", limits, length=len(column))) == one_by_one


@given(COLUMNS.filter(bool), LIMITS, st.booleans())
def test_a_column_of_a_section_is_refused_just_when_one_of_its_items_is(column: list[object], limits: Limits, whole: bool) -> None:
    check = checks.count if whole else checks.number
    one_by_one = verdict(lambda: [check(item, f"x[{i}]", limits) for i, item in enumerate(column)] and tuple(column))
    assert verdict(lambda: records.column(limits, whole_numbers=whole)(column, "x")) == one_by_one


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=6), LIMITS)
def test_numbers_under_a_name_are_held_to_the_limits_of_that_name_wherever_they_stand(column: list[float], limits: Limits) -> None:
    inside = all(limits[0] <= item <= limits[1] for item in column)
    check = records.bounded({"known": limits}, (-math.inf, math.inf, ""))
    for document in ({"known": column}, {"a": [{"known": column}]}, {"known": {"deep": [column]}}):
        found = verdict(lambda document=document: check(document, "x"))
        assert ("lies outside" in str(found)) != inside


@given(COLUMNS)
def test_named_numbers_are_refused_just_when_one_of_them_is(column: list[object]) -> None:
    names = [f"n{i}" for i in range(len(column))]
    named = dict(zip(names, column, strict=True))
    limits = dict.fromkeys(names, (0.0, 1e300, "W"))
    one_by_one = verdict(lambda: {name: checks.number(item, f"x.{name}", limits[name]) for name, item in named.items()})
    assert verdict(lambda: dict(checks.named_numbers(named, "x", limits))) == one_by_one


@given(COLUMNS)
def test_truths_are_refused_just_when_one_of_them_is(column: list[object]) -> None:
    named = {f"n{i}": item for i, item in enumerate(column)}
    one_by_one = verdict(lambda: {name: checks.truth(item, f"x.{name}") for name, item in named.items()})
    assert verdict(lambda: dict(checks.truths(named, "x"))) == one_by_one


@pytest.mark.parametrize("foreign", ["zz", "b "])
def test_a_foreign_name_is_refused_wherever_it_stands(foreign: str) -> None:
    for names in ([foreign, "a"], ["a", foreign], ["a", foreign, "b"]):
        with pytest.raises(BundleError, match=f"x has an unknown name '{foreign}'"):
            checks.named_numbers(dict.fromkeys(names, 1.0), "x", dict.fromkeys("ab", (0.0, 2.0, "")))


def test_a_mapping_that_was_hashed_is_pickled_without_its_hash() -> None:
    """Texts have other hashes in another process."""
    plain = {"b": 1.0, "a": ("x", 2)}
    hashed = FrozenMapping(plain)
    before = pickle.dumps(hashed)
    assert hash(hashed) == hash(FrozenMapping(dict(reversed(plain.items()))))
    assert pickle.dumps(hashed) == before
    assert pickle.loads(before) == hashed == plain


def test_frozen_data_do_not_change_with_what_they_were_made_from() -> None:
    document = json.loads('{"a": [1.0, 2.0], "b": {"c": [1, "x"]}}')
    frozen = checks.free(document, "x")
    kept = copy.deepcopy(frozen)
    document["a"][0], document["b"]["c"][1] = 9.0, "y"
    assert frozen == kept


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (((1.0, 2.0), (2.0, 1.0)), "no covariance: a combination of its terms has a variance below 0"),
        (((1.0, 0.5), (0.25, 1.0)), r"not symmetric at \[1\]\[0\]"),
        (((1.0, 0.0), (0.0, -1.0)), "variance must not be negative"),
        (((0.0, 0.5), (0.5, 1.0)), "must be 0, as the variance"),
        (((1.0,), (0.0, 1.0)), "has 1 values where 2"),
    ],
)
def test_what_is_no_covariance_is_refused(rows: tuple[tuple[float, ...], ...], reason: str) -> None:
    with pytest.raises(BundleError, match=reason):
        records.check_covariance(rows, "x")


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**32), st.sampled_from([1e-30, 1.0, 1e12]))
def test_every_product_of_a_matrix_with_itself_is_a_covariance(count: int, rank: int, seed: int, scale: float) -> None:
    """Also one of deficient rank, and one whose terms have units of very different size."""
    random = np.random.default_rng(seed)
    root = random.standard_normal((count, rank)) * np.exp(random.uniform(-30.0, 30.0, (count, 1)))
    values = root @ root.T * scale
    records.check_covariance(tuple(map(tuple, values.tolist())), "x")


def test_what_opening_a_bundle_knows_of_rules_and_trees_is_what_they_are() -> None:
    assert COMPLETIONS[0] == DEFAULT_RULE_SET
    assert set(COMPLETIONS) == set(RULE_SETS)
    assert len(FEATURES) == TREE_FEATURES

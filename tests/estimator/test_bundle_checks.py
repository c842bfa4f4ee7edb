"""Checks of a bundle's values: a column looked at in one go is judged as one looked at item by item."""

import copy
import json
import math
import pickle
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.bundles import checks
from estimator.errors import BundleError
from estimator.frozen import FrozenMapping

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


@given(COLUMNS, st.sampled_from([-math.inf, 0.0, 1.5]))
def test_a_column_of_numbers_is_refused_just_when_one_of_its_items_is(column: list[object], low: float) -> None:
    one_by_one = verdict(lambda: tuple(checks.number(item, f"x[{i}]", low=low) for i, item in enumerate(column)))
    assert verdict(lambda: checks.numbers_of(column, "x", low=low, length=len(column))) == one_by_one


@given(COLUMNS)
def test_named_numbers_are_refused_just_when_one_of_them_is(column: list[object]) -> None:
    names = [f"n{i}" for i in range(len(column))]
    named = dict(zip(names, column, strict=True))
    one_by_one = verdict(lambda: {name: checks.number(item, f"x.{name}", low=0.0) for name, item in named.items()})
    assert verdict(lambda: dict(checks.named_numbers(named, "x", names))) == one_by_one


@given(COLUMNS)
def test_truths_are_refused_just_when_one_of_them_is(column: list[object]) -> None:
    named = {f"n{i}": item for i, item in enumerate(column)}
    one_by_one = verdict(lambda: {name: checks.truth(item, f"x.{name}") for name, item in named.items()})
    assert verdict(lambda: dict(checks.truths(named, "x"))) == one_by_one


@pytest.mark.parametrize("foreign", ["zz", "b "])
def test_a_foreign_name_is_refused_wherever_it_stands(foreign: str) -> None:
    for names in ([foreign, "a"], ["a", foreign], ["a", foreign, "b"]):
        with pytest.raises(BundleError, match=f"x has an unknown name '{foreign}'"):
            checks.named_numbers(dict.fromkeys(names, 1.0), "x", ("a", "b"))


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

"""Which way to tell tiles a section takes: the best, and a steady one where errors do not tell them apart."""

from typing import get_args

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fitter.latency.section import Tiles
from fitter.latency.section_choice import STEADIEST, TELLING, steadiest

WAYS: list[Tiles] = ["named", "chosen", "free", "matched"]
SHAPES = 70


def scattered(seed: int, means: tuple[float, ...], spread: float) -> np.ndarray:
    """Errors of SHAPES shapes in each way, about these means; all ways find the same shapes hard."""
    rng = np.random.default_rng(seed)
    hard = rng.exponential(0.1, SHAPES)
    return np.array([mean + hard + spread * rng.standard_normal(SHAPES) for mean in means])


def test_every_way_has_its_place() -> None:
    assert sorted(STEADIEST) == sorted(get_args(Tiles))


@given(st.integers(0, 2**32 - 1), st.permutations(range(len(WAYS))))
def test_the_order_in_which_ways_are_tried_does_not_matter(seed: int, order: list[int]) -> None:
    errors = scattered(seed, (0.2, 0.1, 0.1, 0.12), 0.05)
    assert WAYS[steadiest(errors, WAYS)] == WAYS[order[steadiest(errors[order], [WAYS[i] for i in order])]]


@given(st.integers(0, 2**32 - 1), st.integers(0, len(WAYS) - 1))
def test_a_way_that_is_clearly_best_is_taken_however_unsteady(seed: int, best: int) -> None:
    means = tuple(0.1 if i == best else 0.3 for i in range(len(WAYS)))
    assert steadiest(scattered(seed, means, 0.02), WAYS) == best


@given(st.integers(0, 2**32 - 1))
def test_what_all_ways_find_hard_decides_nothing(seed: int) -> None:
    errors = scattered(seed, (0.2, 0.12, 0.1, 0.12), 0.05)
    harder = errors + np.random.default_rng(seed).exponential(5.0, SHAPES)
    assert steadiest(errors, WAYS) == steadiest(harder, WAYS)


def test_a_tie_is_not_decided_by_the_split() -> None:
    """Two ways that err alike: the steadier one but for the draws in which TELLING errors of the difference lie between them."""
    taken = [WAYS[steadiest(scattered(seed, (0.3, 0.1, 0.1, 0.3), 0.1), WAYS)] for seed in range(400)]
    assert set(taken) == {"chosen", "free"}
    assert TELLING == 2.0
    assert 0.005 < taken.count("free") / 400 < 0.05  # 2.3 % of a normal's draws lie beyond 2
    nearer = [int(np.argmin(scattered(seed, (0.3, 0.1, 0.1, 0.3), 0.1).sum(axis=1))) for seed in range(400)]
    assert nearer.count(WAYS.index("free")) > 150


def test_where_nothing_could_be_compared_the_steadiest_way_is_taken() -> None:
    assert WAYS[steadiest(np.zeros((len(WAYS), 0)), WAYS)] == STEADIEST[0]

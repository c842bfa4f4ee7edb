"""The error of a period is what repeated recordings scatter by: fast and slow polls, jitter that polls resolve and that they do not."""

import numpy as np
import pytest

from collector.sensor.clock_likelihood import Changes
from collector.sensor.clock_posterior import grid_posterior
from estimator.quantities import IntArray

PERIOD_S, COUNT = 0.1, 90
RECORDS = 120


def seen(
    random: np.random.Generator, poll_s: float, jitter_s: float, *, bend_s: float = 0.0, missed: float = 0.0
) -> tuple[Changes, IntArray]:
    """The changes that polls show of a grid whose phase bends, and their numbers."""
    number = np.arange(COUNT)
    place = 2.0 * number / (COUNT - 1) - 1.0
    tick = 1.0 + PERIOD_S * number + bend_s * (1.5 * place**2 - 0.5) + random.normal(0.0, jitter_s, COUNT)
    poll = np.cumsum(poll_s * random.uniform(0.9, 1.1, int(11.0 / poll_s)))
    kept = random.random(COUNT) >= missed
    number, tick = number[kept], tick[kept]
    index = np.searchsorted(poll, tick)
    return Changes(after_s=poll[index - 1], until_s=poll[index], value=tick), number - number[0]


@pytest.mark.parametrize(
    ("poll_s", "jitter_s", "bend_s", "missed"),
    [(1e-3, 3e-4, 0.0, 0.0), (5e-3, 5e-4, 0.0, 0.3), (13e-3, 3e-4, 0.0, 0.0), (5e-3, 3e-4, 6e-4, 0.0)],
    ids=["fast polls", "skipped updates", "slow polls", "wander"],
)
def test_two_in_three_periods_lie_within_one_error_and_19_in_20_within_two(
    poll_s: float, jitter_s: float, bend_s: float, missed: float
) -> None:
    random = np.random.default_rng(11)
    off = []
    for _ in range(RECORDS):
        changes, number = seen(random, poll_s, jitter_s, bend_s=bend_s, missed=missed)
        found = grid_posterior(changes, number, PERIOD_S * (1.0 + random.normal(0.0, 1e-5)), 5e-4)
        drift = found.drift(found.bend)
        off.append(abs(drift.period_s - PERIOD_S) / drift.period_std_s)
    assert np.mean(np.array(off) < 1.0) == pytest.approx(0.68, abs=0.11)
    assert np.mean(np.array(off) < 2.0) == pytest.approx(0.95, abs=0.05)


def test_a_bend_and_a_jitter_come_back_and_the_ticks_follow_them() -> None:
    changes, number = seen(np.random.default_rng(5), 1e-3, 2e-4, bend_s=8e-4)
    found = grid_posterior(changes, number, PERIOD_S, 5e-4)
    assert abs(found.bend.bend_s - 8e-4) < 3.0 * found.bend.bend_std_s
    assert found.bend.bend_std_s < 2e-4
    assert found.drift(found.bend).jitter_s == pytest.approx(2e-4, rel=0.5)
    assert np.std(found.tick_s(number, found.bend) - changes.value) < 2.5e-4


def test_the_same_changes_give_the_same_clock() -> None:
    changes, number = seen(np.random.default_rng(6), 5e-3, 3e-4)
    first, again = (grid_posterior(changes, number, PERIOD_S, 5e-4) for _ in range(2))
    assert np.array_equal(first.mean, again.mean)
    assert np.array_equal(first.covariance, again.covariance)

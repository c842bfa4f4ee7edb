"""The error of a period is what repeated recordings scatter by: fast and slow polls, jitter that polls resolve and that they do not."""

from dataclasses import replace

import numpy as np
import pytest

from collector.sensor.clock_likelihood import Changes
from collector.sensor.clock_posterior import grid_posterior
from collector.sensor.clock_tracking import fit_drift, smoothed_ticks
from collector.sensor.clock_wander import shared_of_track
from estimator.quantities import Array, IntArray

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


def due_s(changes: Changes, bend_s: float) -> Array:
    """When those updates were due, jitter aside [s]."""
    number = np.rint((changes.value - 1.0) / PERIOD_S)
    place = 2.0 * number / (COUNT - 1) - 1.0
    return 1.0 + PERIOD_S * number + bend_s * (1.5 * place**2 - 0.5)


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


@pytest.mark.parametrize(
    ("poll_s", "jitter_s", "bend_s", "missed"),
    [(1e-3, 3e-4, 0.0, 0.0), (5e-3, 3e-4, 6e-4, 0.3), (13e-3, 3e-4, 0.0, 0.0)],
    ids=["fast polls", "skipped updates", "slow polls"],
)
def test_what_times_are_off_by_together_is_what_they_are_said_to_share(
    poll_s: float, jitter_s: float, bend_s: float, missed: float
) -> None:
    random = np.random.default_rng(12)
    off = []
    for _ in range(RECORDS):
        changes, number = seen(random, poll_s, jitter_s, bend_s=bend_s, missed=missed)
        found = grid_posterior(changes, number, PERIOD_S, 5e-4)
        error, shared = found.tick_s(number, found.bend) - due_s(changes, bend_s), found.shared_s(number, found.bend)
        off.append([error.mean() / np.linalg.norm(shared.mean(axis=1)), error[-1] / np.linalg.norm(shared[:, -1])])
    z = np.array(off)
    assert np.mean(np.abs(z) < 1.0, axis=0) == pytest.approx([0.68, 0.68], abs=0.11)
    assert np.mean(np.abs(z) < 2.0, axis=0) == pytest.approx([0.95, 0.95], abs=0.05)
    assert np.abs(np.mean(z, axis=0)) == pytest.approx([0.0, 0.0], abs=0.3), "a poll sees an update late, a clock does not"


def test_a_bend_that_is_known_leaves_less_to_be_off_by() -> None:
    changes, number = seen(np.random.default_rng(5), 5e-3, 3e-4)
    found = grid_posterior(changes, number, PERIOD_S, 5e-4)
    own, known = (np.linalg.norm(found.shared_s(number, bend), axis=0) for bend in (found.bend, replace(found.bend, bend_std_s=1e-6)))
    assert np.all(known < own)
    assert known[0] < 0.9 * own[0]


def test_what_phase_and_slope_have_in_common_is_in_what_times_share() -> None:
    changes, number = seen(np.random.default_rng(5), 5e-3, 3e-4)
    found = grid_posterior(changes, number, PERIOD_S, 5e-4)
    covariance = np.array([[4.0, 3.0, 0.0, 0.0], [3.0, 9.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]) * 1e-8
    shared = replace(found, covariance=covariance).shared_s(number, replace(found.bend, bend_std_s=0.0))
    first, last = (float(np.sum(shared[:, place] ** 2)) for place in (0, -1))
    assert first == pytest.approx((4.0 - 2.0 * 3.0 + 9.0) * 1e-8)
    assert last == pytest.approx((4.0 + 2.0 * 3.0 + 9.0) * 1e-8)


@pytest.mark.parametrize("poll_s", [2e-3, 1.3e-2])
def test_a_tracked_clocks_mean_phase_is_off_by_what_is_said(poll_s: float) -> None:
    random = np.random.default_rng(13)
    off = []
    for _ in range(RECORDS):
        changes, number = seen(random, poll_s, 5e-4, bend_s=3e-3)
        drift = fit_drift(changes, number, PERIOD_S)
        error = smoothed_ticks(changes, number, drift) - due_s(changes, 3e-3)
        off.append(abs(error.mean()) / np.linalg.norm(shared_of_track(changes, drift).mean(axis=1)))
    assert np.mean(np.array(off) < 1.0) == pytest.approx(0.68, abs=0.12)
    assert np.mean(np.array(off) < 2.0) == pytest.approx(0.95, abs=0.06)


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

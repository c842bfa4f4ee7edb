"""The meter's clock against the host's: a rate for each recording, not fooled by late arrivals or long holes."""

import numpy as np
import pytest

from collector.pmd.clock_tie import TurnWatch, fit_clock_tie
from collector.pmd.protocol import NOMINAL_TICKS_PER_MS, STAMP_TURN

EPOCH_NS = 10**15


def arrivals(span_s, ticks_per_ms, seed, drift=0.0):
    """Ticks, host times of arrivals, and when those ticks really were [ns]: 1 ms late at least, some much later."""
    random = np.random.default_rng(seed)
    true_ns = np.cumsum(random.uniform(2e6, 6e6, int(span_s / 4e-3)))
    ticks = np.round(ticks_per_ms * (true_ns + 0.5 * drift * true_ns**2 / (span_s * 1e9)) / 1e6).astype(np.int64)
    late_ns = 1e6 + random.exponential(3e5, len(true_ns))
    late_ns += np.where(random.random(len(true_ns)) < 0.02, random.exponential(1e7, len(true_ns)), 0.0)
    return ticks, np.round(true_ns + late_ns).astype(np.int64) + EPOCH_NS, true_ns + EPOCH_NS


def test_a_rate_that_drifts_is_followed_and_one_that_does_not_show_is_the_nominal_one():
    ticks, host_ns, true_ns = arrivals(120.0, NOMINAL_TICKS_PER_MS, 5, drift=2e-4)
    assert np.ptp(fit_clock_tie(ticks, host_ns).host_ns(ticks) - true_ns) < 6e5  # a straight line misses by 3 ms
    short = fit_clock_tie(*arrivals(0.02, 2939.0, 1)[:2])
    assert short.ticks_per_ms == pytest.approx(NOMINAL_TICKS_PER_MS, rel=1e-4)


@pytest.mark.parametrize("turns", [1, 2, 90])
def test_turns_lost_in_a_long_hole_that_no_packet_shows_are_counted_by_the_host_clock(turns):
    ticks, host_ns, _ = arrivals(24.0, 2933.25, 7)
    hole = len(ticks) // 2
    host_ns[hole:] += round(turns * STAMP_TURN / 2933.25 * 1e6)
    watch, answers = TurnWatch(), []
    for tick, host in zip(ticks.tolist(), host_ns.tolist(), strict=True):
        answers.append(watch.turns(tick + STAMP_TURN * sum(answers), host, after_break=False))
    assert sum(answers) == turns
    assert np.flatnonzero(answers)[0] == hole + 15

"""An external meter as a reference: its stamps on the load's clock, its load, gain and offset, and the rise of a board's power."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from collector.sensing.board_power import GRID_S, LAUNCH_LAG_S, LoadStamps, Signal, integrated, load_signals, signal_of
from collector.sensing.regression import Fit
from collector.sensing.response import seen
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.values import frozen

MIN_EDGES: Final = 6
"""Fewest edges that two clocks must share to be tied."""
MIN_SPAN_S: Final = 3.0
"""Shortest time between the first and the last of them [s]."""
REACH_S, MOST_RATE = 0.03, 1.2e-3
"""Largest searched offset of a meter's stamps [s] and of its rate: meters' clocks are up to 0.1 % off."""
NEAR_S: Final = 3e-3
"""Offsets within this of the best one are refined [s]."""
MIN_SPAN_W: Final = 10.0
"""Least change of the meter's power for a gain."""
SMOOTH_S: Final = 2e-3
"""Average of the meter's power in which edges of the load are looked for [s]."""
STEP_S: Final = 4.0
"""Length of the simulated step from which rise times are read [s]."""
RISEN, SETTLED = 0.9, 0.01
"""Share of a step at which it has risen, and the deviation within which it has settled."""


@frozen
class MeterTie:
    """`lag_s` of a meter's stamps behind the host's at `origin_s`, growing by `rate`."""

    origin_s: float
    lag_s: float
    rate: float

    def host_s(self, meter_s: Array) -> Array:
        """The meter's stamps in host time [s]."""
        return meter_s - self.lag_s - self.rate * (meter_s - self.origin_s)


@frozen
class Rise:
    """Times from a load's start [s]: readings to 90 % of their level after a second and to within 1 %, the board's power to 90 %.

    `late_share` of the power is still missing after 20 ms.
    """

    readings_s: float
    settle_s: float
    board_s: float
    late_share: float


def tie_meter(meter_s: Array, meter_w: Array, load: LoadStamps) -> MeterTie | None:
    """The line through the lags of a load's launches in a meter's power; None if too few are visible.

    The search first uses offset and rate of all launches together, so that no cycle of a quick load is mistaken for its neighbour.
    """
    starts = load.start_s[(load.start_s > meter_s[0] + REACH_S) & (load.start_s < meter_s[-1] - REACH_S)]
    starts = starts[:: -(-len(starts) // 400) or 1]
    if len(starts) < MIN_EDGES or starts[-1] - starts[0] < MIN_SPAN_S:
        return None
    energy = integrated(meter_s, meter_w)
    from_middle = starts - starts.mean()

    def rises(lag: Array) -> Array:
        before, at, after = (np.interp(starts[:, None] + lag + side, meter_s, energy) for side in (-2e-3, 0.0, 2e-3))
        return np.asarray(after - 2.0 * at + before)

    step = 2e-3 / float(starts[-1] - starts[0])
    rates = step * np.arange(-int(MOST_RATE / step), int(MOST_RATE / step) + 1)
    lags = np.arange(-REACH_S, REACH_S, 1e-3)
    found = np.array([rises(rate * from_middle[:, None] + lags).mean(axis=0) for rate in rates])
    first = np.where(found > 0.9 * found.max(), np.abs(lags + rates[:, None] * from_middle[0]), np.inf)
    found[:, np.abs(lags - lags[int(first.min(axis=0).argmin())]) > NEAR_S] = -np.inf
    i, j = np.unravel_index(int(found.argmax()), found.shape)
    near = np.arange(-NEAR_S, NEAR_S, 1e-4)
    expected = rates[i] * from_middle + lags[j]
    rise = rises(expected[:, None] + near)
    weight = np.where(rise > 0.5 * rise.max(axis=1)[:, None], np.maximum(rise, 0.0), 0.0)
    lag = expected + (weight @ near) / np.maximum(weight.sum(axis=1), 1e-12)
    from scipy.stats import theilslopes  # a third of a second to import

    rate = float(theilslopes(lag, starts)[0])
    left = lag - rate * from_middle
    scatter = 1.4826 * float(np.median(np.abs(left - np.median(left))))
    if scatter > 1e-3:  # the launches are not visible in the meter's power
        return None
    middle = float(np.median(left))
    cells = np.arange(-NEAR_S, NEAR_S, 2e-4)
    at = starts[:, None] + rate * from_middle[:, None] + middle + cells
    drawn = (np.interp(at + 1e-4, meter_s, energy) - np.interp(at - 1e-4, meter_s, energy)).mean(axis=0)
    low_w, high_w = float(drawn[:5].mean()), float(drawn[-5:].mean())
    risen = (drawn - low_w) / max(high_w - low_w, 1e-12) > 0.1
    onset = float(cells[int(np.argmax(risen))]) if np.any(risen) else 0.0
    return MeterTie(
        origin_s=float(starts.mean()),
        lag_s=middle + onset - 1e-4 - LAUNCH_LAG_S,
        rate=rate,
    )


def load_of_meter(power: Signal) -> LoadStamps | None:
    """Runs of a load that switches on and off, from the meter's power itself; None if it does not."""
    end_s = power.start_s + GRID_S * np.arange(int(SMOOTH_S / GRID_S), len(power.value), dtype=np.float64)
    smooth = power.mean(end_s, SMOOTH_S)
    low, high = np.quantile(smooth, [0.05, 0.95])
    if high - low < max(MIN_SPAN_W, 4.0 * float(np.median(np.abs(np.diff(smooth))))):
        return None
    share = (smooth - low) / (high - low)
    last_known = np.maximum.accumulate(np.where((share > 0.65) | (share < 0.35), np.arange(len(share)), 0))
    on = share[last_known] > 0.5
    at = end_s[1:] - 0.5 * SMOOTH_S - LAUNCH_LAG_S
    ups, downs = at[on[1:] & ~on[:-1]], at[on[:-1] & ~on[1:]]
    if not len(ups):
        return None
    downs = downs[downs > ups[0]]
    runs = min(len(ups), len(downs))
    if not runs:
        return LoadStamps(start_s=ups[:1], end_s=end_s[-1:], known_until_s=float(end_s[-1]))
    return LoadStamps(start_s=ups[:runs], end_s=downs[:runs])


def rise_of(fits: Sequence[Fit], best: Fit, level: Array) -> Rise | None:
    """Rise of the readings after a load's start; None if no launch is visible.

    `level` is the readings' offset with the levels of the load's signals.  If another of the `fits` explains as much, the settling time
    is the longer one.
    """
    step = _fitted_step(level)
    time_s = GRID_S * np.arange(int(STEP_S / GRID_S), dtype=np.float64)
    risen, place = step.mean(time_s + GRID_S, GRID_S), int(1.0 / GRID_S)
    if risen[place] <= 0.0:
        return None
    close = [best, *(fit for fit in fits if fit.kernel != best.kernel and fit.explained > best.explained - 1e-3)]
    shown = [seen(step, fit.kernel, fit.width_s, time_s - fit.delay_s) for fit in close]
    return Rise(
        readings_s=float(GRID_S * np.argmax(shown[0] >= RISEN * shown[0][place])),
        settle_s=max(_settled(one) for one in shown),
        board_s=float(GRID_S * np.argmax(risen >= RISEN * risen[place])),
        late_share=float(np.clip(1.0 - risen[int(0.02 / GRID_S)] / risen[place], 0.0, 1.0)),
    )


def _settled(shown: Array) -> float:
    """Time to within SETTLED of the last level [s]."""
    outside = np.flatnonzero(np.abs(shown - shown[-1]) > SETTLED * abs(shown[-1]))
    return float(GRID_S * (outside[-1] + 1)) if len(outside) else 0.0


def _fitted_step(level: Array) -> Signal:
    """The board's power under a load that begins at 0 and stays, from an offset and the levels of its signals, without creep."""
    stamps = LoadStamps(start_s=np.array([-LAUNCH_LAG_S]), end_s=np.array([STEP_S + 1.0]))
    signals = load_signals(stamps, 0.0, STEP_S + 0.5)[:-1]
    return signal_of(signals[0].start_s, np.sum([one.value * part for one, part in zip(signals, level[1:-1], strict=True)], axis=0))

"""Steady states of boards that hold their power limit.

A board whose mean power exceeds its limit lowers the clock of all its steps until it does not: it alternates between the highest clock
within the limit and the next, or stays at the lowest.  Axes as in `estimator.serving.intervals`, and g: clocks that it can lock.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from estimator.engine.board import Board
from estimator.serving.costs import Served, StepCosts, step_costs
from estimator.serving.intervals import Columns, moves, shares, steady_states
from estimator.serving.schedule import Cycle
from estimator.vocabulary.quantities import NORMAL_90, TINY, Array, IntArray


def settled_states(
    served: Served, board: Board, nodes: Sequence[int], slots: Array, rate: float | None
) -> tuple[StepCosts, IntArray, Cycle, Columns]:
    """Costs of steps at g clocks, places of the asked ones (c,) among these, and the `steady_states` and their `shares` at these."""
    costs, asked_mhz, clocks_mhz = step_costs(served, board, nodes), board.asked_mhz, board.gpu.clocks_mhz()
    cycle = steady_states(served, costs, slots, rate)
    limit_w = board.held.power_w * served.layout.tensor_parallel * moves(limit=math.expm1(NORMAL_90 * board.held.ln_std))
    if not np.any(cycle.power_w > limit_w):
        return costs, np.arange(len(asked_mhz)), cycle, shares(cycle, costs)
    mhz = np.unique((*asked_mhz, *clocks_mhz[clocks_mhz < asked_mhz.max()]))
    costs, place = step_costs(served, replace(board, asked_mhz=mhz), nodes), np.searchsorted(mhz, asked_mhz)
    # At a rate the sequences that run depend on the clock: each asked clock is a load of its own.
    last, slots = (place[:, None], slots) if rate is None else (place[None], np.repeat(slots, len(place)))
    states = steady_states(served, costs, slots, rate, lambda cycle: _mixture(cycle, limit_w, last).state(cycle))
    mixture = _mixture(states, limit_w, last)
    cycle, parts = mixture.state(states), {name: mixture.mean(one[None], mixture.time)[0] for name, one in shares(states, costs).items()}
    if rate is not None:
        cycle = Cycle(**{name: getattr(cycle, name).swapaxes(1, 2) for name in Cycle.__annotations__})
        parts = {name: one.T for name, one in parts.items()}
    return costs, place, cycle, parts


class _Mixture(NamedTuple):
    """Two clocks between which a board alternates, `low` and `high` (s, c, n), and the shares of the higher in time and tokens."""

    low: IntArray
    high: IntArray
    time: Array
    tokens: Array

    def mean(self, values: Array, share: Array) -> Array:
        low, high = (np.take_along_axis(values, end, axis=1) for end in (self.low, self.high))
        return low + share * (high - low)

    def state(self, states: Cycle) -> Cycle:
        """A request has its share of the steps at both clocks; rates are means over time."""
        share = {name: self.time if name in ("tokens_per_s", "power_w") else self.tokens for name in Cycle.__annotations__}
        return Cycle(**{name: self.mean(getattr(states, name), one) for name, one in share.items()})


def _mixture(states: Cycle, limit_w: Array, last: IntArray) -> _Mixture:
    """How states (s, g, n) are mixed below each of the clocks `last`, of shape (c, 1) or (1, n)."""
    clocks = np.arange(states.power_w.shape[1])[:, None]
    within = np.maximum.accumulate(np.where(states.power_w <= limit_w, clocks, 0), axis=1)
    last = np.broadcast_to(last, (len(within), len(last), within.shape[2]))
    low = np.take_along_axis(within, last, axis=1)
    high = np.minimum(low + 1, last)
    (low_w, high_w), (fewer, more) = (
        [np.take_along_axis(one, end, axis=1) for end in (low, high)] for one in (states.power_w, states.tokens_per_s)
    )
    time = np.clip((limit_w - low_w) / np.maximum(high_w - low_w, TINY), 0.0, 1.0)
    return _Mixture(low, high, time, time * more / (fewer + time * (more - fewer)))

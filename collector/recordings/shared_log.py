"""Logs that several boards share, or one board twice, without a column that says whose a row is."""

from typing import Final

import numpy as np

from collector.errors import SensorError
from estimator.quantities import Array

TOGETHER_SHARE: Final = 0.8
"""Where this share of the rows has the time of the row before, rows lie side by side."""
DIFFERENT_SHARE: Final = 0.5
"""Rows of one time that differ this often are several boards'; of one board they differ only where an update came between."""
TWICE_SHARE: Final = 0.01
"""Rows of one time that differ more seldom than this are the same rows."""
LEAST_GROUPS: Final = 4
"""Fewer groups of rows of one time say nothing."""
MOST_BOARDS: Final = 8
LEAST_ROUNDS: Final = 20
"""Rounds of polls from board to board after which a pattern of the distances is none by chance."""
CLOSE: Final = 0.5
"""Polls of one round together take less than this share of the time to the next round."""
NEAR_SHARE: Final = 0.9
"""Of the rounds so many must look like that, and differ within."""
HELD_SHARE, NEW_SHARE = 0.5, 0.1
"""Sensors that are polled faster than they update repeat a reading in most polls.  Of boards polled in turn, this share of one's rows at
least give what its row before gave, and fewer than this share of all rows give that of a row nearer by."""
APART: Final = 4.0
"""Power differs so many times more within a round than a place in the round from one round to the next."""


def times_logged(time_s: Array, power_w: Array, where: str, remedy: str, *, fine: bool) -> int:
    """How often every row is there: 1, but for a log with the same rows twice or more often; shape (n,) each.

    `fine` says that stamps are finer than a board is polled, as nvidia-smi's are: rows of one time that differ are then several boards',
    else only those whose power differs more within a group than from group to group.

    Raises SensorError, with `remedy`, for rows of several boards that nothing tells apart.
    """
    known = np.isfinite(time_s)
    time_s, power_w = time_s[known], np.where(np.isfinite(power_w), power_w, 0.0)[known]
    if len(time_s) < 4:
        return 1
    boards, group = _side_by_side(time_s, power_w)
    differ = float(np.mean(np.any(group != group[:, :1], axis=1)))
    if boards > 1 and differ < TWICE_SHARE:
        return boards
    if boards == 1 or differ < DIFFERENT_SHARE or not (fine or _changes_within(group, 1.0)):
        boards = max(_in_turn(time_s, power_w), _repeated_in_turn(power_w))
    if boards > 1:
        raise SensorError(f"{where}: rows come {boards} at a time, as of {boards} boards, and no column says whose they are; {remedy}")
    return 1


def _side_by_side(time_s: Array, power_w: Array) -> tuple[int, Array]:
    """How many rows share a time, nearly always, and their power, shape (groups, rows); 1 and nothing where they do not."""
    first = np.flatnonzero(np.append(True, np.diff(time_s) != 0.0))
    sizes = np.diff(np.append(first, len(time_s)))
    values, counts = np.unique(sizes, return_counts=True)
    size = int(values[np.argmax(counts)])
    if size == 1 or counts.max() < LEAST_GROUPS or counts.max() < TOGETHER_SHARE * counts.sum():
        return 1, np.zeros((1, 1))
    return size, power_w[first[sizes == size][:, None] + np.arange(size)]


def _changes_within(power_w: Array, times: float) -> bool:
    """Whether power (rounds, boards) changes so many times more within a round than at its places from round to round."""
    return bool(np.median(np.abs(np.diff(power_w, axis=1))) > times * np.median(np.abs(np.diff(power_w, axis=0))))


def _in_turn(time_s: Array, power_w: Array) -> int:
    """How many boards are polled in turn, a moment after each other and again after a rest; 1 where it is one board."""
    step = np.diff(time_s)
    for boards in range(2, MOST_BOARDS + 1):
        rounds = len(step) // boards
        if rounds < LEAST_ROUNDS:
            break
        steps = step[: rounds * boards].reshape(rounds, boards)
        rest = int(np.bincount(steps.argmax(axis=1)).argmax())
        close = steps.sum(axis=1) - steps[:, rest] < CLOSE * steps[:, rest]
        if np.mean(close) < NEAR_SHARE:
            continue
        begin = (rest + 1) % boards
        whole = (len(power_w) - begin) // boards
        power = power_w[begin : begin + whole * boards].reshape(whole, boards)
        if np.mean(np.any(power != power[:, :1], axis=1)) >= NEAR_SHARE and _changes_within(power, APART):
            return boards
    return 1


def _repeated_in_turn(power_w: Array) -> int:
    """How many boards' readings stand in turn, by values that come back after as many rows and not before; 1 where none do.

    Whatever the distances of the polls: those of a second board may lie halfway between the first one's.
    """
    if len(power_w) < MOST_BOARDS * LEAST_ROUNDS:
        return 1
    for boards in range(2, MOST_BOARDS + 1):
        if float(np.mean(power_w[boards - 1 :] == power_w[: 1 - boards])) >= NEW_SHARE:
            return 1
        places = [power_w[place::boards] for place in range(boards)]
        if max(float(np.mean(place[1:] == place[:-1])) for place in places) > HELD_SHARE:
            return boards
    return 1

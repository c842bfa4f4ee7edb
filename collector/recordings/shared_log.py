"""Logs that several boards share without a column that says whose a row is."""

from typing import Final

import numpy as np

from collector.errors import SensorError
from estimator.quantities import Array

TOGETHER_SHARE: Final = 0.8
"""Where this share of the rows has the time of the row before, rows lie side by side."""
DIFFERENT_SHARE: Final = 0.5
"""Rows of one time that differ this often are several boards'; of one board they differ only where an update came between."""
FEWEST_ROWS: Final = 4
LEAST_GROUPS: Final = 4
"""Fewer groups of rows of one time say nothing."""
MOST_BOARDS: Final = 8
LEAST_ROUNDS: Final = 20
"""Rounds of polls from board to board after which a pattern of the distances is none by chance."""
CLOSE: Final = 0.5
"""Polls of one round together take less than this share of the time to the next round."""
NEAR_SHARE: Final = 0.9
"""Of the rounds so many must look like that, and differ within."""
APART: Final = 4.0
"""Power differs so many times more within a round than a place in the round from one round to the next."""


def check_one_board(time_s: Array, power_w: Array, where: str, remedy: str, *, fine: bool) -> None:
    """Raises SensorError, with `remedy`, for rows of several boards that nothing tells apart; shape (n,) each.

    `fine` says that stamps are finer than a board is polled, as nvidia-smi's are: rows of one time that differ are then several boards',
    else only those whose power differs more within a group than from group to group.
    """
    known = np.isfinite(time_s)
    time_s, power_w = time_s[known], np.where(np.isfinite(power_w), power_w, 0.0)[known]
    if len(time_s) < FEWEST_ROWS:
        return
    boards, group = _side_by_side(time_s, power_w)
    differ = float(np.mean(np.any(group != group[:, :1], axis=1)))
    if boards == 1 or differ < DIFFERENT_SHARE or not (fine or _changes_within(group, 1.0)):
        boards = _in_turn(time_s, power_w)
    if boards > 1:
        raise SensorError(f"{where}: rows come {boards} at a time, as of {boards} boards, and no column says whose they are; {remedy}")


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

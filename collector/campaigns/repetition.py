"""What is measured again: rows that are not sure enough at once, rows that something passing has spoilt at the end.

Whether a point needs another trial follows from its trials on disk alone, so that a campaign that was interrupted goes on as if
it had not been.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from collector.campaigns.files import CampaignSpec
from collector.campaigns.measurement import Point
from collector.devices.protocols import THROTTLE_BITS, limiting_reasons

ROW_ID_DIGITS: Final = 16
PASSING_FLAGS: Final = frozenset(
    {
        "clock_varied", "unsettled", "drifting", "hot", "latency_unsteady", "range_mismatch", "power_missing", "sensor_stuck",
        "shared_board", "counter_absurd",
    }
)  # fmt: skip
"""Doubts that another run may not have.  A board at its power limit is at it every time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a row on disk says to whether its point is measured again; power and its error are nan where they are not known [W]."""

    doubts: tuple[str, ...]
    power_w: float
    power_std_w: float


def passing_doubts(flags: Any, throttle_reasons: int) -> tuple[str, ...]:
    """The flags for which a row is worth another run; a throttled one where anything but the power limit slowed the board."""
    others = limiting_reasons(throttle_reasons & ~THROTTLE_BITS["sw_power_cap"])
    return tuple(flag for flag in flags if flag in PASSING_FLAGS or (flag == "throttled" and others))


class Trials:
    """The trials of all points so far, by row id."""

    def __init__(self, *tables: pa.Table | None) -> None:
        """Takes the rows that are on disk already."""
        self._trials: dict[str, Trial] = {}
        for table in filter(None, tables):
            for row in table.select(["row_id", "flags", "throttle_reasons", "power_w", "power_std_w"]).to_pylist():
                self.add(row)

    def __contains__(self, row_id: str) -> bool:
        return row_id in self._trials

    def __len__(self) -> int:
        return len(self._trials)

    def add(self, row: Mapping[str, Any]) -> None:
        """A row that is on disk."""
        power, std = (np.nan if row[name] is None else row[name] for name in ("power_w", "power_std_w"))
        doubts = passing_doubts(row["flags"], row["throttle_reasons"])
        self._trials[row["row_id"]] = Trial(doubts=doubts, power_w=power, power_std_w=std)

    def pending(self, points: Sequence[Point], spec: CampaignSpec) -> bool:
        """Whether anything is left to measure: points without a row, or with rows that are not sure enough or spoilt."""
        return any(
            point.row_id not in self or self.next_for_precision(point, spec) is not None or self.next_for_doubts(point, spec) is not None
            for point in points
        )

    def of(self, point: Point) -> list[Trial]:
        """The trials of a planned point, in the order in which they were made."""
        found: list[Trial] = []
        while (trial := self._trials.get(repeated(point, len(found)).row_id)) is not None:
            found.append(trial)
        return found

    def next_for_precision(self, point: Point, spec: CampaignSpec) -> Point | None:
        """Another trial of a point whose power is not yet as sure as asked; None where it is, or will not be."""
        if not spec.target_std_share or point.anchor:
            return None
        trials = self.of(point)
        sure = [trial for trial in trials if not trial.doubts and np.isfinite(trial.power_w)]
        if not sure or len(trials) >= spec.most_trials or standard_error_share(sure) <= spec.target_std_share:
            return None
        return repeated(point, len(trials))

    def next_for_doubts(self, point: Point, spec: CampaignSpec) -> Point | None:
        """Another trial of a point whose every trial something passing has spoilt; None where it is not worth one."""
        trials = self.of(point)
        most = spec.retries + (spec.most_trials if spec.target_std_share else 1)
        if point.anchor or not trials or len(trials) >= most or any(not trial.doubts for trial in trials):
            return None
        return repeated(point, len(trials))


def repeated(point: Point, number: int) -> Point:
    """Trial `number` of a planned point; 0 is the point itself."""
    if number == 0:
        return point
    digest = hashlib.sha256(f"{point.row_id}/{number}".encode()).hexdigest()
    return replace(point, row_id=digest[:ROW_ID_DIGITS], trial=point.trial + number)


def standard_error_share(trials: list[Trial]) -> float:
    """Standard error of the mean power of trials, as a share of it: by their own errors, or by their scatter where that is larger.

    nan errors count as infinite: such a mean is never sure.
    """
    power = np.array([trial.power_w for trial in trials])
    own = np.array([trial.power_std_w for trial in trials])
    own = np.where(np.isfinite(own), own, np.inf)
    error = float(np.sqrt((own**2).sum())) / len(trials)
    if len(trials) > 1:
        error = max(error, float(power.std(ddof=1)) / np.sqrt(len(trials)))
    return float(error / power.mean()) if power.mean() > 0 else np.inf

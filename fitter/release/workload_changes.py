"""What a change of bundle changes for those who ask: predictions of workloads with the old and with the new one."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, isfinite, log, nan
from pathlib import Path
from typing import Any, Final

from estimator.bundles.content import Bundle
from estimator.formats import read_workload
from estimator.questions.estimates import Estimate, estimate
from estimator.resources import resource_folder
from estimator.workload import Workload

LEAST_CHANGE: Final = 0.02
"""Smaller changes of a prediction are not worth a line [1]."""

QUANTITIES: Final = (("latency", "s"), ("power", "w"), ("energy", "j"))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadChange:
    """One quantity of one workload at one clock as two bundles predict it.

    sigmas   |ln(new / old)| over the standard deviation that both state together; nan where none is stated
    """

    workload: str
    sm_clock_mhz: float
    quantity: str
    unit: str
    old: float
    new: float
    sigmas: float

    @property
    def change(self) -> float:
        """new / old - 1 [1]; nan where one of them is unknown."""
        return self.new / self.old - 1.0 if self.old > 0.0 else nan

    @property
    def telling(self) -> bool:
        """Whether it changes by more than LEAST_CHANGE, or one bundle does not know it."""
        return isfinite(self.old) != isfinite(self.new) or abs(self.change) > LEAST_CHANGE

    def document(self) -> dict[str, Any]:
        """As plain data; what is unknown is null."""
        figures = {"old": self.old, "new": self.new, "change": self.change, "sigmas": self.sigmas}
        known = {name: value if isfinite(value) else None for name, value in figures.items()}
        place = {"workload": self.workload, "sm_clock_mhz": self.sm_clock_mhz, "quantity": f"{self.quantity}_{self.unit}"}
        return {**place, **known, "telling": self.telling}


def workloads_of(files: Sequence[str]) -> list[Workload]:
    """Workloads of files, or those that are shipped.  Errors as those of `read_workload`."""
    paths = [Path(name) for name in files] or sorted(resource_folder("examples").glob("*.json"))
    return [read_workload(path) for path in paths]


def workload_changes(old: Bundle, new: Bundle, workloads: Sequence[Workload]) -> list[WorkloadChange]:
    """Every quantity at the lowest, the middle and the highest clock that both bundles have seen; each bundle on its own GPU."""
    low, high = (max(old.clocks_mhz[0], new.clocks_mhz[0]), min(old.clocks_mhz[1], new.clocks_mhz[1]))
    clocks = sorted({low, 0.5 * (low + high), high}) if low <= high else None
    found = []
    for workload in workloads:
        answers = [estimate(workload, bundle, sm_clock_mhz=clocks) for bundle in (old, new)]
        for first, second in zip(*answers, strict=True):
            found += [_change(workload.name, first, second, quantity, unit) for quantity, unit in QUANTITIES]
    return found


def _change(name: str, first: Estimate, second: Estimate, quantity: str, unit: str) -> WorkloadChange:
    field = f"{quantity}_{unit}"
    old, new = (float(getattr(answer, field)) for answer in (first, second))
    old_std, new_std = (float(getattr(answer, f"{field}_std")) for answer in (first, second))
    known = old > 0.0 and new > 0.0
    spread = hypot(old_std / old, new_std / new) if known else nan
    return WorkloadChange(
        workload=name,
        sm_clock_mhz=first.asked_clock_mhz,
        quantity=quantity,
        unit=unit,
        old=old,
        new=new,
        sigmas=abs(log(new / old)) / spread if known and spread > 0.0 else nan,
    )


def change_lines(changes: Sequence[WorkloadChange]) -> list[str]:
    """Workloads that change notably, for people."""
    if not changes:
        return ["no workload to compare: name one with --workload"]
    workloads = dict.fromkeys(change.workload for change in changes)
    telling = [change for change in changes if change.telling]
    if not telling:
        return [f"none of {len(workloads)} workloads changes by more than {LEAST_CHANGE:.0%}"]
    width = max(len(change.workload) for change in telling)
    lines = [f"workloads that change by more than {LEAST_CHANGE:.0%}:"]
    for one in telling:
        share = f"{one.change:+8.1%}" if isfinite(one.change) else f"{'–':>8}"
        sigmas = f"  {one.sigmas:.1f} standard deviations" if isfinite(one.sigmas) else ""
        place = f"{one.workload:{width}}  {one.sm_clock_mhz:6.0f} MHz  {one.quantity:7}"
        lines.append(f"  {place} {one.old:10.4g} → {one.new:10.4g} {one.unit.upper() if one.unit != 's' else 's'}{share}{sigmas}")
    return lines

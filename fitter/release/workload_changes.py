"""Effect of a bundle's change on answers: predictions of workloads with the old and with the new bundle."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, isfinite, log, nan
from pathlib import Path
from typing import Final

from estimator.bundle.content import Bundle
from estimator.formats import read_workload
from estimator.questions.estimates import estimate
from estimator.vocabulary.resources import resource_folder
from estimator.vocabulary.workload import Workload
from fitter.validate.tables import Shown

LEAST_CHANGE: Final = 0.02
"""Least relative change of a prediction that gets a line [1]."""

QUANTITIES: Final = ("latency_s", "power_w", "energy_j")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadChange:
    """One quantity of one workload at one clock as two bundles predict it.

    sigmas   |ln(new / old)| over the combined standard deviation; nan if none is stated
    """

    workload: str
    sm_clock_mhz: float
    quantity: str
    old: float
    new: float
    sigmas: float

    @property
    def change(self) -> float:
        """new / old - 1 [1]; nan if one of them is unknown."""
        return self.new / self.old - 1.0 if self.old > 0.0 else nan

    @property
    def telling(self) -> bool:
        """Whether it changes by more than LEAST_CHANGE, or one bundle lacks it."""
        return isfinite(self.old) != isfinite(self.new) or abs(self.change) > LEAST_CHANGE


def workloads_of(files: Sequence[str]) -> list[Workload]:
    """Workloads of files, or the shipped ones.  Raises the errors of `read_workload`."""
    paths = [Path(name) for name in files] or sorted(resource_folder("examples").glob("*.json"))
    return [read_workload(path) for path in paths]


def workload_changes(old: Bundle, new: Bundle, workloads: Sequence[Workload]) -> list[WorkloadChange]:
    """Every quantity at the lowest, the middle and the highest clock in the range of both bundles; each bundle on its own GPU."""
    low, high = (max(old.clocks_mhz[0], new.clocks_mhz[0]), min(old.clocks_mhz[1], new.clocks_mhz[1]))
    clocks = sorted({low, 0.5 * (low + high), high}) if low <= high else None
    found = []
    for workload in workloads:
        answers = [estimate(workload, bundle, sm_clock_mhz=clocks) for bundle in (old, new)]
        for pair in zip(*answers, strict=True):
            for quantity in QUANTITIES:
                before, after = (float(getattr(answer, quantity)) for answer in pair)
                spreads = (float(getattr(answer, f"{quantity}_std")) / float(getattr(answer, quantity) or nan) for answer in pair)
                known, spread = before > 0.0 and after > 0.0, hypot(*spreads)
                sigmas = abs(log(after / before)) / spread if known and spread > 0.0 else nan
                place = {"workload": workload.name, "sm_clock_mhz": pair[0].asked_clock_mhz, "quantity": quantity}
                found.append(WorkloadChange(**place, old=before, new=after, sigmas=sigmas))
    return found


def change_table(changes: Sequence[WorkloadChange]) -> list[str]:
    """Table of workloads that change notably."""
    if not changes:
        return ["no workload to compare: name one with --workload"]
    telling = [change for change in changes if change.telling]
    if not telling:
        return [f"none of {len({change.workload for change in changes})} workloads changes by more than {LEAST_CHANGE:.0%}"]
    rows = [(one.workload, one.sm_clock_mhz, one.quantity, one.old, one.new, f"{one.change:+.1%}", one.sigmas) for one in telling]
    head = ("workload", "MHz", "quantity", "old", "new", "change", "std deviations")
    return Shown(title=f"workloads that change by more than {LEAST_CHANGE:.0%}:", head=head, rows=rows).lines()

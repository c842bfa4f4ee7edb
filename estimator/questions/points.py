"""Predictions at many operating points: columns of numbers, and the common data of the points of one workload on one GPU."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Generic, TypeVar

import numpy as np

from estimator.model.power_limit import STAYS_ABOVE
from estimator.uncertainty.validity import Validity, clock_warning, outside_clock
from estimator.vocabulary.errors import OperatingPointError
from estimator.vocabulary.quantities import Array, BoolArray, IntArray
from estimator.vocabulary.values import frozen

LABELS: Final = ("workload", "bundle", "gpu", "gpus", "batch", "sequence", "precision", "attention")
"""Columns that identify the case of a point."""


LEAST_MISSING: Final = 0.01
"""Least share of operators of unknown kinds that makes an answer unusable."""

LAUNCH_BOUND: Final = (
    "launch-bound: the GPU waits {:.0%} of the time for the host's launches, {:.3g} µs an operator; give --host-launch-us for another host"
)


@frozen
class Case:
    """Common data of the points of one workload on one GPU.

    gpus: how many of them share the work.  batch, sequence, tokens: 0 if unknown.  fitted_clocks_mhz: lowest and highest fitted SM
    clock of the bundle.
    validity: as in an estimate, for any clock.  warnings: differences between the case and the fitted data, for any clock;
    notes: further information; too_large: the warnings about the board's memory; missing: share of operators of unknown kinds.
    launch_s: host time to launch one framework operator [s].
    """

    workload: str
    model_family: str
    bundle: str
    gpu: str
    gpus: int
    simulated: bool
    batch: int
    sequence: int
    tokens: float
    precision: str
    attention: str
    power_limit_w: float
    fitted_clocks_mhz: tuple[float, float]
    validity: Validity
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    too_large: tuple[str, ...] = ()
    missing: float = 0.0
    launch_s: float = math.nan


V = TypeVar("V", float, Array)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Values(Generic[V]):
    """Numbers of a point, or their columns."""

    asked_clock_mhz: V
    sm_clock_mhz: V
    latency_s: V
    latency_s_std: V
    power_w: V
    power_w_std: V
    energy_j: V
    energy_j_std: V
    latency_s_std_elsewhere: V
    power_w_std_elsewhere: V
    energy_j_std_elsewhere: V
    gpu_s: V
    launch_bound_share: V
    sm_clock_mhz_low: V
    sm_clock_mhz_high: V
    latency_s_low: V
    latency_s_high: V
    power_w_low: V
    power_w_high: V
    energy_j_low: V
    energy_j_high: V


VALUES: Final = tuple(one.name for one in fields(Values))
"""Columns of numbers of a sweep."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Sweep(Values[Array]):
    """Predictions at n operating points, as columns of shape (n,).

    cases             workload and GPU of the points, with warnings
    case              index of each point's case
    asked_clock_mhz   requested SM clock; sm_clock_mhz is the actual one under the power limit [MHz]
    latency_s, power_w, energy_j of one iteration, power and energy of all GPUs of a group, each with its standard deviation `…_std`,
                      nan where unknown: in this laboratory (hardware and habits as behind the bundle); `…_std_elsewhere`: in another one
    …_low, …_high     limits of the 90 % intervals of these and of sm_clock_mhz
    gpu_s             time of the GPU's kernels [s]; launch_bound_share  share of the host's launches in the latency
    above_limit       whether the power stays above the limit even at the lowest clock
    """

    cases: tuple[Case, ...]
    case: IntArray
    above_limit: BoolArray

    def __len__(self) -> int:
        return len(self.case)

    @property
    def unusable(self) -> bool:
        """Whether any point should not be used: it has no time, its model does not fit into memory, or a part of it is not modelled."""
        cases = [self.cases[i] for i in self.present()]
        return not np.isfinite(self.latency_s).all() or any(case.too_large or case.missing >= LEAST_MISSING for case in cases)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The columns of every point by name, so that `pandas.DataFrame(points)` has a row for each."""
        columns = self.columns()
        return (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))

    def columns(self) -> dict[str, list[Any]]:
        """Every column as a list: LABELS, VALUES, costs of a request, `above_limit`, `outside_fitted_clocks`, `validity`, `fits`,
        `warnings`; nan: unknown number; None: unknown batch or sequence.
        """
        return {
            **{name: [None if value == 0 else value for value in self.label(name)] for name in LABELS},
            **{name: getattr(self, name).tolist() for name in VALUES},
            **{name: column.tolist() for name, column in self.per_request().items()},
            "above_limit": self.above_limit.tolist(),
            "outside_fitted_clocks": self.outside_clock().tolist(),
            "validity": self.validity(),
            "fits": [not found for found in self.label("too_large")],
            "warnings": ["; ".join(found) for found in self.label("warnings")],
        }

    def select(self, index: IntArray | BoolArray) -> "Sweep":
        """The points `index`, a list of indices or a mask; all cases stay."""
        arrays = {name: getattr(self, name)[index] for name in (*VALUES, "case", "above_limit")}
        return Sweep(cases=self.cases, **arrays)

    def label(self, name: str) -> list[Any]:
        """A field of every point's case."""
        values = [getattr(case, name) for case in self.cases]
        return [values[i] for i in self.case.tolist()]

    @property
    def warnings(self) -> list[tuple[str, str]]:
        """(workload, line) for every difference between a point, or its case, and the fitted data of its bundle.

        Of several clocks outside the fitted range the first one is named.  What does not fit into memory comes first.
        """
        lines = self._case_lines("warnings")
        for first, case in self._first(self.outside_clock()):
            clocks = float(self.asked_clock_mhz[first]), float(self.sm_clock_mhz[first])
            lines += [(case.workload, line) for line in clock_warning(case.fitted_clocks_mhz, *clocks)]
        lines += [(case.workload, STAYS_ABOVE.format(case.power_limit_w)) for _, case in self._first(self.above_limit)]
        large = {line for case in self.cases for line in case.too_large}
        return sorted(lines, key=lambda one: one[1] not in large)

    def present(self) -> list[int]:
        """Indices of the cases that have a point, in their order."""
        found: list[int] = np.unique(self.case).tolist()
        return found

    def outside_clock(self) -> BoolArray:
        """Whether the requested or the lowered clock of a point is outside the fitted range, shape (n,)."""
        low, high = np.array([case.fitted_clocks_mhz for case in self.cases]).reshape(-1, 2)[self.case].T
        return outside_clock(low, high, self.asked_clock_mhz) | outside_clock(low, high, self.sm_clock_mhz)

    def validity(self) -> list[Validity]:
        """Validity of every point, as in `estimator.questions.estimates.Estimate.validity`."""
        found = zip(self.label("validity"), self.outside_clock().tolist(), strict=True)
        return ["extrapolated" if beyond and one == "measured" else one for one, beyond in found]

    @property
    def notes(self) -> list[tuple[str, str]]:
        """(workload, line) for every note; of several points that wait for the host the first one is named."""
        waits = 1.0 - self.gpu_s / self.latency_s
        slow = self._first(self.launch_bound_share > 0.3)
        lines = [(case.workload, LAUNCH_BOUND.format(max(waits[i], 0.0), 1e6 * case.launch_s)) for i, case in slow]
        return self._case_lines("notes") + lines

    def _first(self, points: BoolArray) -> list[tuple[int, Case]]:
        """The first of these points of every case, with the case."""
        index = np.flatnonzero(points)
        first = index[np.unique(self.case[index], return_index=True)[1]].tolist()
        return [(i, self.cases[self.case[i]]) for i in first]

    def _case_lines(self, kind: str) -> list[tuple[str, str]]:
        return [(self.cases[i].workload, line) for i in self.present() for line in getattr(self.cases[i], kind)]

    def per_request(self) -> dict[str, Array]:
        """Requests and tokens of an iteration, and costs of each, shape (n,); nan where the batch or the tokens are unknown."""
        served, computed = (np.array([value or np.nan for value in self.label(name)], dtype=np.float64) for name in ("batch", "tokens"))
        return {
            "requests": served,
            "tokens": computed,
            "latency_per_request_s": self.latency_s / served,
            "energy_per_request_j": self.energy_j / served,
            "tokens_per_s": computed / self.latency_s,
            "tokens_per_j": computed / self.energy_j,
        }


def joined_sweeps(pieces: Sequence[Sweep]) -> Sweep:
    """Several sweeps joined into one."""
    if not pieces:
        raise OperatingPointError("nothing to sweep: name at least one workload and one bundle")
    offsets = np.cumsum([0, *(len(piece.cases) for piece in pieces[:-1])])
    arrays = {name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in (*VALUES, "above_limit")}
    case = np.concatenate([piece.case + offset for piece, offset in zip(pieces, offsets, strict=True)])
    return Sweep(cases=tuple(case for piece in pieces for case in piece.cases), case=case, **arrays)

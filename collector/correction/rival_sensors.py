"""Other sensors that a recording's readings are held against: their responses, boards that follow late, and the fits of both."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from collector.correction.response import LEAST_WIDTH_S, SensorResponse
from collector.correction.updates import BoardUpdates
from collector.energy.execution_fit import ExecutionFit, fit_executions
from collector.energy.repeated_energy import fit_settings
from collector.errors import SensorError
from collector.sensor.calibration import SensorCalibration
from collector.sensor.load import LatePart, LoadStamps
from estimator.quantities import Array

OTHER_KERNELS: Final = (
    ("boxcar", 0.1), ("boxcar", 0.25), ("boxcar", 0.5), ("boxcar", 1.0), ("boxcar", 10.0), ("low-pass", 0.25), ("low-pass", 1.0),
)  # fmt: skip
"""Averagings that are tried in place of the stated one, widths in update periods: the spread of the catalogue's boards."""
OTHER_DELAYS: Final = (-0.1, 0.0, 0.25, 0.5)
"""Delays that are tried, in update periods; under a load that repeats with the updates a whole period more looks the same."""
NEAR_WIDTHS: Final = (0.6, 0.8, 1.25, 1.6)
NEAR_DELAYS_S: Final = (-8e-3, -4e-3, -2e-3, 2e-3, 4e-3, 8e-3)
"""Around the stated response: widths as shares of its own, delays off by so much."""
TURNED_WIDTHS: Final = (0.5, 0.7, 1.0, 1.4, 2.0)
"""Widths of the other kernel, as shares of the stated width, with the stated delay and with the stated mean age of a reading."""
LATE_PARTS: Final = tuple(
    LatePart(share=share, time_s=time_s) for share in (0.05, 0.1, 0.15, 0.2, 0.3) for time_s in np.geomspace(5e-3, 0.08, 9).tolist()
)
"""Parts of the power that may follow the load late: of published boards' steps 60 to 100 % come at once."""
FEW_LATE_PARTS: Final = tuple(LatePart(share=share, time_s=time_s) for share in (0.1, 0.2, 0.3) for time_s in (8e-3, 0.02, 0.05))
"""The same for a board that another sensor reads: fewer, which speaks for the stated one."""
STATED_Z: Final = 3.0
"""Standard errors within which another width or delay is the stated one: the energies' errors hold it."""
FREE_BINS: Final = 64
"""Parts of an execution with which a contradiction is confirmed, whatever the responses' widths: what a coarse profile leaves of levels
within an execution, a narrower averaging, whose profile is finer, would explain."""
PROBE_UPDATES: Final = 300
"""Updates that other responses are tried on; enough to tell them apart, and soon done."""
BLOCKS: Final = 12
TINY_W2: Final = 1e-18


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tried:
    """A fit of the probe, and the sensor and the board that it was made with; one is equal to itself alone."""

    response: SensorResponse
    late: LatePart | None
    fit: ExecutionFit


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The part of a recording on which responses are compared: updates `time_s`, `value` (n,) and the executions among them."""

    time_s: Array
    value: Array
    load: LoadStamps
    updates: BoardUpdates
    calibration: SensorCalibration

    def tried(self, response: SensorResponse, late: LatePart | None = None, *, free: bool = False) -> Tried | None:
        """The fit by a response, on a board with a late part or without, of a `free` profile or one as fine as the averaging tells; None
        where too few readings are left to it.
        """
        try:
            settings = replace(fit_settings(self.calibration, response, self.load, self.updates, 0.0), late=late)
            if free:
                settings = replace(settings, bins=FREE_BINS, wide_profile=True)
            return Tried(response=response, late=late, fit=fit_executions(self.time_s, self.value, response, self.load, settings))
        except SensorError:
            return None

    def left_w(self, tried: Tried) -> float:
        """Root mean square of what a fit leaves of the readings that it used."""
        return left_w(self.value, tried.fit)

    def lead_without_an_event(self, one: Tried, other: Tried) -> float:
        """Log-likelihood by which the residuals of one fit lead another's where the block of readings that says most for it is left out.

        The other's noise is taken, which holds its misfit.
        """
        both = one.fit.used & other.fit.used
        less_w2 = (self.value - other.fit.predicted_w)[both] ** 2 - (self.value - one.fit.predicted_w)[both] ** 2
        blocks_w2 = np.array([part.sum() for part in np.array_split(less_w2, BLOCKS)])
        return float(blocks_w2.sum() - blocks_w2.max()) / (2.0 * max(other.fit.noise_w**2, TINY_W2))


def left_w(value: Array, fit: ExecutionFit) -> float:
    """Root mean square of what a fit leaves of the readings `value` (n,) that it used."""
    return float(np.sqrt(np.mean((value - fit.predicted_w)[fit.used] ** 2)))


def probe_of(updates: BoardUpdates, load: LoadStamps, calibration: SensorCalibration, stated: SensorResponse) -> Probe:
    """The load's first updates, and the executions among them."""
    first = int(np.searchsorted(updates.time_s, load.start_s[0] - stated.reach_s))
    part = slice(max(first - 1, 0), first + PROBE_UPDATES)
    time_s = updates.time_s[part]
    count = max(int(np.count_nonzero(load.end_s <= time_s[-1])), 1)
    known = replace(
        load,
        start_s=load.start_s[:count],
        end_s=load.end_s[:count],
        level=None if load.level is None else load.level[:count],
        known_until_s=load.known_until_s if count == len(load.start_s) else float(load.start_s[count]),
    )
    return Probe(time_s=time_s, value=updates.value[part], load=known, updates=updates, calibration=calibration)


def lead(one: Tried, other: Tried) -> float:
    """Log-likelihood by which a fit leads another one, over the readings that both used."""
    return min(int(np.count_nonzero(one.fit.used)), int(np.count_nonzero(other.fit.used))) * (one.fit.evidence - other.fit.evidence)


def likeliest(found: Iterable[Tried | None], base: Tried) -> Tried:
    """The likeliest fit, the base where none leads it."""
    return max((base, *(tried for tried in found if tried is not None)), key=lambda tried: lead(tried, base))


def other_responses(stated: SensorResponse, updates: BoardUpdates, *, far: bool) -> list[SensorResponse]:
    """Responses that a sensor may have in place of the stated one: near it, and where `far` those of the catalogue's boards."""
    turned = "low-pass" if stated.kernel == "boxcar" else "boxcar"
    near = near_widths(stated)
    near += [stated.moved(delay_s=delay_s) for delay_s in NEAR_DELAYS_S]
    for share in TURNED_WIDTHS:
        width_s = max(share * stated.width_s, LEAST_WIDTH_S)
        near.append(replace(stated, kernel=turned, width_s=width_s))
        near.append(replace(stated, kernel=turned, width_s=width_s, delay_s=stated.lag_s - 0.5 * width_s))
    averagings = [
        (stated.kernel, stated.width_s),
        ("boxcar", LEAST_WIDTH_S),
        *((kernel, share * updates.period_s) for kernel, share in OTHER_KERNELS),
    ]
    boards = [
        SensorResponse(kernel=kernel, width_s=width_s, delay_s=delay * updates.period_s)
        for kernel, width_s in averagings
        for delay in OTHER_DELAYS
    ]
    found = [other for other in (*near, *(boards if far else ())) if not within(other, stated, updates.time_std_s)]
    return list(dict.fromkeys(found))


def near_widths(stated: SensorResponse) -> list[SensorResponse]:
    """The stated response with other widths."""
    return [stated.moved(width_s=(share - 1.0) * stated.width_s) for share in NEAR_WIDTHS]


def within(other: SensorResponse, stated: SensorResponse, time_std_s: float) -> bool:
    """Whether a response is the stated one within its errors and those of the updates' times: without a grid, a share of a poll."""
    width_std, delay_std = float(np.hypot(stated.width_std_s, time_std_s)), float(np.hypot(stated.delay_std_s, time_std_s))
    width, delay = abs(other.width_s - stated.width_s), abs(other.delay_s - stated.delay_s)
    return other.kernel == stated.kernel and width <= STATED_Z * width_std and delay <= STATED_Z * delay_std

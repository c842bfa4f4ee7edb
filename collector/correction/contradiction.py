"""Whether readings contradict the sensor that they are corrected by: what the fit leaves, and energies that cannot be.

A wrong averaging or delay gives wrong energies with small errors.  Where executions repeat, the readings themselves tell: with
the right sensor the fit leaves 0.3 to 2 % of their swing (recorded boards), with another's 10 to 40 %.  A width or delay that is
off by a share leaves little more than the right one, but is far less likely than it: a width 40 % too large leaves 2.2 % of the
recorded A100's swing and is e⁻⁵⁰ times as likely.  One long execution does not tell, and there the averaging matters little.
A board that follows its load late looks like one with a longer averaging: where both explain the readings, both are said.
"""

import math
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import numpy as np

from collector.correction.response import LEAST_WIDTH_S, SensorResponse
from collector.correction.updates import BoardUpdates
from collector.energy.execution_fit import ExecutionFit, fit_executions
from collector.energy.repeated_energy import RepeatedEnergy, alike, fit_settings
from collector.errors import SensorError
from collector.sensor.calibration import SensorCalibration
from collector.sensor.load import LatePart, LoadStamps
from estimator.quantities import Array

MISFIT_SHARE: Final = 0.05
MISFIT_NOISES: Final = 4.0
"""Root mean square that a fit may leave, as a share of the readings' swing, and in multiples of what the calibration states, its
noise or the residual of its own fit."""
DOUBTED_SHARE: Final = 0.01
DOUBTED_NOISES: Final = 2.0
"""The same for a fit that is held against those of other responses; one of them may be another load's, not another sensor's."""
MOST_Z: Final = 3.0
"""Standard errors by which the executions' energy may exceed that of the load that holds them."""
EXPLAINS_SHARE: Final = 0.5
"""Another response explains the readings where it leaves less than this share of the misfit."""
LIKELIER_LEAD: Final = 15.0
LIKELIER_SHARE: Final = 0.9
"""And where executions are alike, with a log-likelihood that leads by so much, what it leaves is less than this share, and the
energy it gives is another beyond errors: twice the lead by which a kernel is claimed, as the model of power has its own faults."""
OTHER_KERNELS: Final = (
    ("boxcar", 0.1), ("boxcar", 0.25), ("boxcar", 0.5), ("boxcar", 1.0), ("boxcar", 10.0), ("low-pass", 0.25), ("low-pass", 1.0),
)  # fmt: skip
"""Averagings that are tried in place of the stated one, widths in update periods: the spread of the catalogue's boards."""
OTHER_DELAYS: Final = (-0.1, 0.0, 0.25, 0.5)
"""Delays that are tried, in update periods; under a load that repeats with the updates a whole period more looks the same."""
NEAR_WIDTHS: Final = (0.6, 0.8, 1.25, 1.6)
NEAR_DELAYS_S: Final = (-8e-3, -4e-3, -2e-3, 2e-3, 4e-3, 8e-3)
"""Around the stated response: widths as shares of its own, delays off by so much."""
LATE_PARTS: Final = tuple(
    LatePart(share=share, time_s=time_s) for share in (0.05, 0.1, 0.15, 0.2, 0.3) for time_s in np.geomspace(5e-3, 0.08, 9).tolist()
)
"""Parts of the power that may follow the load late: of published boards' steps 60 to 100 % come at once."""
STATED_Z: Final = 3.0
"""Standard errors within which another width or delay is the stated one: the energies' errors hold it."""
TINY_W: Final = 1e-9
LEAST_RAMP_S: Final = 5e-3
"""Ramps of readings are taken for no shorter than this: an averaging of less may be what is wrong."""
FREE_BINS: Final = 64
"""Parts of an execution with which a contradiction is confirmed, whatever the responses' widths: what a coarse profile leaves of levels
within an execution, a narrower averaging, whose profile is finer, would explain."""
Tried = TypeVar("Tried")
PROBE_UPDATES: Final = 300
"""Updates that other responses are tried on; enough to tell them apart, and soon done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probe:
    """The part of a recording on which responses are compared."""

    time_s: Array
    value: Array
    load: LoadStamps


def contradictions(updates: BoardUpdates, load: LoadStamps, calibration: SensorCalibration, found: RepeatedEnergy) -> dict[str, str]:
    """What speaks against the sensor, by key: `sensor` for the misfit, `execution_energy` for energies that cannot be; {} where nothing."""
    notes = {}
    if text := _misfit(updates, load, calibration, found):
        notes["sensor"] = text
    if text := _excess(found):
        notes["execution_energy"] = text
    return notes


def _excess(found: RepeatedEnergy) -> str:
    """A remark where the executions take more than the load that holds them, pauses included."""
    sum_j, sum_std_j = found.executions * found.energy_j, found.executions * found.energy_std_j
    if sum_j - found.total_j <= MOST_Z * math.hypot(sum_std_j, found.total_std_j):
        return ""
    return (
        f"{found.executions} executions of {found.energy_j:.4g} J make {sum_j:.4g} J, more than the {found.total_j:.4g} J of the load "
        "that holds them: neither energy holds; characterise this board's sensor, check the load's stamps"
    )


def _misfit(updates: BoardUpdates, load: LoadStamps, calibration: SensorCalibration, found: RepeatedEnergy) -> str:
    """A remark where the fit leaves far more than noise; it names what would explain the readings, if anything tried does."""
    left_w, swing_w = _left_w(updates.value, found.fit), float(np.ptp(updates.value[found.fit.used]))
    stated_w = max(calibration.reading_noise_w or 0.0, calibration.residual_w or 0.0)
    if left_w <= stated_w:
        return ""
    doubted = left_w > max(DOUBTED_SHARE * swing_w, DOUBTED_NOISES * stated_w)
    if not doubted and not alike(load):
        return ""
    other, late = _explanation(updates, load, calibration, found.response, doubted=doubted)
    time_std_s = math.hypot(updates.time_std_s, found.response.delay_std_s)
    of_times = time_std_s / max(found.response.width_s, LEAST_RAMP_S)  # a ramp read at another time
    unexplained = doubted and left_w > max(MISFIT_SHARE * swing_w, of_times * swing_w, MISFIT_NOISES * stated_w) and alike(load)
    if other is None and (late is not None or not unexplained):
        return ""
    says = "errors do not hold that; is it this board's, driver's and field's sensor, and are the load's stamps on the readings' clock?"
    if other is not None:
        says = f"the readings look like {_name(other)}; energies are wrong beyond their errors: characterise this board's sensor"
    if other is not None and late is not None:
        says = (
            f"either the board's power follows the load late (about {late.share:.0%} of it in {late.time_s * 1e3:.2g} ms) and energies "
            f"hold, or the sensor is another ({_name(other)}) and they are wrong beyond their errors: an external meter tells which"
        )
    return (
        f"the readings contradict the sensor ({_name(found.response)}): the fit leaves {left_w:.3g} W of a swing of {swing_w:.3g} W, "
        f"the sensor's own scatter is {stated_w:.2g} W; {says}"
    )


def _explanation(
    updates: BoardUpdates, load: LoadStamps, calibration: SensorCalibration, stated: SensorResponse, *, doubted: bool
) -> tuple[SensorResponse | None, LatePart | None]:
    """The likeliest of the other responses, and of boards that follow the load late, where they explain what the stated one leaves.

    Far responses are tried where it is `doubted`.  A late part that another response explains better by far is none.
    """
    probe = _probe(updates, load, stated)
    base = _fitted(probe, updates, calibration, stated)
    if base is None:
        return None, None
    other = _likeliest([(_fitted(probe, updates, calibration, tried), tried) for tried in _others(stated, updates, far=doubted)], base)
    if other is not None and not (
        _explains(other[0], base, probe, elsewhere=True, doubted=doubted)
        and _confirmed(other[1], stated, probe, updates, calibration, doubted)
    ):
        other = None
    if other is None and not doubted:
        return None, None
    late = _likeliest([(_fitted(probe, updates, calibration, stated, part), part) for part in LATE_PARTS], base)
    if late is None or not _explains(late[0], base, probe, elsewhere=False, doubted=doubted):
        return (other[1] if other else None), None
    if other is None:
        return None, late[1]
    surpassed = _left_w(probe.value, other[0]) < EXPLAINS_SHARE * _left_w(probe.value, late[0])
    return other[1], (None if surpassed else late[1])


def _likeliest(fits: list[tuple[ExecutionFit | None, Tried]], base: ExecutionFit) -> tuple[ExecutionFit, Tried] | None:
    """The likeliest fit and what it was made with; None where none is likelier than the base."""
    found = [(fit, tried) for fit, tried in fits if fit is not None and _lead(fit, base) > 0.0]
    return max(found, key=lambda one: _lead(one[0], base), default=None)


def _explains(fit: ExecutionFit, base: ExecutionFit, probe: _Probe, *, elsewhere: bool, doubted: bool) -> bool:
    """Whether a fit explains what the base leaves; of executions that are alike also a likelier one, if `elsewhere` with another energy."""
    share = _left_w(probe.value, fit) / max(_left_w(probe.value, base), TINY_W)
    away = abs(fit.energy_j - base.energy_j) > STATED_Z * math.hypot(base.energy_std_j, fit.energy_std_j)
    likelier = alike(probe.load) and _lead(fit, base) > LIKELIER_LEAD and share < LIKELIER_SHARE and (away or not elsewhere)
    return likelier or (doubted and share < EXPLAINS_SHARE)


def _confirmed(
    other: SensorResponse, stated: SensorResponse, probe: _Probe, updates: BoardUpdates, calibration: SensorCalibration, doubted: bool
) -> bool:
    """Whether another response explains what the stated one leaves with free profiles too, equally fine ones of any size."""
    if not alike(probe.load):
        return True
    free = [_fitted(probe, updates, calibration, response, free=True) for response in (other, stated)]
    return free[0] is not None and free[1] is not None and _explains(free[0], free[1], probe, elsewhere=True, doubted=doubted)


def _lead(fit: ExecutionFit, base: ExecutionFit) -> float:
    """Log-likelihood by which a fit leads another one, over the readings that both used."""
    return min(int(np.count_nonzero(fit.used)), int(np.count_nonzero(base.used))) * (fit.evidence - base.evidence)


def _others(stated: SensorResponse, updates: BoardUpdates, *, far: bool) -> list[SensorResponse]:
    """Responses that a sensor may have in place of the stated one: near it, and where `far` those of the catalogue's boards."""
    near = [stated.moved(width_s=(share - 1.0) * stated.width_s) for share in NEAR_WIDTHS]
    near += [stated.moved(delay_s=delay_s) for delay_s in NEAR_DELAYS_S]
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
    return [other for other in (*near, *(boards if far else ())) if not _within(other, stated, updates.time_std_s)]


def _within(other: SensorResponse, stated: SensorResponse, time_std_s: float) -> bool:
    """Whether a response is the stated one within its errors and those of the updates' times: without a grid, a share of a poll."""
    width_std, delay_std = math.hypot(stated.width_std_s, time_std_s), math.hypot(stated.delay_std_s, time_std_s)
    width, delay = abs(other.width_s - stated.width_s), abs(other.delay_s - stated.delay_s)
    return other.kernel == stated.kernel and width <= STATED_Z * width_std and delay <= STATED_Z * delay_std


def _probe(updates: BoardUpdates, load: LoadStamps, stated: SensorResponse) -> _Probe:
    """The load's first updates, and the executions among them."""
    first = int(np.searchsorted(updates.time_s, load.start_s[0] - stated.reach_s))
    part = slice(max(first - 1, 0), first + PROBE_UPDATES)
    time_s = updates.time_s[part]
    count = max(int(np.count_nonzero(load.end_s <= time_s[-1])), 1)
    known = LoadStamps(
        start_s=load.start_s[:count],
        end_s=load.end_s[:count],
        level=None if load.level is None else load.level[:count],
        known_until_s=load.known_until_s if count == len(load.start_s) else float(load.start_s[count]),
    )
    return _Probe(time_s=time_s, value=updates.value[part], load=known)


def _fitted(
    probe: _Probe,
    updates: BoardUpdates,
    calibration: SensorCalibration,
    response: SensorResponse,
    late: LatePart | None = None,
    *,
    free: bool = False,
) -> ExecutionFit | None:
    """The fit of the probe by a response, on a board with a late part or without, of a `free` profile or one as fine as the averaging
    tells; None where too few readings are left to it.
    """
    try:
        settings = replace(fit_settings(calibration, response, probe.load, updates, 0.0), late=late)
        if free:
            settings = replace(settings, bins=FREE_BINS, wide_profile=True)
        return fit_executions(probe.time_s, probe.value, response, probe.load, settings)
    except SensorError:
        return None


def _left_w(value: Array, fit: ExecutionFit) -> float:
    """Root mean square of what a fit leaves of the readings that it used."""
    return float(np.sqrt(np.mean((value - fit.predicted_w)[fit.used] ** 2)))


def _name(response: SensorResponse) -> str:
    """A response in words."""
    return f"{response.kernel} of {response.width_s * 1e3:.3g} ms, delay {response.delay_s * 1e3:.3g} ms"

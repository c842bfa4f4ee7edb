"""Whether readings contradict the sensor that they are corrected by: what the fit leaves, and energies that cannot be.

A wrong averaging or delay gives wrong energies with small errors.  Where executions repeat, the readings themselves tell: with
the right sensor the fit leaves 0.3 to 2 % of their swing (recorded boards), with another's 10 to 40 %.  A width or delay that is
off by a share leaves little more than the right one, but is far less likely than it: a width 40 % too large leaves 2.2 % of the
recorded A100's swing and is e⁻⁵⁰ times as likely.  One long execution does not tell, and there the averaging matters little.
A board that follows its load late looks like one with a longer averaging.  So the stated sensor, on boards that follow at once or
late, is held against others, on such boards as well; what explains the readings as well as the stated sensor is said without alarm.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.correction.response import SensorResponse
from collector.correction.rival_sensors import (
    FEW_LATE_PARTS,
    LATE_PARTS,
    Probe,
    Tried,
    lead,
    left_w,
    likeliest,
    near_widths,
    other_responses,
    probe_of,
    within,
)
from collector.correction.updates import BoardUpdates
from collector.energy.repeated_energy import RepeatedEnergy, alike
from collector.sensor.calibration import SensorCalibration
from collector.sensor.load import LatePart, LoadStamps

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
"""Executions that are alike contradict a sensor where another one, on any board, leads it on any board by this log-likelihood, whatever
single event is left out: twice the lead by which a kernel is claimed, as the model of power has its own faults (a board's noise, which
neighbouring readings share, makes leads of up to ten for a wrong sensor),"""
AWAY_Z: Final = 2.0
"""and gives an energy so many of its standard errors away: what errors hold is no contradiction."""
LIKELIER_SHARE: Final = 0.9
"""A board that follows late, or another sensor: both are said where the other sensor, on a board that follows at once, leads the stated
one on such a board by as much, and leaves less than this share."""
SAME_LEAD: Final = -2.0
"""What is no less likely than this against the likeliest sensor and board, two standard deviations, looks like it."""
LEAST_RAMP_S: Final = 5e-3
"""Ramps of readings are taken for no shorter than this: an averaging of less may be what is wrong."""
TINY_W: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rivals:
    """The stated sensor on a board that follows at once (`base`) and on its likeliest one (`own`), the likeliest other sensor on
    a board that follows at once (`prompt`) and on any (`other`), each the base where none leads it; and all others.
    """

    base: Tried
    own: Tried
    prompt: Tried
    other: Tried
    others: tuple[Tried, ...]


def contradictions(updates: BoardUpdates, load: LoadStamps, calibration: SensorCalibration, found: RepeatedEnergy) -> dict[str, str]:
    """What speaks against the sensor, by key: `sensor` for the misfit, `execution_energy` for energies that cannot be; {} where nothing.

    `sensor_check` is no contradiction: another sensor that these readings do not tell from the stated one.
    """
    notes = _misfit(updates, load, calibration, found)
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


def _misfit(updates: BoardUpdates, load: LoadStamps, calibration: SensorCalibration, found: RepeatedEnergy) -> dict[str, str]:
    """Remarks where the fit leaves far more than noise, or another sensor explains the readings better, or as well."""
    misfit_w, swing_w = left_w(updates.value, found.fit), float(np.ptp(updates.value[found.fit.used]))
    stated_w = max(calibration.reading_noise_w or 0.0, calibration.residual_w or 0.0)
    doubted = misfit_w > max(DOUBTED_SHARE * swing_w, DOUBTED_NOISES * stated_w)
    if not doubted and not alike(load):
        return {}
    probe = probe_of(updates, load, calibration, found.response)
    rivals = _rivals(probe, found.response, doubted=doubted)
    if rivals is None:
        return {}
    beyond = misfit_w > stated_w
    says = ""
    if _contradicts(rivals, probe, found, calibration, doubted=doubted and beyond):
        wrong = "energies are wrong beyond their errors" if _away(rivals.other, rivals, found, calibration) else "power over time is wrong"
        says = f"the readings look like {_name(rivals.other.response)}; {wrong}: characterise this board's sensor"
    elif beyond and rivals.own.late is not None and _likelier(rivals, probe, found, calibration, doubted=doubted):
        says = (
            f"either the board's power follows the load late ({_part(rivals.own.late)}) and energies hold, or the sensor is another "
            f"({_name(rivals.prompt.response)}) and they are wrong beyond their errors: an external meter tells which"
        )
    elif doubted and beyond and _unexplained(min(misfit_w, probe.left_w(rivals.own)), swing_w, stated_w, updates, load, found):
        says = "errors do not hold that; is it this board's, driver's and field's sensor, and are the load's stamps on the readings' clock?"
    if not says:
        return _unchecked(rivals, probe, found, calibration)
    return {
        "sensor": f"the readings contradict the sensor ({_name(found.response)}): the fit leaves {misfit_w:.3g} W of a swing of "
        f"{swing_w:.3g} W, the sensor's own scatter is {stated_w:.2g} W; {says}"
    }


def _unexplained(misfit_w: float, swing_w: float, stated_w: float, updates: BoardUpdates, load: LoadStamps, found: RepeatedEnergy) -> bool:
    """Whether far more is left, on the likeliest board, than the sensor's scatter and the times of its updates make."""
    time_std_s = math.hypot(updates.time_std_s, found.response.delay_std_s)
    of_times = time_std_s / max(found.response.width_s, LEAST_RAMP_S)  # a ramp read at another time
    return misfit_w > max(MISFIT_SHARE * swing_w, of_times * swing_w, MISFIT_NOISES * stated_w) and alike(load)


def _rivals(probe: Probe, stated: SensorResponse, *, doubted: bool) -> _Rivals | None:
    """The fits by the stated sensor and by others, on boards that follow at once and late; far ones where it is `doubted`.

    None where the stated sensor leaves too few readings.
    """
    base = probe.tried(stated)
    if base is None:
        return None
    prompt = [tried for other in other_responses(stated, probe.updates, far=doubted) if (tried := probe.tried(other)) is not None]
    late: list[Tried] = []
    if alike(probe.load):
        near = [other for other in near_widths(stated) if not within(other, stated, probe.updates.time_std_s)]
        late = [tried for other in near for part in FEW_LATE_PARTS if (tried := probe.tried(other, part)) is not None]
    other = likeliest((*prompt, *late), base)
    own = likeliest((probe.tried(stated, part) for part in LATE_PARTS), base) if lead(other, base) > SAME_LEAD or doubted else base
    if own.late is not None and not _told(own, base, probe, doubted=doubted):
        own = base
    return _Rivals(base=base, own=own, prompt=likeliest(prompt, base), other=other, others=(*prompt, *late))


def _told(late: Tried, base: Tried, probe: Probe, *, doubted: bool) -> bool:
    """Whether a late part is worth its figures: executions that are alike tell it by likelihood, others by what is left."""
    if alike(probe.load):
        return lead(late, base) > 0.0
    return doubted and probe.left_w(late) < EXPLAINS_SHARE * probe.left_w(base)


def _away(other: Tried, rivals: _Rivals, found: RepeatedEnergy, calibration: SensorCalibration) -> bool:
    """Whether another sensor gives an energy that the stated error does not hold."""
    std_j = found.timing_std_j * (calibration.gain or 1.0)
    return abs(other.fit.energy_j - rivals.base.fit.energy_j) > AWAY_Z * std_j


def _contradicts(rivals: _Rivals, probe: Probe, found: RepeatedEnergy, calibration: SensorCalibration, *, doubted: bool) -> bool:
    """Whether another sensor explains what the stated one cannot, whatever the board, with free profiles too."""
    other, own = rivals.other, rivals.own
    share = probe.left_w(other) / max(probe.left_w(own), TINY_W)
    if not alike(probe.load):
        return doubted and other is not rivals.base and share < EXPLAINS_SHARE
    matters = _away(other, rivals, found, calibration) or (doubted and share < EXPLAINS_SHARE)
    if not matters or share >= 1.0 or min(lead(other, own), probe.lead_without_an_event(other, own)) <= LIKELIER_LEAD:
        return False
    free, *stated = (probe.tried(tried.response, tried.late, free=True) for tried in dict.fromkeys((other, rivals.base, own)))
    return free is not None and all(tried is not None and lead(free, tried) > LIKELIER_LEAD for tried in stated)


def _likelier(rivals: _Rivals, probe: Probe, found: RepeatedEnergy, calibration: SensorCalibration, *, doubted: bool) -> bool:
    """Whether another sensor explains what the stated one leaves if the board follows at once, by free profiles too."""
    pairs = [(rivals.prompt, rivals.base)]
    if alike(probe.load):
        free = [probe.tried(tried.response, free=True) for tried in (rivals.prompt, rivals.base)]
        if free[0] is None or free[1] is None:
            return False
        pairs.append((free[0], free[1]))
    away = alike(probe.load) and _away(rivals.prompt, rivals, found, calibration)
    shares = [probe.left_w(other) / max(probe.left_w(base), TINY_W) for other, base in pairs]
    likelier = [lead(pair[0], pair[1]) > LIKELIER_LEAD and share < LIKELIER_SHARE for pair, share in zip(pairs, shares, strict=True)]
    explains = [doubted and share < EXPLAINS_SHARE for share in shares]
    return rivals.prompt is not rivals.base and all((away and more) or less for more, less in zip(likelier, explains, strict=True))


def _unchecked(rivals: _Rivals, probe: Probe, found: RepeatedEnergy, calibration: SensorCalibration) -> dict[str, str]:
    """A remark where the readings look as well like other sensors that give other energies: the farthest, and how far they reach."""
    if not alike(probe.load):
        return {}
    best = likeliest((rivals.own,), rivals.other)
    same = [tried for tried in rivals.others if lead(tried, best) > SAME_LEAD and _away(tried, rivals, found, calibration)]
    if not same:
        return {}
    base_j = rivals.base.fit.energy_j
    off = [(tried.fit.energy_j - base_j) / base_j for tried in same]
    place = int(np.argmax(np.abs(off)))
    far, late = same[place].response, same[place].late
    board = "" if late is None else f" on a board that follows late ({_part(late)})"
    spread = f"{min(off):+.1%} to {max(off):+.1%}" if min(off) < 0.0 < max(off) else f"{off[place]:+.1%} at most"
    return {
        "sensor_check": f"these readings do not tell the stated sensor from others, the farthest a {_name(far)}{board}: by those the "
        f"energy of an execution differs by {spread}; errors hold as far as the sensor is this board's"
    }


def _part(late: LatePart) -> str:
    """A late part in words."""
    return f"about {late.share:.0%} of it in {late.time_s * 1e3:.2g} ms"


def _name(response: SensorResponse) -> str:
    """A response in words."""
    return f"{response.kernel} of {response.width_s * 1e3:.3g} ms, delay {response.delay_s * 1e3:.3g} ms"

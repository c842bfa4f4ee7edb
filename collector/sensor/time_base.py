"""A meter and a load on the clock of the readings: what ties them to it, and what of a delay stays open where nothing does.

Launches that a load log and a meter both show tie the meter's stamps to a tenth of a millisecond.  Without them only the readings
themselves say where a record lies, and they cannot tell a late sensor from a late clock: of a record on their time base the delay is
known to what its clock may be off by, of one that had to be moved to them it is not known.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from collector.errors import SensorError
from collector.recordings.alignment import align_meter
from collector.sensor.averaging import CLAIM_EDGES, CLAIM_R2, Averaging, fit_averaging
from collector.sensor.kernel_fit import DELAY_LIMIT_S
from collector.sensor.load import LoadStamps
from collector.sensor.meter_edges import load_of_meter
from collector.sensor.meter_tie import MeterTie, tie_of_meter
from collector.sensor.record_shift import LEAST_LEAD, History, RecordShift, history_of_load, history_of_meter, meter_shift, record_shift
from collector.sensor.sources import PowerSource, load_source, meter_source, rested
from collector.sensor.update_clock import UpdateClock, Updates
from estimator.quantities import Array

UNTIED_STD_S: Final = DELAY_LIMIT_S / 3.0**0.5
"""What an untied clock leaves open of a delay.  One that is off by more than the delays that are searched for shows itself, by a delay at
its bound or a fit that explains little; of one that is off by less nothing is known: even within the bounds."""
BEFORE_LOAD_S: Final = 5.0
"""A meter's record counts from so long before the load's first edge."""
CENTRED_S: Final = 0.5 * DELAY_LIMIT_S
MOST_ROUNDS: Final = 4
"""A record that was moved is moved on by the delay that is found there, until that lies well within its bounds."""
REFERENCES, LOADS, READINGS = "the reference's", "the load's", "readings"
LATE_BOARD_S: Final = 0.2
"""Boards whose power rises late, or in part, do so within this (published steps: 100 to 200 ms): load stamps do not tell that from stamps
that are too early."""
LATE_BOARD: Final = ", or the board's power rises so late, which an external meter would tell"
ONE_BASE: Final = "give readings, load and reference on one time base, in seconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBase:
    """A meter as a source and a load on the readings' clock, None where they are not known.

    `history` is the meter's power, without one the load's level; `stamped` says that the load is from stamps, not from the meter's
    power; `levels` are runs at steady levels beside it.
    """

    meter: PowerSource | None
    load: LoadStamps | None
    levels: LoadStamps | None
    history: History | None
    stamped: bool

    def whose(self) -> str:
        """Whose stamps they are, in words."""
        names = (REFERENCES if self.meter is not None else "", LOADS if self.stamped else "")
        return " and ".join(name for name in names if name)

    def moved(self, by_s: float) -> "TimeBase":
        """The same with all stamps later by so much."""
        return TimeBase(
            meter=None if self.meter is None else self.meter.moved(by_s),
            load=None if self.load is None else self.load.moved(by_s),
            levels=None if self.levels is None else self.levels.moved(by_s),
            history=None if self.history is None else replace(self.history, time_s=self.history.time_s + by_s),
            stamped=self.stamped,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Metered:
    """A meter's samples `time_s`, `power_w` (n,); `rate_std` is the relative error of its clock's rate, `clock_std_s` what that clock
    may be off by [s] where no launches tie it.
    """

    time_s: Array
    power_w: Array
    rate_std: float
    clock_std_s: float


def stamped_base(stamps: LoadStamps | None) -> TimeBase:
    """The time base of load stamps alone, or of nothing."""
    history = None if stamps is None else history_of_load(stamps)
    return TimeBase(meter=None, load=stamps, levels=None, history=history, stamped=stamps is not None)


def metered_base(
    meter: Metered, stamps: LoadStamps | None, levels: LoadStamps | None, updates: Updates, clock: UpdateClock, notes: dict[str, str]
) -> TimeBase:
    """A meter's samples and load stamps on one clock; what was done to them goes into the notes.

    Raises SensorError for a meter that is no reference.
    """
    good = np.isfinite(meter.time_s) & np.isfinite(meter.power_w)
    meter_s, meter_w = meter.time_s[good], meter.power_w[good]
    load = stamps
    if stamps is not None and len(meter_s) > 1:
        meter_s, load = _agreed(meter_s, meter_w, stamps, updates, clock, notes)
    tie = tie_of_meter(meter_s, meter_w, stamps if load is stamps else None)
    if stamps is not None and load is stamps:
        kept = slice(int(np.searchsorted(meter_s, float(stamps.start_s[0]) - BEFORE_LOAD_S)), None)
        meter_s, meter_w = meter_s[kept], meter_w[kept]
    if tie.edges:
        notes["reference_time"] = tie.remark()
    meter_s = meter_s - tie.lag_s
    source = replace(meter_source(meter_s, meter_w, meter.rate_std), time_std_s=_time_std_s(tie, meter.clock_std_s))
    return TimeBase(
        meter=rested(source, updates.time_s, updates.value),
        load=load if load is not None else load_of_meter(meter_s, meter_w),
        levels=levels,
        history=history_of_meter(meter_s, meter_w),
        stamped=load is not None,
    )


def _time_std_s(tie: MeterTie, clock_std_s: float) -> float:
    """What a meter's stamps are off by, standard deviation [s]."""
    return tie.std_s if tie.edges else float(np.hypot(tie.std_s, clock_std_s))


def _agreed(
    meter_s: Array, meter_w: Array, stamps: LoadStamps, updates: Updates, clock: UpdateClock, notes: dict[str, str]
) -> tuple[Array, LoadStamps]:
    """Meter's stamps and load on one clock: where they lie apart the one is moved that the readings do not bear out."""
    power, level = history_of_meter(meter_s, meter_w), history_of_load(stamps)
    apart = meter_shift(meter_s, meter_w, level)
    if apart is None:
        return meter_s, stamps
    of_meter, of_load = (record_shift(updates.time_s, updates.value, history, clock.period_s) for history in (power, level))
    if of_meter is not None and of_load is None:
        moved_s = meter_s + apart.shift_s
        line = align_meter(moved_s, meter_w, stamps)
        _said(notes, of_meter.remark(REFERENCES, READINGS) + "; moved to the load's launches")
        return (moved_s if line is None else moved_s - line.lag_s), stamps
    _said(notes, apart.remark(LOADS, "reference's power") + "; moved there")
    return meter_s, stamps.moved(-apart.shift_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedAveraging:
    """The decision, the time base that it stands on, and whether that was moved: a delay is then told by nothing."""

    averaging: Averaging
    base: TimeBase
    moved: bool


def placed_averaging(base: TimeBase, updates: Updates, clock: UpdateClock, notes: dict[str, str]) -> PlacedAveraging:
    """The averaging with meter and load as they stand, or moved where the readings bear them out there alone.

    Raises SensorError where neither tells one.
    """
    as_is, reason = _tried(base, updates, clock)
    shift = None if base.history is None else record_shift(updates.time_s, updates.value, base.history, clock.period_s)
    if shift is None:
        if as_is is None:
            raise SensorError(reason)
        return PlacedAveraging(averaging=as_is, base=base, moved=False)
    there, found = _centred(base, shift.shift_s, updates, clock)
    if shift.rival_s is not None:
        elsewhere, other = _centred(base, shift.rival_s, updates, clock)
        if other is not None and (found is None or other.best.terms.mean() > found.best.terms.mean()):
            there, found, shift = elsewhere, other, replace(shift, shift_s=shift.rival_s, rival_s=shift.shift_s)
    said, better = _remark(shift, base), found is not None and _better(found, as_is)
    if found is not None and better and _told(found, base):
        _said(notes, f"{said}; moved there")
        return PlacedAveraging(averaging=found, base=there, moved=True)
    if as_is is None:
        raise SensorError(f"{said}; {ONE_BASE}")
    if better or as_is.best.r2 < CLAIM_R2:
        _said(notes, f"{said}; {ONE_BASE}")
        as_is = replace(as_is, kind="undetermined", reason=said, remedy=ONE_BASE, gain_from="none")
    return PlacedAveraging(averaging=as_is, base=base, moved=False)


def _remark(shift: RecordShift, base: TimeBase) -> str:
    """A shift in words, and what else it may be."""
    late = base.meter is None and 0.0 < -shift.shift_s <= LATE_BOARD_S
    return shift.remark(base.whose(), READINGS) + (LATE_BOARD if late else "")


def _centred(base: TimeBase, shift_s: float, updates: Updates, clock: UpdateClock) -> tuple[TimeBase, Averaging | None]:
    """A time base that lay behind by so much put right, until the delay that is found lies well within its bounds; and the decision."""
    there = base.moved(-shift_s)
    for _ in range(MOST_ROUNDS):
        found, _ = _tried(there, updates, clock)
        if found is None or abs(found.best.delay_s) < CENTRED_S:
            break
        there = there.moved(found.best.delay_s)
    return there, found


def _tried(base: TimeBase, updates: Updates, clock: UpdateClock) -> tuple[Averaging | None, str]:
    """The decision from the meter where it is there, else from the stamps; None and the reason where there is none."""
    sources = [base.meter] if base.meter is not None else []
    if base.stamped and base.load is not None:
        sources.append(load_source(base.load, float(updates.time_s[-1])))
    reason = ""
    for source in sources:
        try:
            return fit_averaging(updates, source, clock, base.load), ""
        except SensorError as error:
            reason = str(error)
    return None, reason


def _better(found: Averaging, as_is: Averaging | None) -> bool:
    """Whether a decision elsewhere explains the readings, and far more of them than the one as things stand."""
    if found.best.r2 < CLAIM_R2 or as_is is None:
        return found.best.r2 >= CLAIM_R2
    lead = float(found.best.terms.mean() - as_is.best.terms.mean()) * min(found.updates, as_is.updates)
    return lead > LEAST_LEAD


def _told(found: Averaging, base: TimeBase) -> bool:
    """Whether a record may be moved: to a meter's many edges, or to what they told.

    One step can be laid over any other; a load's stamps leave the board's rise open, and what comes late would pass for a delay.
    """
    return base.meter is not None and base.load is not None and (base.load.edges >= CLAIM_EDGES or found.kind != "undetermined")


def _said(notes: dict[str, str], text: str) -> None:
    """Adds to what is said of the time base."""
    notes["time_base"] = "; ".join(part for part in (notes.get("time_base", ""), text) if part)

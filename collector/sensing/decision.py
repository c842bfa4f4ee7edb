"""The response that the evidence supports: boxcar, low-pass, trailing mean, none; or undetermined, with the reason and a remedy.

Source of the rules: sensor-method.md 1.6.
"""

from typing import Final

import numpy as np

from collector.sensing.board_power import LoadStamps
from collector.sensing.clock import UpdateClock
from collector.sensing.regression import DELAY_S, Fit, Fits, Problem, plain_width
from estimator.vocabulary.quantities import Array, BoolArray
from estimator.vocabulary.values import frozen

LEAD: Final = 8.0
"""Least lead of the best response over the next, in log-likelihood."""
SAME_SIGN, SAME_SIGN_NARROW = 1.6, 3.0
"""Least lead over blocks of the record, as a multiple of its scatter.

One informative block gives 1, two give 1.41, so that a single step never decides.  The higher value applies to widths below NARROW_S.
"""
EXPLAINED, LONG_EXPLAINED = 0.8, 0.965
"""Least share of the readings' variance that a determined response explains, and one longer than TRAILING_S.

Of simulated means over a second, right ones explain 0.969 and more; averagings longer than the search are taken for shorter ones that
explain 0.35 to 0.98.
"""
HOLE, METER_LEAD = 0.15, 40.0
"""Largest part of the load's period without updates; a meter gives the power there, and then this lead decides in any case."""
EDGES, EDGE_LEAD, EDGE_REACH, EDGE_WIDTH = 8, 5.0, 1.5, 0.5
"""Fewer edges than this determine a response only with a meter.

The best response must lead at each edge alone, within this many widths.  Its width must be at least this share of the period: with narrower
ones most edges fall between two averagings.
"""
NARROW_S: Final = 3e-3
"""Widths below this [s] are near the jitter of updates and need more evidence."""
POINT_SHARE, POINT_EXPLAINED, POINT_LEAD = 0.05, 0.9, 6.0
"""Rules for no averaging: widths up to this share of the period fit, a point explains this much and is behind by at most this."""
TRAILING_S, TRAILING_PERIODS, RAMP_UPDATES = 0.5, 2.5, 8
"""A boxcar longer than this, and than this many periods, is a trailing mean; one step determines it with this many updates on its ramps."""
METER_SAMPLES: Final = 5.0
"""Least number of meter samples within an averaging that the meter determines."""


@frozen
class Decision:
    """`kind` of averaging with its fit; where undetermined, the `reason` with a remedy.  `fits`: all, likeliest first.

    `locked`: updates never fall in most of the load's period, so that the readings show one phase of it.  `drift`: change of the delay
    within the record [s/s], 0 if it is constant.
    """

    kind: str
    best: Fit
    fits: Fits
    reason: str = ""
    locked: bool = False
    drift: float = 0.0


def decided(problem: Problem, fits: Fits, clock: UpdateClock, load: LoadStamps | None, spacing_s: float) -> Decision:
    """The decision between fits of all responses; `spacing_s` is that of the meter's samples, 0 without one."""
    ranked = tuple(sorted(fits, key=lambda fit: -fit.evidence))
    best, period_s = ranked[0], clock.period_s
    trailing = best.kernel == "boxcar" and best.width_s > max(TRAILING_S, TRAILING_PERIODS * period_s)
    best = plain_width(problem, best) if trailing else best
    few_edges = load is not None and load.edges < EDGES
    shown = best.evidence - ranked[1].evidence >= LEAD and np.count_nonzero(_on_ramps(best)) >= RAMP_UPDATES
    blind = _blind(best, clock, spacing_s)
    if trailing and shown and (problem.metered or not few_edges) and blind is None:
        return Decision(kind="trailing-mean", best=best, fits=ranked)
    at_edges = problem.metered and _leads_at_edges(problem, ranked, load, period_s)
    none = next(fit for fit in ranked if fit.kernel == "none")
    widest = min(fit.width_s + 2.0 * fit.width_std_s for fit in ranked if fit.kernel != "none")
    point = widest < POINT_SHARE * period_s and none.explained > POINT_EXPLAINED and best.evidence - none.evidence < POINT_LEAD
    hole = phase_hole(problem.time_s - best.delay_s, load) if load is not None else 0.0
    locked = hole > HOLE and not (problem.metered and _lead(ranked)[0] > METER_LEAD)
    if few_edges and not at_edges and load is not None:
        reason, remedy = f"the load has {load.edges} edges; at least {EDGES} tell kernels apart", informative(best, period_s)
    elif blind is not None:
        reason, remedy, locked = *blind, False
    elif locked:
        reason = f"the load is locked to the update clock: {hole:.0%} of its period is never seen"
        remedy = "change the load's period, or vary its cycles by 1 to 2 %"
    elif point:
        return Decision(kind="none", best=none, fits=ranked)
    else:
        reason, remedy = _doubt(ranked, widest, at_edges=few_edges), informative(best, period_s)
    if not reason:
        return Decision(kind="trailing-mean" if trailing else best.kernel, best=best, fits=ranked)
    return Decision(kind="undetermined", best=best, fits=ranked, reason=f"{reason}; {remedy}", locked=locked)


def explains(fit: Fit) -> bool:
    """Whether a fit explains as much of the readings as a determined response does."""
    return fit.explained >= (LONG_EXPLAINED if fit.width_s > TRAILING_S else EXPLAINED) and not fit.at_bound


def _blind(best: Fit, clock: UpdateClock, spacing_s: float) -> tuple[str, str] | None:
    """Reason why the record cannot determine any response, with a remedy; None if it may."""
    on_one_time_base = "give readings, load and reference on one time base, in seconds, and run nothing else on the board"
    if best.at_bound:
        return f"the width lies at its bound, {best.width_s:.2g} s", "no longer averaging is corrected; measure with an external meter"
    if not explains(best):
        return f"the best kernel explains {max(best.explained, 0.0):.1%} of the variance", on_one_time_base
    if abs(best.delay_s) > 1.8 * DELAY_S:
        return f"the delay lies at its bound, {best.delay_s * 1e3:.1f} ms", on_one_time_base
    if best.width_s < METER_SAMPLES * spacing_s and spacing_s > 1e-3:
        return (
            f"reference samples every {spacing_s * 1e3:.3g} ms determine no averaging below {METER_SAMPLES * spacing_s * 1e3:.3g} ms",
            "log it faster",
        )
    if not clock.rigid and best.width_s < clock.poll_s:
        return (
            f"updates keep to no grid, so their times are known to a poll only, and the width of {best.width_s * 1e3:.1f} ms is less",
            "poll faster",
        )
    return None


def _lead(ranked: Fits) -> tuple[float, float]:
    """Lead of the best over the next response, counted for independent readings, and its blocks' agreement in standard deviations."""
    best, second, _ = ranked
    lead = best.each - second.each
    correlation = float(np.corrcoef(lead[1:], lead[:-1])[0, 1]) if np.std(lead) > 0.0 else 0.0
    effective = (1.0 - max(correlation, 0.0)) / (1.0 + max(correlation, 0.0))
    ahead = best.evidence - second.evidence - (1.0 - effective) * (best.score - second.score)
    blocks = np.array([part.sum() for part in np.array_split(lead, int(np.clip(len(lead) // 6, 3, 12)))])
    return ahead, float(blocks.sum() / np.sqrt((blocks**2).sum() + 1e-9))


def _doubt(ranked: Fits, widest_s: float, *, at_edges: bool) -> str:
    """Reason why the leading response is not certain; "" if it is.  One that leads `at_edges` needs no agreement of blocks."""
    best, second, _ = ranked
    ahead, agreed = _lead(ranked)
    if best.kernel == "none":
        return f"no averaging and an average over up to {widest_s * 1e3:.2g} ms explain the readings about equally well"
    if at_edges:
        return ""
    if ahead < LEAD or agreed < SAME_SIGN:
        close = f"lead {ahead:.1f}, {agreed:.1f} standard deviations"
        return f"{best.kernel} and {second.kernel} explain the readings about equally well ({close})"
    if best.width_s < NARROW_S and agreed < SAME_SIGN_NARROW:
        return f"an average over {best.width_s * 1e3:.2g} ms is too narrow to tell its kernel"
    return ""


def _leads_at_edges(problem: Problem, ranked: Fits, load: LoadStamps | None, period_s: float) -> bool:
    """Whether the best response leads, by readings on its ramp, at each single edge that an update saw; at least two edges are needed."""
    best, second, _ = ranked
    if load is None or best.width_s < EDGE_WIDTH * period_s:
        return False
    reach = EDGE_REACH * max(best.width_s, second.width_s)
    ends, leads, ramps = problem.time_s - best.delay_s, [], _on_ramps(best)
    for edge in np.unique(np.concatenate([load.start_s, load.end_s])).tolist():
        near = (ends > edge - NARROW_S) & (ends < edge + reach)
        if np.any(ramps & near):
            leads.append(float((best.each - second.each)[near].sum()))
    return len(leads) >= 2 and min(leads) >= EDGE_LEAD


def _on_ramps(fit: Fit) -> BoolArray:
    """Updates whose prediction is neither high nor low, shape (n,)."""
    low, high = np.quantile(fit.predicted, [0.02, 0.98])
    share = (fit.predicted - low) / max(float(high - low), 1e-9)
    return np.asarray((share > 0.1) & (share < 0.9))


def phase_hole(end_s: Array, load: LoadStamps) -> float:
    """Largest part of the load's period in which no averaging ended; 0 for a load of fewer than 4 runs."""
    start = load.start_s
    if len(start) < 4:
        return 0.0
    inside = end_s[(end_s >= start[0]) & (end_s < start[-1])]
    cycle = np.searchsorted(start, inside, side="right") - 1
    place = np.sort((inside - start[cycle]) / (start[cycle + 1] - start[cycle]))
    return float(np.diff(place, append=place[0] + 1.0).max()) if len(place) > 3 else 1.0


def informative_ratio(best: Fit, period_s: float) -> float:
    """Period of the square wave that separates the leading responses, in update periods (sensor-method.md 3)."""
    share = best.width_s / period_s
    if best.kernel == "low-pass":
        return 1.27 if share < 0.3 else 4.7 if share < 2.0 else 12.0
    return 1.27 if share < 0.5 else 2.3


def informative(best: Fit, period_s: float) -> str:
    """The run that separates the leading responses."""
    ratio = informative_ratio(best, period_s)
    return f"run a square wave of {ratio * period_s * 1e3:.0f} ms ({ratio:g} update periods), cycles varied by 1 to 2 %, for 10 s"

"""Which kernel the evidence names: boxcar, low-pass, trailing mean, none; or undetermined, with the reason and the run that would tell.

Source of the rules: sensor-method.md 1.6, with what each of them is for.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.sensing.board_power import LoadStamps
from collector.sensing.clock import UpdateClock
from collector.sensing.regression import DELAY_S, Fit, Problem
from collector.sensing.response import POINT_S
from estimator.vocabulary.quantities import Array, BoolArray

LEAD: Final = 8.0
"""Log-likelihood by which the best kernel must lead the next."""
SAME_SIGN: Final = 1.6
SAME_SIGN_NARROW: Final = (2.0, 3.0)
"""The lead over blocks of the record as a multiple of its scatter: one informative block gives 1, two give 1.41, so that a lone step
never claims.  The higher ones hold where no averaging is among the two kernels, and for widths below NARROW_S."""
CLEAR_THIRD: Final = 20.0
BLOCKS: Final = 12
EXPLAINED: Final = 0.8
HOLE: Final = 0.15
"""Largest part of the load's period in which no update may fall."""
METER_HOLE_LEAD: Final = 40.0
"""A meter knows the power in such a hole: with this lead it tells the kernel all the same,"""
METER_HOLE: Final = 0.4
"""up to this hole."""
HOLE_WIDTHS, SMALL_HOLE = 0.7, 0.08
"""A hole of more than this share of the window hides a ramp: widths come out wrong by milliseconds, whatever the kernel's lead; smaller
holes than SMALL_HOLE of the period come by chance."""
EDGES: Final = 8
EDGE_LEAD: Final = 3.0
EDGE_REACH: Final = 1.5
"""With a meter two edges tell a kernel that leads by this at each of them alone, within so many widths."""
EDGE_WIDTH: Final = 0.5
"""and that is no narrower than this share of the period: of narrower ones most edges fall between two averagings."""
NARROW_S: Final = 3e-3
POINT_SHARE, POINT_EXPLAINED, POINT_LEAD = 0.05, 0.9, 6.0
"""No averaging: widths up to this share of the period fit, a point explains this much and is not behind by more than this."""
NOISY_S, NOISE_SHARE = 6e-3, 0.8
"""A narrower average may lead a point by the meter's noise alone, where that makes up so much of what the point leaves."""
TRAILING_S, TRAILING_PERIODS = 0.5, 2.5
RAMP_UPDATES: Final = 8
"""A mean over a second shows itself in one step: so many updates lie on its ramps."""
MIN_CYCLES: Final = 3
METER_SAMPLES: Final = 5.0
"""Samples of a meter within an averaging that it tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """`kind` of averaging with the fit that it stands on; where undetermined, `reason` and `remedy`.  `fits`: all, likeliest first.

    `locked`: most of the load's period is never seen, so that the readings show one phase of it.  `problem`: what was fitted.
    """

    kind: str
    reason: str
    remedy: str
    best: Fit
    fits: tuple[Fit, ...]
    locked: bool
    problem: Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What decides beside the fits: the clock, the load where known, spacing [s] and noise [W √s] of the meter's samples, 0 without one."""

    clock: UpdateClock
    load: LoadStamps | None
    meter_spacing_s: float
    meter_noise_w_s: float = 0.0


def decided(problem: Problem, fits: tuple[Fit, ...], around: Circumstances) -> Decision:
    """The decision between fits of all kernels."""
    ranked = tuple(sorted(fits, key=lambda fit: -fit.evidence))
    best = ranked[0]
    period_s = around.clock.period_s
    trailing = best.kernel == "boxcar" and best.width_s > max(TRAILING_S, TRAILING_PERIODS * period_s)
    edges = around.load.edges if around.load is not None else EDGES
    shown = best.evidence - ranked[1].evidence >= LEAD and np.count_nonzero(_on_ramps(best)) >= RAMP_UPDATES
    if trailing and shown and (problem.metered or edges >= EDGES) and best.explained >= EXPLAINED:
        return Decision(kind="trailing-mean", reason="", remedy="", best=best, fits=ranked, locked=False, problem=problem)
    hole = phase_hole(problem.time_s - best.delay_s, around.load) if around.load is not None else 0.0
    blind = _blind(problem, ranked, around)
    if blind is not None:
        return Decision(kind="undetermined", reason=blind[0], remedy=blind[1], best=best, fits=ranked, locked=False, problem=problem)
    if around.load is not None and _unseen(problem, ranked, hole, around.load):
        reason = f"the load is locked to the update clock: {hole:.0%} of its period is never seen"
        remedy = "change the load's period, or vary its cycles by 1 to 2 %"
        return Decision(kind="undetermined", reason=reason, remedy=remedy, best=best, fits=ranked, locked=True, problem=problem)
    none = next(fit for fit in ranked if fit.kernel == "none")
    widest = min(fit.width_s + 2.0 * fit.width_std_s for fit in ranked if fit.kernel != "none")
    if widest < POINT_SHARE * period_s and none.explained > POINT_EXPLAINED and best.evidence - none.evidence < POINT_LEAD:
        return Decision(kind="none", reason="", remedy="", best=none, fits=ranked, locked=False, problem=problem)
    if best.kernel != "none" and _of_meter_noise(best, none, around.meter_noise_w_s):
        reason = f"the reference's noise explains as well why an average over {best.width_s * 1e3:.2g} ms leads no averaging"
    else:
        reason = _doubt(ranked, widest, few_edges=around.load is not None and around.load.edges < EDGES)
    kind = "undetermined" if reason else "trailing-mean" if trailing else best.kernel
    return Decision(
        kind=kind,
        reason=reason,
        remedy=informative(best, period_s) if reason else "",
        best=best,
        fits=ranked,
        locked=False,
        problem=problem,
    )


def _blind(problem: Problem, ranked: tuple[Fit, ...], around: Circumstances) -> tuple[str, str] | None:
    """Why the record cannot tell any kernel, with a remedy; None where it might."""
    best, clock, spacing = ranked[0], around.clock, around.meter_spacing_s
    edges = around.load.edges if around.load is not None else EDGES
    if edges < EDGES and not (problem.metered and _leads_at_edges(problem, ranked, around.load, clock.period_s)):
        few = f"the load has {edges} edges" + (": a lone step puts a reading or two on its ramp" if edges <= 2 else "")
        return f"{few}; at least {EDGES} edges tell kernels apart", informative(best, clock.period_s)
    if best.explained < EXPLAINED:
        return (
            f"the best kernel explains {max(best.explained, 0.0):.0%} of the variance; something else moved the readings, or load and "
            "reference are not on their time base",
            "run nothing else on the board, and give all files on one time base, in seconds",
        )
    if abs(best.delay_s) > 1.8 * DELAY_S:
        return f"the delay lies at its bound, {best.delay_s * 1e3:.1f} ms", "give readings, load and reference on one time base, in seconds"
    if best.width_s < METER_SAMPLES * spacing and spacing > 1e-3:
        told_ms = METER_SAMPLES * spacing * 1e3
        return (
            f"the reference has a sample every {spacing * 1e3:.3g} ms, too slow for averagings below {told_ms:.3g} ms",
            f"log it every {max(best.width_s, 0.01) / METER_SAMPLES * 1e3:.2g} ms or faster",
        )
    if not clock.rigid and best.width_s < clock.poll_s:
        return (
            f"updates keep to no grid, so their times are known to a poll only, and the width of {best.width_s * 1e3:.1f} ms is less",
            f"poll every {min(best.width_s / 3.0, clock.poll_s / 2.0) * 1e3:.1f} ms or faster",
        )
    return None


def _of_meter_noise(best: Fit, none: Fit, noise_w_s: float) -> bool:
    """Whether the point's greater residuals are the meter's own noise, of which a point passes more than a mean."""
    passed = abs(none.level[1]) * noise_w_s * np.sqrt(max(1.0 / POINT_S - 1.0 / best.width_s, 0.0))
    return bool(noise_w_s > 0.0 and best.width_s < NOISY_S and np.hypot(best.noise_w, passed) > NOISE_SHARE * none.noise_w)


def _lead(ranked: tuple[Fit, ...]) -> tuple[float, float]:
    """Lead of the best over the next kernel, counted for independent readings, and its blocks' agreement in standard deviations."""
    best, second = ranked[0], ranked[1]
    lead = best.each - second.each
    correlation = float(np.corrcoef(lead[1:], lead[:-1])[0, 1]) if np.std(lead) > 0.0 else 0.0
    effective = (1.0 - max(correlation, 0.0)) / (1.0 + max(correlation, 0.0))
    ahead = best.evidence - second.evidence - (1.0 - effective) * (best.score - second.score)
    parts = np.array_split(lead, int(np.clip(len(lead) // 6, 3, BLOCKS)))
    blocks = np.array([part.sum() for part in parts])
    return ahead, float(blocks.sum() / np.sqrt((blocks**2).sum() + 1e-9))


def _doubt(ranked: tuple[Fit, ...], widest_s: float, *, few_edges: bool) -> str:
    """Why the leading kernel cannot be named; "" where it can.  A load of `few_edges` has passed its own test before."""
    best, second, third = ranked
    ahead, agreed = _lead(ranked)
    averaging = {best.kernel, second.kernel} == {"boxcar", "low-pass"} and second.evidence - third.evidence > CLEAR_THIRD
    if best.kernel == "none":
        return f"no averaging and an average over up to {widest_s * 1e3:.2g} ms explain the readings about equally well"
    if few_edges and best.evidence - second.evidence >= LEAD:
        return ""
    if ahead < LEAD or agreed < (SAME_SIGN if averaging else SAME_SIGN_NARROW[0]) or best.explained < second.explained:
        close = f"lead {ahead:.1f}, {agreed:.1f} standard deviations"
        return f"{best.kernel} and {second.kernel} explain the readings about equally well ({close})"
    if best.width_s < NARROW_S and agreed < SAME_SIGN_NARROW[1]:
        return f"an average over {best.width_s * 1e3:.2g} ms is too narrow to tell its kernel"
    return ""


def _unseen(problem: Problem, ranked: tuple[Fit, ...], hole: float, load: LoadStamps) -> bool:
    """Whether the updates leave so much of the load's period unseen that no kernel or width can be told."""
    if len(load.start_s) <= MIN_CYCLES:
        return False
    best = ranked[0]
    hole_s = hole * float(np.median(np.diff(load.start_s)))
    if best.kernel != "none" and hole > SMALL_HOLE and hole_s > HOLE_WIDTHS * max(best.width_s, NARROW_S):
        return True
    return hole > HOLE and not (problem.metered and hole < METER_HOLE and _lead(ranked)[0] > METER_HOLE_LEAD)


def _leads_at_edges(problem: Problem, ranked: tuple[Fit, ...], load: LoadStamps | None, period_s: float) -> bool:
    """Whether the best kernel leads, by readings on its ramp, at every edge alone that any update saw, and there are two or more."""
    best, second = ranked[0], ranked[1]
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
    """Updates of which the prediction is neither high nor low, shape (n,)."""
    low, high = np.quantile(fit.predicted, [0.02, 0.98])
    share = (fit.predicted - low) / max(float(high - low), 1e-9)
    return np.asarray((share > 0.1) & (share < 0.9))


def phase_hole(end_s: Array, load: LoadStamps) -> float:
    """Largest part of the load's period in which no averaging ended; 0 for a load of fewer than MIN_CYCLES + 1 runs."""
    start = load.start_s
    if len(start) <= MIN_CYCLES:
        return 0.0
    inside = end_s[(end_s >= start[0]) & (end_s < start[-1])]
    cycle = np.searchsorted(start, inside, side="right") - 1
    place = np.sort((inside - start[cycle]) / (start[cycle + 1] - start[cycle]))
    return float(np.diff(place, append=place[0] + 1.0).max()) if len(place) > 3 else 1.0


def informative(best: Fit, period_s: float) -> str:
    """The run that would tell the leading kernels apart, after the leads of sensor-method.md 3."""
    if best.kernel == "low-pass":
        share = 0.5 * best.width_s / period_s
        ratio = 1.27 if share < 0.15 else 4.7 if share < 1.0 else 12.0
    else:
        ratio = 1.27 if best.width_s < 0.5 * period_s else 2.3
    return f"run a square wave of {ratio * period_s * 1e3:.0f} ms ({ratio:g} update periods), cycles varied by 1 to 2 %, for 10 s"

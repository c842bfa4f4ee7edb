"""How a sensor averages: boxcar, low-pass or not at all, decided by evidence.

Every update is compared with what each kernel would have made of the power: an external meter's, or shapes made from
load stamps.  A kernel is named only where the record can tell it from the others; otherwise the answer is
"undetermined", with the reason and the run that would tell.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from collector.errors import SensorError
from collector.sensor.kernel_errors import with_errors, with_profiled_width
from collector.sensor.kernel_fit import DELAY_LIMIT_S, JITTER_S, KernelFit, KernelProblem, fit_kernel
from collector.sensor.late_part import with_late_part
from collector.sensor.load import LoadStamps
from collector.sensor.meter_noise import SLOW_METER_S
from collector.sensor.rival_boards import REMEDY, Claim, board_doubt
from collector.sensor.sources import NONE_WIDTH_S, PowerSource
from collector.sensor.update_clock import UpdateClock, Updates
from estimator.quantities import Array

KERNELS: Final = ("boxcar", "low-pass", "none")
MIN_UPDATES: Final = 20
TRAILING_MEAN_PERIODS: Final = 2.5
TRAILING_MEAN_S: Final = 0.5
"""A boxcar longer than both is the one-second trailing mean of newer drivers."""
CLAIM_LEAD: Final = 8.0
"""Log-likelihood by which a kernel must lead the next one."""
CLAIM_BLOCKS_Z: Final = {False: 2.0, True: 1.6}
"""Lead over blocks of the record in standard deviations (True: boxcar against low-pass with `none` far behind).
One informative block gives 1, two give 1.41: a lone step can never decide."""
CLAIM_NONE_BEHIND: Final = 20.0
CLAIM_R2: Final = 0.8
CLAIM_EDGES: Final = 8
COMMON_SHARE: Final = 0.5
"""Averagings of a sensor that averages are compared at the meter's noise that one of this share of its width passes."""
CLAIM_PHASE_HOLE: Final = 0.15
"""Largest hole in the updates' phases within the load's period; beyond, the load is locked to the clock."""
SHORT_WIDTH_S, SHORT_WIDTH_Z = 3e-3, 3.0
"""Below this width a kernel is hard to tell from none; more evidence is asked for."""
SMALL_HOLE: Final = 0.06
REACH_SEEN: Final = 1.0 / 3.0
"""Holes below SMALL_HOLE, or of a third of the averaging's width, hide nothing; of more than the width they hide all."""
LOCKED_HOLE, LOCKED_LEAD, LOCKED_Z = 0.35, 25.0, 2.3
"""With a meter a kernel is named through larger holes as well where its lead is that large."""
NONE_SHARE: Final = 0.05
NONE_R2: Final = 0.9
NONE_LEAD: Final = 6.0
"""A sensor does not average where a boxcar would be shorter than this share of the period, two errors added, while a
kernel leads by no more than this."""
EDGE_LEAD: Final = 4.0
LEAST_TOLD_EDGES: Final = 2
"""With a meter, which shows the board's own rise, a step or two tell a kernel where it leads by so much at each edge alone, at so many."""
BEFORE_EDGE_S: Final = 0.15
"""Updates up to this before a launch or an end count for it: end stamps come after the power has begun to fall."""
EDGE_WIDTHS: Final = 3.0
"""Averaging widths after an edge in which updates still tell of it."""
LEAST_JITTER_S: Final = 2e-4
FREE_JITTER_POLLS: Final = 0.3
"""Jitter of window ends is at least so much, and this share of a poll where updates keep to no grid."""
LONG_STEP_UPDATES: Final = 12
"""A one-second mean shows itself in a lone step as well: so many updates lie on its ramps."""
BLOCKS, LEAST_BLOCK = 12, 6
POLLS_IN_WIDTH: Final = 3.0
MIN_CYCLES: Final = 3
AT_BOUND: Final = 0.98
LOCKED: Final = "the load is locked to the update clock"
METER_SAMPLES: Final = 5.0
"""Samples of a meter within an averaging that it tells; of fewer, kernels and widths come out wrong."""
LOAD_SAMPLES: Final = 8
SHORTEST_AVERAGING_S: Final = 0.01
"""The shortest averaging of a published board."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Averaging:
    """The decision: `kind` boxcar, low-pass, trailing-mean, none or undetermined, and what it stands on.

    Where undetermined, `reason` says why and `remedy` which run would tell.  `fits` are all kernels, best first (where
    undetermined: of those about equally likely the one that explains most).  `source` is "meter" or "load", `updates`
    how many were compared.  `locked`: undetermined as most of the load's period is never seen.  `gain_from`
    says which updates tell a gain: "all", those of "settled" power, where updates or meter do not show how it changes, or "none".
    """

    kind: str
    reason: str
    remedy: str
    fits: tuple[KernelFit, ...]
    source: str
    updates: int
    locked: bool
    gain_from: str

    @property
    def ranked(self) -> tuple[KernelFit, ...]:
        """All fits, the one that the decision stands on first."""
        return (self.best, *(fit for fit in self.fits if fit is not self.best))

    @property
    def best(self) -> KernelFit:
        """The fit that the decision stands on: the claimed kernel's, else the likeliest."""
        wanted = {"trailing-mean": "boxcar", "none": "none"}.get(self.kind, self.fits[0].kernel)
        return next(fit for fit in self.fits if fit.kernel == wanted)


def fit_averaging(updates: Updates, source: PowerSource, clock: UpdateClock, load: LoadStamps | None = None) -> Averaging:
    """Which kernel explains the updates.

    `updates` on the host's clock, `source` what may have been averaged, `clock` the update clock; `load` its stamps,
    where known, for the test of a locked load.  Raises SensorError where fewer than MIN_UPDATES lie within the source.
    """
    period_s = clock.period_s
    inside = (updates.time_s > source.from_s) & (updates.time_s < source.until_s)
    time_s, value = updates.time_s[inside], updates.value[inside]
    shared_s = None if updates.shared_s is None else updates.shared_s[:, inside]
    if len(value) < MIN_UPDATES:
        raise SensorError(f"only {len(value)} updates lie within the {source.kind}'s record; at least {MIN_UPDATES} tell an averaging")
    jitter_s, common_s = _jitter_s(clock), NONE_WIDTH_S

    def problem_of(kernel: str) -> KernelProblem:
        return KernelProblem(kernel, source, time_s, value, jitter_s, common_s)

    ranked = _ranked(problem_of, period_s, shared_s)
    if source.noise.sample_w > 0.0 and _averages(ranked):
        common_s = max(COMMON_SHARE * ranked[0].width_s, NONE_WIDTH_S)
        ranked = _ranked(problem_of, period_s, shared_s)
    kind, reason, remedy = _decided(ranked, time_s, clock, source, load)
    if source.kind == "load" and load is not None and kind in ("boxcar", "low-pass"):
        claim = Claim(kernel=kind, fits=ranked, time_s=time_s, value=value, jitter_s=jitter_s)
        reason = board_doubt(claim, load, source.until_s)
        kind, remedy = ("undetermined", REMEDY) if reason else (kind, remedy)
    if kind in ("boxcar", "low-pass") and source.kind == "load":
        ranked = (with_late_part(problem_of(kind), ranked[0]), *ranked[1:])
    if kind in ("boxcar", "low-pass") and load is not None and load.edges < CLAIM_EDGES:
        ranked = (with_profiled_width(problem_of(kind), ranked[0]), *ranked[1:])
    if kind == "undetermined":
        close = [fit for fit in ranked if fit.score > ranked[0].score - CLAIM_LEAD]
        ranked = (*sorted(close, key=lambda fit: -fit.r2), *ranked[len(close) :])
    locked = reason.startswith(LOCKED)
    unseen = locked or _slow_meter(ranked[0], source, clock.period_s) is not None
    return Averaging(
        kind=kind,
        reason=reason,
        remedy=remedy,
        fits=ranked,
        source=source.kind,
        updates=len(value),
        locked=locked,
        gain_from="settled" if unseen else "all" if ranked[0].r2 >= CLAIM_R2 else "none",
    )


def _ranked(problem_of: Callable[[str], KernelProblem], period_s: float, shared_s: Array | None) -> tuple[KernelFit, ...]:
    """Every kernel's fit, the likeliest first."""
    fits = []
    for kernel in KERNELS:
        problem = problem_of(kernel)
        fit = with_errors(problem, fit_kernel(problem, period_s), shared_s)
        fits.append(replace(fit, width_std_s=float(np.hypot(fit.width_std_s, problem.source.noise.width_std_s()))))
    return tuple(sorted(fits, key=lambda fit: -fit.score))


def _averages(ranked: tuple[KernelFit, ...]) -> bool:
    """Whether the sensor averages for certain, whatever a meter's noise: then kernels need share no more of it than COMMON_SHARE says."""
    best = ranked[0]
    none = next(fit for fit in ranked if fit.kernel == "none")
    return best.score - none.score >= CLAIM_LEAD and block_z(best.terms - none.terms) >= CLAIM_BLOCKS_Z[False]


def _jitter_s(clock: UpdateClock) -> float:
    """Jitter of window ends against the times of updates, as the clock has it [s]."""
    return max(clock.jitter_s, LEAST_JITTER_S) if clock.rigid else max(JITTER_S, FREE_JITTER_POLLS * clock.poll_s)


def _decided(
    fits: tuple[KernelFit, ...], time_s: Array, clock: UpdateClock, source: PowerSource, load: LoadStamps | None
) -> tuple[str, str, str]:
    """Kind, reason and remedy."""
    best, period_s = fits[0], clock.period_s
    by_name = {fit.kernel: fit for fit in fits}
    kind = best.kernel
    if kind == "boxcar" and best.width_s > max(TRAILING_MEAN_PERIODS * period_s, TRAILING_MEAN_S):
        kind = "trailing-mean"
    blocked = _blind(fits, time_s, period_s, source, load)
    if blocked is not None:
        return "undetermined", *blocked
    if not clock.rigid and best.width_s < clock.poll_s:
        reason = f"updates keep to no grid, so their times are known to a poll only, and the width of {best.width_s * 1e3:.1f} ms is less"
        return "undetermined", reason, f"poll every {min(1e3 * best.width_s / POLLS_IN_WIDTH, 1e3 * clock.poll_s / 2):.1f} ms or faster"
    narrow = by_name["boxcar"].width_s + 2.0 * by_name["boxcar"].width_std_s < NONE_SHARE * period_s and by_name["none"].r2 > NONE_R2
    if best.kernel == "none" or best.width_s <= NONE_WIDTH_S:
        if narrow:
            return "none", "", ""
        other = fits[1] if best.kernel == "none" else best
        return (
            "undetermined",
            f"no averaging and a {other.kernel} of {other.width_s * 1e3:.1f} ms explain the readings about equally well",
            _longer(period_s),
        )
    few_edges = load is not None and load.edges < CLAIM_EDGES
    doubt = _doubt(fits, kind, few_edges=few_edges)
    if doubt and narrow and best.score - by_name["none"].score < NONE_LEAD:
        return "none", "", ""
    return ("undetermined", doubt, _informative(best, period_s)) if doubt else (kind, "", "")


def _blind(
    fits: tuple[KernelFit, ...], time_s: Array, period_s: float, source: PowerSource, load: LoadStamps | None
) -> tuple[str, str] | None:
    """Why the record cannot tell any kernel, with a remedy; None where it might."""
    best = fits[0]
    if slow := _slow_meter(best, source, period_s):
        return slow
    edges = load.edges if load is not None else CLAIM_EDGES
    if edges < CLAIM_EDGES and (source.kind == "load" or not (_long_step(fits) or _told_by_edges(fits, time_s, load))):
        few = f"the load has {edges} edges: a lone step puts a reading or two on its ramp" if edges <= 2 else f"the load has {edges} edges"
        return f"{few}, at least {CLAIM_EDGES} edges tell kernels apart", _informative(best, period_s)
    if load is not None and _unseen(fits, time_s, source, load):
        hole = phase_hole(time_s - best.delay_s, load)[0]
        return (
            f"{LOCKED}: {hole:.0%} of its period is never seen",
            "change the load's period, or vary its cycles by 1 to 2 %",
        )
    if source.kind == "load" and load is not None and best.kernel == "boxcar" and best.width_s <= TRAILING_MEAN_S:
        cycle_s = float(np.max(np.diff(load.start_s)))
        if best.width_s > cycle_s:
            longer = f"the averaging, {best.width_s * 1e3:.0f} ms, is longer than the load's longest cycle, {cycle_s * 1e3:.0f} ms"
            remedy = f"run a square wave of {2.3e3 * best.width_s:.0f} ms, cycles varied by 1 to 2 %, for 10 s"
            return f"{longer}: one that is shorter or longer by a cycle looks the same", remedy
    if best.r2 < CLAIM_R2:
        other = "something else moved the readings, or other power is given than their board's"
        return f"the best kernel explains {best.r2:.0%} of the variance; {other}", "run nothing else on the board, on one time base"
    if abs(best.delay_s) > AT_BOUND * DELAY_LIMIT_S:
        return f"the delay lies at its bound, {best.delay_s * 1e3:.1f} ms", "give readings, load and reference on one time base"
    return None


def _slow_meter(best: KernelFit, source: PowerSource, period_s: float) -> tuple[str, str] | None:
    """Why a meter's samples come too slowly for the averaging, or for the load, and how fast they should; None where they do not."""
    spacing_s = source.noise.spacing_s
    if source.kind != "meter" or spacing_s <= SLOW_METER_S:
        return None
    told_s, width_s = METER_SAMPLES * spacing_s, max(best.width_s, NONE_SHARE * period_s)
    every = f"the reference has a sample every {spacing_s * 1e3:.3g} ms"
    if source.noise.turns:
        return (
            f"{every}, and its power turns between them: too slow for this load, and for averagings below {told_s * 1e3:.3g} ms",
            f"log the reference {LOAD_SAMPLES} times in each half of the load's period and more",
        )
    if width_s >= told_s:
        return None
    enough_ms = max(min(best.width_s, period_s), SHORTEST_AVERAGING_S) / METER_SAMPLES * 1e3
    return (
        f"{every}: too slow for averagings below {told_s * 1e3:.3g} ms, and this one is shorter",
        f"log it every {enough_ms:.2g} ms or faster",
    )


def _unseen(fits: tuple[KernelFit, ...], time_s: Array, source: PowerSource, load: LoadStamps) -> bool:
    """Whether the load is locked to the update clock, so that no update sees most of what an edge becomes.

    A hole in the updates' phases matters less where the averaging is longer than it, and where a meter shows a lead
    that phases moving slowly have left.
    """
    best = fits[0]
    hole, cycles = phase_hole(time_s - best.delay_s, load)
    if cycles < MIN_CYCLES:
        return False
    hole_s = hole * float(np.median(np.diff(load.start_s)))
    reach_s = max(best.width_s, SHORT_WIDTH_S)
    if hole_s < REACH_SEEN * reach_s and (source.kind == "meter" or best.width_s > TRAILING_MEAN_S):
        return False
    if hole > CLAIM_PHASE_HOLE:
        strong = best.score - fits[1].score >= LOCKED_LEAD and block_z(best.terms - fits[1].terms) >= LOCKED_Z
        return source.kind != "meter" or hole > LOCKED_HOLE or not strong
    return best.kernel != "none" and hole_s > reach_s and hole > SMALL_HOLE


def _doubt(fits: tuple[KernelFit, ...], kind: str, *, few_edges: bool) -> str:
    """Why the leading kernel cannot be named, or an empty text; a load of `few_edges` has passed its own test before."""
    best, runner = fits[0], fits[1]
    lead = best.score - runner.score
    z = block_z(best.terms - runner.terms)
    averaging_pair = {best.kernel, runner.kernel} == {"boxcar", "low-pass"} and runner.score - fits[2].score > CLAIM_NONE_BEHIND
    needed = SHORT_WIDTH_Z if best.width_s < SHORT_WIDTH_S else CLAIM_BLOCKS_Z[averaging_pair]
    if kind == "trailing-mean" and _long_step(fits):
        return ""
    if few_edges and lead >= CLAIM_LEAD:
        return ""
    if lead < CLAIM_LEAD or z < needed:
        close = f"lead {lead:.1f}, {z:.1f} standard deviations"
        return f"{best.kernel} and {runner.kernel} explain the readings about equally well ({close})"
    return ""


def _told_by_edges(fits: tuple[KernelFit, ...], time_s: Array, load: LoadStamps | None) -> bool:
    """Whether the best kernel leads at every edge alone that any update saw, and there are LEAST_TOLD_EDGES of them or more."""
    best, runner = fits[0], fits[1]
    if load is None or best.kernel == "none":
        return False
    reach = max(EDGE_WIDTHS * max(best.width_s, runner.width_s), BEFORE_EDGE_S)
    ends = time_s - best.delay_s
    leads = []
    for edge in np.unique(np.concatenate([load.start_s, load.end_s])).tolist():
        near = (ends > edge - BEFORE_EDGE_S) & (ends < edge + reach)
        if np.any(near):
            leads.append(float(np.sum((best.terms - runner.terms)[near])))
    return len(leads) >= LEAST_TOLD_EDGES and min(leads) >= EDGE_LEAD


def _long_step(fits: tuple[KernelFit, ...]) -> bool:
    """Whether a mean over a second has shown itself: a step alone puts many updates on its ramps."""
    best = fits[0]
    long = best.kernel == "boxcar" and best.width_s > TRAILING_MEAN_S
    return long and best.score - fits[1].score >= CLAIM_LEAD and _on_ramps(best) >= LONG_STEP_UPDATES


def _on_ramps(fit: KernelFit) -> int:
    """Updates of which the prediction is neither high nor low."""
    low, high = np.quantile(fit.predicted_w, [0.02, 0.98])
    share = (fit.predicted_w - low) / max(high - low, 1e-9)
    return int(np.count_nonzero((share > 0.1) & (share < 0.9)))


def _informative(best: KernelFit, period_s: float) -> str:
    """The run that would tell the leading kernels apart, after the lead that each load gives on simulated sensors."""
    if best.kernel == "low-pass":
        share = 0.5 * best.width_s / period_s
        ratio = 1.27 if share < 0.15 else 4.7 if share < 1.0 else 12.0
    else:
        ratio = 1.27 if best.width_s < 0.5 * period_s else 2.3
    return f"run a square wave of {ratio * period_s * 1e3:.0f} ms ({ratio:g} update periods), cycles varied by 1 to 2 %, for 10 s"


def _longer(period_s: float) -> str:
    return f"run a square wave of {0.9 * period_s * 1e3:.1f} ms for 20 s, polled every millisecond"


def block_z(difference: Array) -> float:
    """Sum of a difference over blocks of the record in units of its own scatter."""
    blocks = min(BLOCKS, max(len(difference) // LEAST_BLOCK, 3))
    sums = np.array([part.sum() for part in np.array_split(difference, blocks)])
    scatter = float(np.sqrt(np.sum(sums**2)))
    return float(sums.sum() / scatter) if scatter > 0 else 0.0


def phase_hole(time_s: Array, load: LoadStamps) -> tuple[float, int]:
    """Largest hole in the updates' places within the load's cycles, as a share of a cycle, and the number of cycles."""
    cycle = np.searchsorted(load.start_s, time_s, side="right") - 1
    inside = (cycle >= 0) & (cycle < len(load.start_s) - 1)
    if np.count_nonzero(inside) < 2:
        return 1.0, len(load.start_s) - 1
    start, following = load.start_s[cycle[inside]], load.start_s[cycle[inside] + 1]
    place = np.sort((time_s[inside] - start) / (following - start))
    return float(np.max(np.diff(np.append(place, place[0] + 1.0)))), len(load.start_s) - 1

"""Boards that rise late of their own: whether load stamps tell such a board from the averaging that is about to be named.

Without a meter readings show what board and sensor make of a load together.  Of published boards' steps 60 to 100 % come at once, so a
board of which half follows late, in whatever time, is possible, and one that rises late and falls at once as well: what a board gains
by a higher clock it loses with the load.  A kernel is named where it explains the readings better than any other one does on all such
boards.  A board that rises and falls late as a whole is, to load stamps, the same as a sensor; it is believed where one late rise does
not explain the readings and two in a row do.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from collector.sensor.kernel_fit import START_STEP, KernelFit, KernelProblem, climbed
from collector.sensor.load import BIN_S, LAUNCH_RISE_S, LoadStamps, pole
from collector.sensor.not_negative import solved_not_negative
from collector.sensor.sources import LAUNCH_LAG_S, PowerSource, load_source
from estimator.quantities import Array, BoolArray

LATE_S: Final = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16)
"""Time constants of what follows late; two neighbours make up for one in between."""
LONGEST_S, LEAST_UPDATES = 20.0, 100
"""So much of a record is looked at, and so many updates at least: rises and falls show within seconds, and rivals have many columns."""
LEAD: Final = 8.0
"""Log-likelihood by which a kernel must lead here, as it must on the usual board."""
WIDTHS_S: Final = tuple(float(width) for width in np.geomspace(2e-3, 1.0, 10))
DELAYS_S: Final = (-6e-3, 0.0, 6e-3)
"""A rival's search starts at two widths, the best of these and of its kernel's fit on the usual board."""
EVALUATIONS: Final = 80
LEAST_NOISE_W: Final = 0.1
"""A search starts at this noise of readings or more, and not where a fit has found none."""
FAST, SLOW, CREEP = 0, 1, 2
"""Places of a load's columns in its source."""
REMEDY: Final = "an external meter beside it (--reference, or --pmd) shows the board's own rise"


class RivalProblem(KernelProblem):
    """A kernel on a board made of many shapes, none of which may be negative."""

    def amplitudes(self, design: Array, weight: Array) -> Array:
        """Weighted least squares with every factor but the offset 0 or more, shape (c,)."""
        return solved_not_negative(design, self.value, weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A kernel about to be named from load stamps: the fits of all kernels on the usual board to updates at `time_s` with `value` (n,)."""

    kernel: str
    fits: tuple[KernelFit, ...]
    time_s: Array
    value: Array
    jitter_s: float


def board_doubt(claim: Claim, load: LoadStamps, until_s: float) -> str:
    """Why a load's stamps do not tell the claimed kernel from a board that rises late; "" where they do.

    `until_s` is when the updates that were compared end.
    """
    until_s = min(until_s, compared_until_s(claim.time_s))
    seen = claim.time_s < until_s
    usual = load_source(_until(load, until_s), until_s)
    half, whole = _half_at_once(usual, load), _late_as_a_whole(usual)
    own = next(fit for fit in claim.fits if fit.kernel == claim.kernel)
    others = [fit for fit in claim.fits if fit is not own]
    rival, likelihood = max(((fit.kernel, _likelihood(claim, fit, seen, half)) for fit in others), key=lambda found: found[1])
    late = max(_likelihood(claim, fit, seen, whole) for fit in claim.fits)
    best = own.score - float(own.terms[~seen].sum())
    if best - likelihood < LEAD or late - best >= LEAD:  # such a board may explain the claimed kernel's readings better as well
        best = max(best, _likelihood(claim, own, seen, half))
    if (lead := best - likelihood) < LEAD:
        other = "no averaging" if rival == "none" else f"a {rival}"
        return f"{other} on a board that rises late itself explains the readings as well as a {claim.kernel}, or better (lead {lead:.1f})"
    if late - best >= LEAD:
        return f"the board itself rises late (lead {late - best:.1f}), and which part of the readings' rise is the sensor's is not told"
    return ""


def compared_until_s(time_s: Array) -> float:
    """When those of the updates at `time_s` (n,) end that boards are compared on [s]."""
    return max(float(time_s[0]) + LONGEST_S, float(time_s[min(LEAST_UPDATES, len(time_s) - 1)]))


def _until(load: LoadStamps, until_s: float) -> LoadStamps:
    """The load's runs up to a time."""
    kept = load.start_s < until_s
    return LoadStamps(start_s=load.start_s[kept], end_s=np.minimum(load.end_s[kept], until_s), level=load.levels[kept])


def _half_at_once(usual: PowerSource, load: LoadStamps) -> PowerSource:
    """Boards with half of their power at once and the rest late, and boards that rise late and fall at once."""
    fast, slow, creep = usual.columns
    late = 0.5 * (fast + np.concatenate([_poles(fast), slow[None, :]]))
    columns = np.concatenate([fast[None, :], late, rise_alone(usual, load), creep[None, :]])
    return replace(usual, columns=columns, signed=0)


def _late_as_a_whole(usual: PowerSource) -> PowerSource:
    """Boards that rise and fall late with as much of their power as it takes."""
    fast, creep = usual.columns[FAST], usual.columns[CREEP]
    return replace(usual, columns=np.concatenate([fast[None, :], _poles(fast), creep[None, :]]), signed=0)


def _poles(column: Array) -> Array:
    """A column through one pole of every time in LATE_S, shape (len(LATE_S), n)."""
    count = len(column)
    spectrum = np.fft.rfft(column)
    return np.fft.irfft(np.array([spectrum * pole(count, late_s) for late_s in LATE_S]), n=count, axis=1)


def rise_alone(usual: PowerSource, load: LoadStamps) -> Array:
    """Power of boards that rise late and fall at once, for every time in LATE_S, on the usual board's grid, shape (len(LATE_S), n)."""
    count = usual.columns.shape[1]
    edge_s = usual.origin_s + BIN_S * np.arange(count + 1)
    start, end = load.start_s + LAUNCH_LAG_S, load.end_s + LAUNCH_LAG_S
    current = np.maximum(np.searchsorted(start, edge_s, side="right") - 1, 0)
    age_s = np.clip(edge_s - start[current], 0.0, (end - start)[current])
    columns = []
    for late_s in LATE_S:
        lacking = _lacking(load, late_s)
        whole = late_s * lacking * -np.expm1(-(end - start) / late_s)
        before = np.concatenate([[0.0], np.cumsum(whole)[:-1]])
        columns.append(np.diff(before[current] - late_s * lacking[current] * np.expm1(-age_s / late_s)) / BIN_S)
    spectrum = np.fft.rfft(np.array(columns), axis=1) * pole(count, LAUNCH_RISE_S)
    power: Array = usual.columns[FAST] - np.fft.irfft(spectrum, n=count, axis=1)
    return power


def _lacking(load: LoadStamps, late_s: float) -> Array:
    """How far below its level a board that rises with a time constant begins each run, as a share of the full load (j,)."""
    result, power = np.empty(len(load.start_s)), 0.0
    for index, (start, end, level) in enumerate(zip(load.start_s.tolist(), load.end_s.tolist(), load.levels.tolist(), strict=True)):
        if index and start > load.end_s[index - 1]:
            power = 0.0
        result[index] = max(level - power, 0.0)
        power = level - result[index] * float(np.exp(-(end - start) / late_s))
    return result


def _likelihood(claim: Claim, fit: KernelFit, seen: BoolArray, board: PowerSource) -> float:
    """The best penalised log-likelihood of a kernel on a kind of board, for the updates `seen`."""
    problem = RivalProblem(fit.kernel, board, claim.time_s[seen], claim.value[seen], claim.jitter_s)
    even = np.ones(len(problem.value))
    noise = float(np.log(max(min(other.noise_w for other in claim.fits), LEAST_NOISE_W)))
    widths = WIDTHS_S if fit.kernel != "none" else (fit.parameter_s,)
    places = [(width, delay) for width in widths for delay in DELAYS_S] + [(fit.parameter_s, fit.delay_s)]
    starts = [np.array([np.log(width), delay, noise, np.log(claim.jitter_s), 0.0]) for width, delay in places]
    likelihood = [problem.evaluate(point, even).total for point in starts]
    first = int(np.argmax(likelihood))
    apart = [index for index, point in enumerate(starts) if point[0] != starts[first][0]] or [first]
    second = max(apart, key=lambda index: likelihood[index])
    found = max(climbed(problem, starts[index], START_STEP, EVALUATIONS)[1] for index in {first, second})
    return found - (0.0 if fit.kernel == "none" else 0.5 * float(np.log(len(problem.value))))

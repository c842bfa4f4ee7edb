"""What a fit comes out off by on its own sensor: jitter of window ends is no scatter of readings as the fit takes it.

Near the corner of a ramp, jitter throws readings to one side only, and a boxcar of some milliseconds has many such corners: with a jitter
of 0.4 ms those of 5 to 8 ms come out 0.15 to 0.25 ms short.  An exact likelihood would need dozens of window ends for every reading at
every step of a search.  Instead the fit is done once more, on readings made from itself, and what that is off by is taken off.  This is for
fits to a meter's power: from load stamps alone the unknown rise of the board moves short widths by more.
"""

from dataclasses import replace
from statistics import NormalDist
from typing import Final

import numpy as np

from collector.sensor.kernel_errors import BEYOND_FIRST_ORDER
from collector.sensor.kernel_fit import RESTART_EVALUATIONS, RESTART_STEP, KernelFit, KernelProblem, climbed
from collector.sensor.meter_noise import NO_NOISE
from estimator.quantities import Array

LEAST_JITTER_SHARE: Final = 0.01
"""Jitter below this share of the width moves it by less than a thousandth."""
ERROR_SHARE: Final = 1.1 / BEYOND_FIRST_ORDER
"""Errors of widths were found to be BEYOND_FIRST_ORDER times those to first order while this bias was part of them; without it 1.1 times
hold 74 and 96 % of 194 simulated sensors (the former 77 and 98), and 74 and 97 % of 61 others."""
ROUNDS: Final = 9
MOST_UPDATES: Final = 600
"""Readings that are made for every update, and of how many updates."""
NORMAL: Final = NormalDist()


def without_own_bias(problem: KernelProblem, fit: KernelFit) -> KernelFit:
    """The fit with a width and a delay without what a fit of that sensor's readings is off by, and a width's error without it."""
    fit = replace(fit, width_std_s=ERROR_SHARE * fit.width_std_s)
    if fit.jitter_s < LEAST_JITTER_SHARE * fit.width_s:
        return fit
    width, delay = _own_bias(problem, fit)
    return replace(fit, width_s=fit.width_s / float(np.exp(width)), delay_s=fit.delay_s - delay)


def _own_bias(problem: KernelProblem, fit: KernelFit) -> tuple[float, float]:
    """By how much log width and delay [s] of a fit of the fit's own readings differ from the fit's."""
    time_s = np.tile(problem.time_s[:: -(-len(problem.time_s) // MOST_UPDATES)], ROUNDS)
    source = replace(problem.source, noise=NO_NOISE)
    random = np.random.default_rng(0)
    jitter_s, noise_w = (std * _normal(len(time_s), random) for std in (fit.jitter_s, fit.noise_w))
    moved = KernelProblem(problem.kernel, source, time_s + jitter_s, time_s)
    value = moved.design(fit.parameter_s, np.array([fit.delay_s]), fit.drift)[0] @ fit.amplitude_w + noise_w
    own = KernelProblem(problem.kernel, source, time_s, value, problem.jitter_s)
    start = np.array([np.log(fit.parameter_s), fit.delay_s, np.log(fit.noise_w), np.log(fit.jitter_s), fit.drift])
    found = climbed(own, start, RESTART_STEP, RESTART_EVALUATIONS)[0]
    return float(found[0] - start[0]), float(found[1] - start[1])


def _normal(count: int, random: np.random.Generator) -> Array:
    """Places of a standard normal distribution, (count,): in every round of updates one of each part of it as likely as the others."""
    each = count // ROUNDS
    part = np.argsort(random.random((ROUNDS, each)), axis=0)
    within = np.argsort(random.random((ROUNDS, each)), axis=1)
    return np.array([NORMAL.inv_cdf(share) for share in ((part + (within + 0.5) / each) / ROUNDS).ravel().tolist()])

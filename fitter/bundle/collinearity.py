"""Coefficients that the data cannot tell apart, named: what is known is a combination of them, the priors hold the rest.

Two kernels' columns that rise and fall together leave the sum of their coefficients certain and the difference open.  The priors
then tie the difference, so that neither is driven to zero by noise, and the covariance shows it: the correlation of the two is near −1.
Source: D. A. Belsley, E. Kuh, R. E. Welsch, Regression Diagnostics (Wiley, 1980), chapter 3.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from estimator.bundles.content import Bundle
from estimator.quantities import Array

TIED_CORRELATION: Final = 0.9
"""Coefficients correlated more strongly than this (in magnitude) are said to be tied [1]."""

MOST_NAMED: Final = 6
"""Sets of tied coefficients that a line names."""


def collinearity_notes(bundle: Bundle) -> tuple[str, ...]:
    """A line for tied latency coefficients, one for tied power coefficients, and one for terms of power that were driven to zero."""
    notes = []
    latency = bundle.latency_parameters
    tied = tied_sets(latency.names, np.array(latency.covariance))
    if tied:
        notes.append(tied_line("latency", tied))
    power = bundle.power
    if power is not None and power.rows:
        tied = tied_sets(power.terms, np.array(power.covariance))
        if tied:
            notes.append(tied_line("power", tied))
        values = {**power.event_energy_j, "busy": power.busy_w, "active": power.active_w}
        zero = [term for term in power.terms if values.get(term) == 0.0]
        if zero:
            notes.append(
                f"power coefficients that the data drove to zero: {', '.join(zero)}; what they stand for is in the others, "
                "more kinds of kernels or clocks would tell it apart"
            )
    return tuple(notes)


def tied_sets(names: Sequence[str], covariance: Array) -> list[tuple[str, ...]]:
    """Sets of coefficients that are linked by correlations beyond TIED_CORRELATION, each in the order of `names`.

    covariance (p, p), symmetric; coefficients without variance are constants and tied to nothing.
    """
    if not len(names):
        return []
    spread = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    known = spread > 0.0
    scale = np.where(known, spread, 1.0)
    linked = (np.abs(covariance / np.outer(scale, scale)) > TIED_CORRELATION) & known[:, None] & known[None, :]
    free = set(np.flatnonzero(known).tolist())
    found = []
    for first in range(len(names)):
        if first not in free:
            continue
        members, edge = {first}, {first}
        while edge:
            edge = {other for one in edge for other in np.flatnonzero(linked[one]).tolist()} - members
            members |= edge
        free -= members
        if len(members) > 1:
            found.append(tuple(names[i] for i in sorted(members)))
    return found


def tied_line(quantity: str, tied: Sequence[tuple[str, ...]]) -> str:
    """A sentence that names sets of tied coefficients, as from `tied_sets`, of "latency" or "power"."""
    more = f"; and {len(tied) - MOST_NAMED:,} more" if len(tied) > MOST_NAMED else ""
    listed = "; ".join(" with ".join(names) for names in tied[:MOST_NAMED]) + more
    return f"{quantity} coefficients that these data cannot tell apart, tied by their priors: {listed}"

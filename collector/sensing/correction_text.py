"""Output of `collect correct`: a corrected recording as lines, and as a table over time."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from collector.sensing.correct import CorrectedRecording, EnergySpan
from collector.sensing.figures import figure, plain_notes, rounded_like, significant
from collector.sensing.fold import Profile
from collector.sensing.repeated import RepeatedEnergy


def correction_lines(
    found: CorrectedRecording, out: Path | None = None, report: Path | None = None, remarks: Mapping[str, str] | None = None
) -> list[str]:
    """A corrected recording for people; `remarks` are those on how it was read."""
    response = found.response
    width = f"{response.kernel} of {response.width_s * 1e3:.4g} ms"
    lines = [
        f"{found.method}: {len(found.updates.time_s)} updates of {found.updates.period_s * 1e3:.5g} ms, {width}",
        *_span_lines("load" if found.repeated is not None else "recording", found.span),
    ]
    if found.repeated is not None:
        lines += _execution_lines(found.repeated)
        lines += _span_lines("recording", found.whole)
    if found.profile is not None:
        lines.append(_profile_line(found.profile))
    lines += [f"  note: {text}" for text in plain_notes({**(remarks or {}), **found.notes})]
    if out is not None:
        lines.append(f"power over time in {out}")
    if report is not None:
        lines.append(f"charts in {report}")
    return lines


def trace_csv(found: CorrectedRecording, origin_s: float) -> str:
    """Power over time as CSV: the middle of each step on the readings' own time base, power and its standard error."""
    middle = origin_s + 0.5 * (found.edge_s[1:] + found.edge_s[:-1])
    table = np.column_stack([middle, found.power_w, found.power_std_w])
    rows = "\n".join(f"{time_s:.6f},{power:.4f},{std:.4f}" for time_s, power, std in table.tolist())
    return f"t_s,power_w,power_std_w\n{rows}\n"


def _span_lines(name: str, span: EnergySpan) -> list[str]:
    length = span.end_s - span.start_s
    share = span.naive_energy_j / span.energy_j - 1.0 if span.energy_j else float("nan")
    power, energy = figure(span.energy_j / length, span.energy_std_j / length, "W"), figure(span.energy_j, span.energy_std_j, "J")
    naive = rounded_like(span.naive_energy_j, span.energy_std_j)
    return [f"  {name:<11}{length:.4g} s, {power}, {energy}", f"  {'naive':<11}{naive} J ({share:+.1%})"]


def _execution_lines(found: RepeatedEnergy) -> list[str]:
    naive, known = rounded_like(found.naive_j, found.energy_std_j), math.isfinite(found.published_j)
    published = f"published practice {rounded_like(found.published_j, found.energy_std_j)} J" if known else "no published practice"
    return [
        f"  {'execution':<11}{figure(found.energy_j, found.energy_std_j, 'J')} ({significant(found.timing_std_j, 2)} J without gain and "
        f"offset), {found.executions} of {found.duration_s * 1e3:.5g} ms",
        f"  {'':<11}naive {naive} J, {published}",
    ]


def _profile_line(profile: Profile) -> str:
    seen = np.isfinite(profile.power_w)
    if not np.any(seen):
        return "  profile    undetermined: no update saw the executions in more than one place"
    lowest, highest = int(np.nanargmin(profile.power_w)), int(np.nanargmax(profile.power_w))
    low, high = (figure(float(profile.power_w[place]), float(profile.std_w[place]), "W") for place in (lowest, highest))
    return (
        f"  profile    {low} to {high} within {profile.duration_s * 1e3:.5g} ms,\n"
        f"  {'':<11}resolution {significant(profile.attained_s * 1e3)} ms, {seen.sum()} of {len(seen)} places seen"
    )

"""What `collect correct` prints and writes: a corrected recording as lines and as a table over time."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from collector.correction.recording import CorrectedRecording, EnergySpan
from collector.correction.superresolution import Profile
from collector.energy.repeated_energy import RepeatedEnergy


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
    lines += [f"  note: {text}" for text in (*(remarks or {}).values(), *found.notes.values())]
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
    return [
        f"  {name:<11}{length:.4g} s, {span.energy_j / length:.5g} ± {span.energy_std_j / length:.2g} W, "
        f"{span.energy_j:.6g} ± {span.energy_std_j:.2g} J",
        f"  {'naive':<11}{span.naive_energy_j / length:.5g} W, {span.naive_energy_j:.6g} J ({share:+.1%})",
    ]


def _execution_lines(found: RepeatedEnergy) -> list[str]:
    return [
        f"  {'execution':<11}{found.energy_j:.5g} ± {found.energy_std_j:.2g} J ({found.timing_std_j:.2g} J without gain and offset), "
        f"{found.executions} of {found.duration_s * 1e3:.5g} ms",
        f"  {'':<11}naive {found.naive_j:.5g} J, published practice {found.published_j:.5g} J",
    ]


def _profile_line(profile: Profile) -> str:
    seen = np.isfinite(profile.power_w)
    if not np.any(seen):
        return "  profile    undetermined: no update saw the executions in more than one place"
    power = profile.power_w[seen]
    return (
        f"  profile    {power.min():.4g} to {power.max():.4g} W within {profile.duration_s * 1e3:.5g} ms, "
        f"resolution {profile.attained_s * 1e3:.3g} ms, {seen.sum()} of {len(seen)} places seen"
    )

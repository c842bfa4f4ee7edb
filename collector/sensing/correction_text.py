"""Output of `collect correct`: a corrected recording as lines, and as a table over time."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from collector.sensing.correct import CorrectedRecording
from collector.sensing.figures import figure, rounded_like, significant
from collector.sensing.repeated import EnergySpan


def correction_lines(found: CorrectedRecording, out: Path | None, remarks: Mapping[str, str]) -> list[str]:
    """A corrected recording for people; `remarks` are those on how it was read."""
    response = found.response
    width = f"{response.kernel} of {response.width_s * 1e3:.4g} ms"
    lines = [
        f"{found.method}: {len(found.updates.time_s)} updates of {found.updates.period_s * 1e3:.5g} ms, {width}",
        *_span_lines("load" if found.repeated is not None else "recording", found.span),
    ]
    if found.repeated is not None:
        one = found.repeated
        lines += [
            f"  {'execution':<11}{figure(one.energy_j, one.energy_std_j, 'J')} ({significant(one.timing_std_j, 2)} J without gain and "
            f"offset), {one.executions} of {one.duration_s * 1e3:.5g} ms",
            f"  {'':<11}naive {rounded_like(one.naive_j, one.energy_std_j)} J",
        ]
        lines += _span_lines("recording", found.whole)
    lines += [f"  note: {text}" for text in dict.fromkeys([*remarks.values(), *found.notes.values()])]
    if out is not None:
        lines.append(f"power over time in {out}")
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

"""What `collect pmd` says about a recording: plain data, and lines for people."""

import math
from typing import Any, Final

from collector.pmd.clock_tie import NS_PER_S
from collector.pmd.recording import ScannedRecording
from collector.pmd.samples import MODEL_RAILS
from collector.pmd.table import PowerSummary
from collector.sensing.figures import figure, time_text

MOST_HOLES: Final = 100
"""Holes that are listed one by one; all are counted."""
MS_PER_S: Final = 1e3
ACCURACY: Final = 0.0112
CHECKED_MODEL: Final = "PMD-USB"
"""Of a PMD-USB's power after a check against a multimeter, as its published users found."""


def recording_document(scanned: ScannedRecording, summary: PowerSummary) -> dict[str, Any]:
    """Counts, clock and means of a recording; what is not known is None."""
    tally, holes, tie = scanned.tally, scanned.holes, scanned.tie
    listed = [
        {"t_s": (int(end) - scanned.first_ns) / NS_PER_S, "length_s": float(length), "lost": int(lost)}
        for end, length, lost in list(zip(holes.end_ns, holes.length_s, holes.lost, strict=True))[:MOST_HOLES]
    ]
    names = MODEL_RAILS[scanned.recording.model]
    return {
        "recording": str(scanned.recording.path),
        "model": scanned.recording.model,
        "bytes": tally.bytes,
        "samples": tally.packets,
        "lost": int(holes.lost.sum()),
        "resyncs": tally.resyncs,
        "holes": len(holes.lost),
        "longest_hole_s": float(holes.length_s.max()) if len(holes.lost) else 0.0,
        "bridged_s": float(holes.length_s.sum()),
        "hole_list": listed,
        "discarded_bytes": tally.discarded_bytes,
        "trailing_bytes": tally.trailing_bytes,
        "duration_s": summary.duration_s,
        "tick_rate_per_s": _known(tie.ticks_per_ms * MS_PER_S) if tie else None,
        "tick_rate_std_per_s": _known(tie.ticks_per_ms_std * MS_PER_S) if tie else None,
        "tick_rate_source": tie.source if tie else None,
        "clock_residual_s": _known(tie.residual_s) if tie else None,
        "clock_points": tie.blocks if tie else None,
        "clock_points_offered": tie.offered if tie else None,
        "first_host_ns": scanned.first_ns if tie is None or tie.source == "stamps" else None,
        "mean_power_w": summary.mean_power_w,
        "energy_j": summary.energy_j,
        "rails": {
            name: {"voltage_v": float(volt), "current_a": float(ampere)}
            for name, volt, ampere in zip(names, summary.mean_volts, summary.mean_amperes, strict=True)
        },
    }


def recording_lines(document: dict[str, Any]) -> list[str]:
    """The same for people."""
    lines = [
        f"{document['recording']}:",
        f"  {document['model']}, {document['samples']} samples in {document['duration_s']:.3f} s,"
        f" {document['lost']} lost in {document['holes']} holes (longest {time_text(document['longest_hole_s'])}),",
        f"  {document['resyncs']} resyncs, {document['discarded_bytes']} bytes discarded",
        *_clock_lines(document),
        f"  power     {document['mean_power_w']:.2f} W, the mean of the samples",
        f"  energy    {document['energy_j']:.2f} J",
        *(f"  {'':<9} {text}" for text in _energy_remarks(document)),
    ]
    for name, means in document["rails"].items():
        lines.append(f"  {name:<9} {means['voltage_v']:7.3f} V {means['current_a']:8.3f} A")
    return lines


def _clock_lines(document: dict[str, Any]) -> list[str]:
    """What the meter's clock ran at, and by what that was told."""
    rate, std, residual = document["tick_rate_per_s"], document["tick_rate_std_per_s"], document["clock_residual_s"]
    if rate is None:
        return []
    distance = f", residual {time_text(residual)} rms" if residual is not None else ""
    lines = [f"  clock     {figure(rate, std, 'ticks per s')} ({document['tick_rate_source']}){distance}"]
    if document["tick_rate_source"] == "load":
        found, offered = document["clock_points"], document["clock_points_offered"]
        lines.append(f"  {'':<9} {found} of the load's {offered} launches show in the power")
        if found < offered:
            lines.append(f"  {'':<9} not all do: --start may be off by whole periods of the load")
    return lines


def _energy_remarks(document: dict[str, Any]) -> list[str]:
    """What power and energy leave out, or bridge."""
    said = []
    if document["holes"]:
        said.append(f"{time_text(document['bridged_s'])} of holes, bridged by straight lines: not mean times duration")
    if document["model"] == CHECKED_MODEL:
        said.append(f"the meter's own accuracy, about {ACCURACY:.1%}, is in neither")
    return said


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None

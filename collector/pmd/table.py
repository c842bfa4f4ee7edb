"""Decoded samples as a table, and the report of `collect pmd` about a recording.

The table is CSV or Parquet with `t_s`, `power_w`, and voltage and current of every rail.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from collector.devices.errors import DatasetError
from collector.pmd.protocol import NS_PER_S, PMD_USB
from collector.pmd.recording import ScannedRecording, sample_blocks
from collector.sensing.figures import figure, time_text
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.whole_file import open_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class TableForm:
    """Contents of a table: positions of the rails whose sum is `power_w`, zeros of all channels [A], and the origin of `t_s`.

    `time_base` is "first" (sample), "monotonic" or "unix"; `start_s` is added.
    """

    rails: Sequence[int]
    zero_a: Array
    time_base: str = "first"
    start_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerSummary:
    """Summary of the written samples: number, span, energy by the trapezoid rule (holes bridged), means of power, voltages and currents."""

    samples: int
    duration_s: float
    energy_j: float
    mean_power_w: float
    rails: dict[str, tuple[float, float]]


def write_table(scanned: ScannedRecording, out: Path | BinaryIO | None, form: TableForm) -> PowerSummary:
    """Write all samples; a path gets its file completely or not at all, None gets no file.

    Raises DatasetError if a recording without stamps does not know the time base, UnwrittenError.
    """
    rails = scanned.recording.model.rails
    origin_ns = _origin_ns(scanned, form.time_base) - round(form.start_s * NS_PER_S)
    sums, count, energy_j, last_w = np.zeros(1 + 2 * len(rails)), 0, 0.0, 0.0
    last_ns = scanned.first_ns
    names = ["t_s", "power_w", *(f"{name}_{unit}" for name in rails for unit in ("v", "a"))]
    with _sink(out, pa.schema([pa.field(name, pa.float64(), nullable=False) for name in names])) as write:
        for samples in sample_blocks(scanned, form.zero_a):
            power_w = samples.rail_power_w()[:, form.rails].sum(axis=1)
            values = np.column_stack([power_w, np.stack([samples.volts, samples.amperes], axis=2).reshape(len(samples), -1)])
            steps_s = np.diff(samples.host_ns, prepend=last_ns) / NS_PER_S
            energy_j += float(np.sum(0.5 * steps_s * (power_w + np.concatenate([[last_w], power_w[:-1]]))))
            last_ns, last_w = int(samples.host_ns[-1]), float(power_w[-1])
            sums, count = sums + values.sum(axis=0), count + len(samples)
            # a tick is 0.34 µs; a millionth is a thousandth of the meter's step
            write([np.round((samples.host_ns - origin_ns) / NS_PER_S, 7), *np.round(values, 6).T])
    means = (sums / count).tolist()
    return PowerSummary(
        samples=count,
        duration_s=(last_ns - scanned.first_ns) / NS_PER_S,
        energy_j=energy_j,
        mean_power_w=means[0],
        rails=dict(zip(rails, zip(means[1::2], means[2::2], strict=True), strict=True)),
    )


def _origin_ns(scanned: ScannedRecording, time_base: str) -> int:
    """Host time [ns] of t_s = 0.  Raises DatasetError if a recording without stamps does not know the base."""
    if time_base != "unix":
        return scanned.first_ns if time_base == "first" else 0
    header = scanned.recording.header
    if header is None:
        raise DatasetError(f"{scanned.recording.path}: has no stamps and so no wall time; give --start, the time of its first packet")
    return header.started_host_ns - round(header.started_unix_s * NS_PER_S)


@contextmanager
def _sink(out: Path | BinaryIO | None, schema: Any) -> Iterator[Callable[[list[Array]], None]]:
    """A function that writes columns."""
    if out is None:
        yield lambda _columns: None
    elif isinstance(out, Path):
        with open_whole(out) as stream:
            if out.suffix != ".parquet":
                with _sink(stream, schema) as write:
                    yield write
                return
            with pq.ParquetWriter(stream, schema, compression="zstd", write_page_checksum=True) as parquet:
                yield lambda columns: parquet.write_batch(pa.record_batch(columns, schema=schema))
    else:
        out.write((",".join(schema.names) + "\n").encode())  # names without quotes
        with pcsv.CSVWriter(out, schema, write_options=pcsv.WriteOptions(include_header=False)) as csv:
            yield lambda columns: csv.write_batch(pa.record_batch(columns, schema=schema))


def recording_document(scanned: ScannedRecording, summary: PowerSummary) -> dict[str, object]:
    """Counts, clock and means of a recording; unknown values are None.  The first hundred holes are listed one by one."""
    tally, holes, tie = scanned.tally, scanned.holes, scanned.tie
    listed = zip(holes.end_ns[:100].tolist(), holes.length_s[:100].tolist(), holes.lost[:100].tolist(), strict=True)
    return {
        "recording": str(scanned.recording.path),
        "model": scanned.recording.model.name,
        "bytes": tally.bytes,
        "samples": tally.packets,
        "lost": int(holes.lost.sum()),
        "resyncs": tally.resyncs,
        "holes": len(holes.lost),
        "longest_hole_s": float(holes.length_s.max(initial=0.0)),
        "bridged_s": float(holes.length_s.sum()),
        "hole_list": [{"t_s": (end - scanned.first_ns) / NS_PER_S, "length_s": length, "lost": lost} for end, length, lost in listed],
        "discarded_bytes": tally.discarded_bytes,
        "trailing_bytes": tally.trailing_bytes,
        "duration_s": summary.duration_s,
        "tick_rate_per_s": _known(1e3 * tie.ticks_per_ms) if tie else None,
        "tick_rate_std_per_s": _known(1e3 * tie.ticks_per_ms_std) if tie else None,
        "tick_rate_source": tie.source if tie else None,
        "clock_residual_s": _known(tie.residual_s) if tie else None,
        "clock_points": tie.points if tie else None,
        "clock_points_offered": tie.offered if tie else None,
        "first_host_ns": scanned.first_ns if tie is None or tie.source == "stamps" else None,
        "mean_power_w": summary.mean_power_w,
        "energy_j": summary.energy_j,
        "rails": {name: {"voltage_v": volts, "current_a": amperes} for name, (volts, amperes) in summary.rails.items()},
    }


def recording_lines(scanned: ScannedRecording, summary: PowerSummary) -> list[str]:
    """The same for people."""
    recording, tally, holes, tie = scanned.recording, scanned.tally, scanned.holes, scanned.tie
    longest = time_text(float(holes.length_s.max(initial=0.0)))
    lines = [
        f"{recording.path}:",
        f"  {recording.model.name}, {tally.packets} samples in {summary.duration_s:.3f} s,"
        f" {holes.lost.sum()} lost in {len(holes.lost)} holes (longest {longest}),",
        f"  {tally.resyncs} resyncs, {tally.discarded_bytes} bytes discarded",
    ]
    if tie is not None:
        residual = f", residual {time_text(tie.residual_s)} rms" if math.isfinite(tie.residual_s) else ""
        rate = figure(1e3 * tie.ticks_per_ms, 1e3 * tie.ticks_per_ms_std, "ticks per s")
        lines.append(f"  clock     {rate} ({tie.source}){residual}")
        if tie.source == "load":
            lines.append(f"{'':<12}{tie.points} of the load's {tie.offered} launches show in the power")
        if tie.points < tie.offered:
            lines.append(f"{'':<12}not all do: --start may be off by whole periods of the load")
    lines += [f"  power     {summary.mean_power_w:.2f} W, the mean of the samples", f"  energy    {summary.energy_j:.2f} J"]
    if len(holes.lost):
        lines.append(f"{'':<12}{time_text(float(holes.length_s.sum()))} of holes, bridged by straight lines: not mean times duration")
    if recording.model is PMD_USB:  # after a check against a multimeter, as published users found
        lines.append(f"{'':<12}the meter's own accuracy, about 1.1%, is in neither")
    return [*lines, *(f"  {name:<9} {volts:7.3f} V {amperes:8.3f} A" for name, (volts, amperes) in summary.rails.items())]


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None

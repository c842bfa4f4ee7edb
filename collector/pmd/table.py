"""Decoded samples as a table, and the report of `collect pmd` about a recording.

The table is CSV with `t_s`, `power_w`, and voltage and current of every rail.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv

from collector.errors import DatasetError
from collector.pmd.protocol import NS_PER_S
from collector.pmd.recording import ScannedRecording, sample_blocks
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.values import frozen
from estimator.vocabulary.whole_file import open_whole


@frozen
class TableForm:
    """Contents of a table: positions of the rails whose sum is `power_w`, zeros of all channels [A], and the origin of `t_s`.

    `time_base` is "first" (sample), "monotonic" or "unix".
    """

    rails: Sequence[int]
    zero_a: Array
    time_base: str = "first"


def write_table(scanned: ScannedRecording, out: Path | BinaryIO | None, form: TableForm) -> dict[str, object]:
    """Write all samples; a path gets its file completely or not at all, None gets no file.

    Returns a document about the recording: counts, clock, means, and energy by the trapezoid rule (holes bridged); unknown values are None.

    Raises DatasetError if a recording without stamps does not know the time base, UnwrittenError.
    """
    rails = scanned.recording.model.rails
    origin_ns = _origin_ns(scanned, form.time_base)
    sums, energy_j, last_w = np.zeros(1 + 2 * len(rails)), 0.0, 0.0
    last_ns, holes_s, hole_s = scanned.first_ns, [np.zeros(0)], scanned.recording.longest_step_s
    names = ["t_s", "power_w", *(f"{name}_{unit}" for name in rails for unit in ("v", "a"))]
    with _sink(out, pa.schema([pa.field(name, pa.float64(), nullable=False) for name in names])) as write:
        for samples in sample_blocks(scanned, form.zero_a):
            power_w = samples.rail_power_w()[:, form.rails].sum(axis=1)
            values = np.column_stack([power_w, np.stack([samples.volts, samples.amperes], axis=2).reshape(len(samples), -1)])
            steps_s = np.diff(samples.host_ns, prepend=last_ns) / NS_PER_S
            holes_s.append(steps_s[steps_s > hole_s])
            energy_j += float(np.sum(0.5 * steps_s * (power_w + np.concatenate([[last_w], power_w[:-1]]))))
            last_ns, last_w = int(samples.host_ns[-1]), float(power_w[-1])
            sums += values.sum(axis=0)
            # a tick is 0.34 µs; a millionth is a thousandth of the meter's step
            write([np.round((samples.host_ns - origin_ns) / NS_PER_S, 7), *np.round(values, 6).T])
    power_w, *means = (sums / scanned.tally.packets).tolist()
    tally, tie, length_s = scanned.tally, scanned.tie, np.concatenate(holes_s)
    return {
        "recording": str(scanned.recording.path),
        "model": scanned.recording.model.name,
        "samples": tally.packets,
        "holes": len(length_s),
        "longest_hole_s": float(length_s.max(initial=0.0)),
        "bridged_s": float(length_s.sum()),
        "discarded_bytes": tally.discarded_bytes,
        "trailing_bytes": tally.trailing_bytes,
        "duration_s": (last_ns - scanned.first_ns) / NS_PER_S,
        "clock_residual_s": tie.residual_s if tie and math.isfinite(tie.residual_s) else None,
        "mean_power_w": power_w,
        "energy_j": energy_j,
        "rails": {name: {"voltage_v": means[2 * i], "current_a": means[2 * i + 1]} for i, name in enumerate(rails)},
    }


def recording_lines(document: dict[str, Any]) -> list[str]:
    """The same for people."""
    rails = [f"{name} {rail['voltage_v']:.3f} V {rail['current_a']:.3f} A" for name, rail in document["rails"].items()]
    texts = {
        name: f"{value:.6g}" if isinstance(value, float) else "unknown" if value is None else value for name, value in document.items()
    }
    return [f"{name:<17} {text}" for name, text in (texts | {"rails": ", ".join(rails)}).items()]


def _origin_ns(scanned: ScannedRecording, time_base: str) -> int:
    """Host time [ns] of t_s = 0.  Raises DatasetError if a recording without stamps does not know the base."""
    if time_base != "unix":
        return scanned.first_ns if time_base == "first" else 0
    header = scanned.recording.header
    if header is None:
        raise DatasetError(f"{scanned.recording.path}: has no stamps and so no wall time; leave --time out")
    return header.started_host_ns - round(header.started_unix_s * NS_PER_S)


@contextmanager
def _sink(out: Path | BinaryIO | None, schema: Any) -> Iterator[Callable[[list[Array]], None]]:
    """A function that writes columns."""
    if out is None:
        yield lambda _columns: None
        return
    with open_whole(out) if isinstance(out, Path) else nullcontext(out) as stream:
        stream.write((",".join(schema.names) + "\n").encode())  # names without quotes
        with pcsv.CSVWriter(stream, schema, write_options=pcsv.WriteOptions(include_header=False)) as writer:
            yield lambda columns: writer.write_batch(pa.record_batch(columns, schema=schema))

"""Decoded samples as a table: CSV or Parquet, with `t_s`, `power_w`, and voltage and current of every rail."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from collector.devices.errors import DatasetError
from collector.pmd.clock_tie import NS_PER_S
from collector.pmd.recording import ScannedRecording, sample_blocks
from collector.pmd.samples import MODEL_RAILS, MeterSamples
from estimator.vocabulary.quantities import Array
from estimator.vocabulary.whole_file import open_whole

PARQUET: Final = ".parquet"
DIGITS: Final = 6
"""Decimals of a value: a thousandth of the meter's step, and none of a number's binary dust."""
TIME_DIGITS: Final = 7
"""Decimals of a time: 0.1 µs; a tick is 0.34 µs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerSummary:
    """What was written: samples, span, mean power, energy, and voltage and current of each rail on the mean."""

    samples: int
    duration_s: float
    mean_power_w: float
    energy_j: float
    mean_volts: Array
    mean_amperes: Array


def origin_ns(scanned: ScannedRecording, time_base: str) -> int:
    """Host time [ns] of t_s = 0.  Raises DatasetError where a recording without stamps does not know the base."""
    if time_base == "first":
        return scanned.first_ns
    if time_base == "monotonic":
        return 0
    header = scanned.recording.header
    if header is None:
        raise DatasetError(f"{scanned.recording.path}: has no stamps and so no wall time; give --start, the time of its first packet")
    return header.started_host_ns - round(header.started_unix_s * NS_PER_S)


def write_table(
    scanned: ScannedRecording, out: Path | BinaryIO | None, *, zero_a: Array, rails: Sequence[int], time_base: str, start_s: float = 0.0
) -> PowerSummary:
    """Write all samples, their power summed over `rails`; a path gets its file whole or not at all, None gets nothing.

    `t_s` counts from the zero of the time base, plus `start_s`.
    Raises UnwrittenError.
    """
    names = MODEL_RAILS[scanned.recording.model]
    origin = origin_ns(scanned, time_base) - round(start_s * NS_PER_S)
    totals = _Totals(len(names))
    with _sink(out, _schema(names)) as write:
        for samples in sample_blocks(scanned, zero_a):
            power_w = samples.rail_power_w()[:, list(rails)].sum(axis=1)
            totals.add(samples, power_w)
            write(_batch(samples, power_w, origin, names))
    return totals.summary()


class _Totals:
    """Sums over all samples: energy by the trapezoid rule, holes bridged by a straight line."""

    def __init__(self, rails: int) -> None:
        self._count = 0
        self._energy_j = 0.0
        self._first: tuple[int, float] | None = None
        self._last = 0, 0.0
        self._volts, self._amperes = np.zeros(rails), np.zeros(rails)
        self._power = 0.0

    def add(self, samples: MeterSamples, power_w: Array) -> None:
        """Take the next samples."""
        if not len(samples):
            return
        if self._first is None:
            self._first = self._last = int(samples.host_ns[0]), float(power_w[0])
        steps_s = np.diff(samples.host_ns, prepend=self._last[0]) / NS_PER_S
        before_w = np.concatenate([[self._last[1]], power_w[:-1]])
        self._energy_j += float(np.sum(0.5 * steps_s * (power_w + before_w)))
        self._last = int(samples.host_ns[-1]), float(power_w[-1])
        self._count += len(samples)
        self._power += float(power_w.sum())
        self._volts += samples.volts.sum(axis=0)
        self._amperes += samples.amperes.sum(axis=0)

    def summary(self) -> PowerSummary:
        """The sums as they stand."""
        count = max(self._count, 1)
        first = self._first or self._last
        return PowerSummary(
            samples=self._count,
            duration_s=(self._last[0] - first[0]) / NS_PER_S,
            mean_power_w=self._power / count,
            energy_j=self._energy_j,
            mean_volts=self._volts / count,
            mean_amperes=self._amperes / count,
        )


def _schema(names: Sequence[str]) -> Any:
    """Columns of the table."""
    columns = ["t_s", "power_w", *(f"{name}_{unit}" for name in names for unit in ("v", "a"))]
    return pa.schema([pa.field(name, pa.float64(), nullable=False) for name in columns])


def _batch(samples: MeterSamples, power_w: Array, origin: int, names: Sequence[str]) -> Any:
    """Samples as rows."""
    time_s = np.round((samples.host_ns - origin) / NS_PER_S, TIME_DIGITS)
    columns = [time_s, np.round(power_w, DIGITS)]
    for rail in range(len(names)):
        columns += [np.round(samples.volts[:, rail], DIGITS), np.round(samples.amperes[:, rail], DIGITS)]
    return pa.record_batch([pa.array(column) for column in columns], schema=_schema(names))


@contextmanager
def _sink(out: Path | BinaryIO | None, schema: Any) -> Iterator[Any]:
    """A function that takes batches."""
    if out is None:
        yield lambda _batch: None
    elif not isinstance(out, Path):
        with _csv(out, schema) as write:
            yield write
    elif out.suffix == PARQUET:
        with open_whole(out) as stream, pq.ParquetWriter(stream, schema, compression="zstd", write_page_checksum=True) as parquet:
            yield parquet.write_batch
    else:
        with open_whole(out) as stream, _csv(stream, schema) as write:
            yield write


@contextmanager
def _csv(stream: BinaryIO, schema: Any) -> Iterator[Any]:
    """A function that writes batches as CSV below a line of names, which carry no quotes."""
    stream.write((",".join(schema.names) + "\n").encode())
    with pcsv.CSVWriter(stream, schema, write_options=pcsv.WriteOptions(include_header=False)) as csv:
        yield csv.write_batch

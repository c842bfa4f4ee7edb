"""An external meter's power from a recording: `t_s,power_w`, or the bytes of a PMD."""

from pathlib import Path
from typing import Final

import numpy as np

from collector.errors import SensorError
from collector.pmd.recording import sample_blocks, scan_recording, zero_currents
from collector.pmd.recording_files import read_recording, stamps_path
from collector.recordings.columns import numbers, open_log, read_columns
from collector.recordings.readings import POWER, TIME
from collector.recordings.rows import Rows, longest_stretch, ordered
from estimator.vocabulary.regular_files import read_regular

PMD_SUFFIXES: Final = (".pmd", ".bin")
START_STAMP: Final = "PMD_start_ts.txt"
US_PER_S, NS_PER_S = 1e6, 1e9


def read_reference(path: Path) -> Rows:
    """A meter's power from a CSV or Parquet file `t_s,power_w`, or from a PMD's raw bytes (`.pmd`, `.bin`).

    Uses the longest stretch without gaps.

    Raises SensorError or DatasetError for a file that cannot be used.
    """
    if path.suffix.lower() in PMD_SUFFIXES:
        return _pmd(path)
    log = open_log(path)
    bare = [name.lower() for name in log.names]
    time, power = (numbers(column) for column in read_columns(log, [log.place(name, bare) for name in (TIME, POWER)]).arrays)
    return longest_stretch(ordered(time, power, str(path), meter=True))


def _pmd(path: Path) -> Rows:
    """Sum of a PMD's rails over host time."""
    recording = read_recording(path)
    header = recording.header
    # GPU_Power_Benchmark writes the host's time in microseconds 50 ms after the first packet.
    start_s = _start_s(path) - 0.05 if header is None else header.started_unix_s
    scanned = scan_recording(recording)
    rails = recording.model.chosen_rails(())
    zero = zero_currents(recording.model, None)
    blocks = [(block.host_ns, block.rail_power_w()[:, rails].sum(axis=1)) for block in sample_blocks(scanned, zero)]
    host_ns = np.concatenate([stamps for stamps, _ in blocks])
    time = start_s + (host_ns - (host_ns[0] if header is None else header.started_host_ns)) / NS_PER_S
    return longest_stretch(ordered(time, np.concatenate([power for _, power in blocks]), str(path), meter=True))


def _start_s(path: Path) -> float:
    """The host's time in a file beside a recording without stamps [s since 1970].  Raises SensorError."""
    beside = path.with_name(START_STAMP)
    try:
        start = float(read_regular(beside, 64).decode("ascii")) / US_PER_S
    except FileNotFoundError:
        raise SensorError(f"{path}: when it began is not known; {stamps_path(path).name} or {START_STAMP} beside it says so") from None
    except (OSError, ValueError) as error:
        raise SensorError(f"{beside}: holds no time in microseconds ({' '.join(str(error).split())[:80]})") from error
    if not 0.0 < start < 1e11:
        raise SensorError(f"{beside}: {start * US_PER_S:g} is no time in microseconds since 1970")
    return start

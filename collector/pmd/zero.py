"""The zeros of a meter's channels, from a recording with nothing plugged in.

A current channel of a PMD-USB reads some 1.5 steps (0.07 A, nearly 1 W) where no current flows, each channel another
value.  The mean over a second is known to a few thousandths of a step.
"""

from pathlib import Path
from typing import Final

import numpy as np

from collector.devices.errors import DatasetError
from collector.pmd.recording import sample_blocks, scan_recording
from collector.pmd.recording_files import read_recording
from collector.pmd.samples import MODEL_RAILS
from estimator.vocabulary.quantities import Array

SHORTEST_S: Final = 1.0
LARGEST_ZERO_A: Final = 0.6
"""The maker states ±0.5 A; more than this is a load."""
NS_PER_S: Final = 1e9


def zero_currents(model: str, unloaded: Path | None) -> Array:
    """Mean current of each channel without load [A], shape (rails,); zeros where no recording is given.

    Raises DatasetError for a recording of another model, one that is too short, or one in which current flows.
    """
    rails = MODEL_RAILS[model]
    if unloaded is None:
        return np.zeros(len(rails))
    recording = read_recording(unloaded)
    if recording.model != model:
        raise DatasetError(f"{unloaded}: a recording of a {recording.model} gives no zero for a {model}")
    scanned = scan_recording(recording)
    length_s = (scanned.last_ns - scanned.first_ns) / NS_PER_S
    if length_s < SHORTEST_S:
        raise DatasetError(
            f"{unloaded}: {length_s:.3f} s are too short for a zero; record at least {SHORTEST_S:g} s with nothing plugged in"
        )
    total, count = np.zeros(len(rails)), 0
    for samples in sample_blocks(scanned, np.zeros(len(rails))):
        total += samples.amperes.sum(axis=0)
        count += len(samples)
    mean_a: Array = total / count
    loaded = int(np.argmax(np.abs(mean_a)))
    if abs(mean_a[loaded]) > LARGEST_ZERO_A:
        flows = f"{rails[loaded]} carries {mean_a[loaded]:.2f} A, above {LARGEST_ZERO_A:g} A"
        raise DatasetError(f"{unloaded}: {flows}; a zero needs a recording with nothing plugged in")
    return mean_a

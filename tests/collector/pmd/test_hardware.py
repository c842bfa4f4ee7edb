"""A real meter at WATTPRINT_PMD_PORT."""

import os
from threading import Event

import numpy as np
import pytest

from collector.pmd.meter import open_meter
from collector.pmd.recording import log_meter, read_recording, scan_recording
from collector.pmd.sensor import open_pmd

pytestmark = pytest.mark.pmd


@pytest.fixture
def pmd_port():
    return os.environ["WATTPRINT_PMD_PORT"]


def test_a_meter_says_what_it_is_and_hands_over_samples(pmd_port):
    with open_pmd(pmd_port) as sensor:
        assert sensor.fields()
        sensor.read()
        readings = sensor.read()
    assert all(np.all(np.diff(part.host_ns) >= 0) for part in readings)


def test_two_seconds_are_recorded_without_a_hole(pmd_port, tmp_path):
    path = tmp_path / "r.pmd"
    with open_meter(pmd_port) as meter:
        assert log_meter(meter, path, Event(), duration_s=2.0) is None
    scanned = scan_recording(read_recording(path))
    assert (scanned.last_ns - scanned.first_ns) * 1e-9 > 1.5

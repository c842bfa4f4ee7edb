"""The sensor of the simulated board as it is found live, which load is run next, and the sensor file: foreign ones are refused."""

import json

import numpy as np
import pytest

from collector.errors import SensorError
from collector.sensing.calibration import calibration_from_document, read_calibration
from collector.sensing.decision import informative_ratio
from collector.sensing.regression import Fit


def test_a_calibration_survives_json(calibration, tmp_path):
    document = json.loads(json.dumps(calibration.document(), allow_nan=False))
    assert calibration_from_document(document).document() == calibration.document()
    path = tmp_path / "sensor.json"
    path.write_text(json.dumps(document))
    assert read_calibration(path, calibration.gpu_uuid, calibration.driver).document() == calibration.document()
    for uuid, driver, reason in (("GPU-other", calibration.driver, "gpu_uuid"), (calibration.gpu_uuid, "1.0", "driver")):
        with pytest.raises(SensorError, match=reason):
            read_calibration(path, uuid, driver)


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"averaging": "magic"}, "averaging"),
        ({"colour": 1}, "colour"),
        ({"notes": "none"}, "notes"),
        ({"transient": "slow"}, "transient"),
        ({"gain": 1e-6}, "gain"),
        ({"update_period_s": 1e-200}, "update_period_s"),
        ({"gain_offset_correlation": 2.0}, "gain_offset_correlation"),
    ],
)
def test_a_foreign_calibration_is_refused_by_key(calibration, change, reason):
    with pytest.raises(SensorError, match=reason):
        calibration_from_document({**calibration.document(), **change})


PERIOD_S = 0.1


def fit(kernel, width_s):
    step = np.array([60.0, 190.0])
    return Fit(
        kernel=kernel, width_s=width_s, delay_s=0.0, score=0.0, each=step, level=step, level_std=step, residual=step,
        predicted=step, noise_w=0.4, jitter_s=4e-4, explained=1.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    "kernel, width_s, good, blind",
    [
        ("boxcar", 0.010, (0.57, 2.3), 7.37),
        ("boxcar", 0.100, (1.2, 12.3), 0.91),
        ("low-pass", 0.025, (0.57, 4.7), 12.3),
        ("low-pass", 0.680, (4.7, 12.3), 0.91),
    ],
)
def test_the_next_load_is_one_that_tells_the_kernels_apart(kernel, width_s, good, blind):
    """The informative periods of sensor-method.md 3: short ones for short windows, long ones for long windows."""
    chosen = informative_ratio(fit(kernel, width_s), PERIOD_S)
    assert good[0] <= chosen <= good[1]
    assert chosen != blind

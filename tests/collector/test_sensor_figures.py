"""Figures with their errors: no digit that the error leaves is lost, none beyond it is shown; one number and one name wherever a
calibration is shown, and no key of a program's in it.
"""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.sensing.calibration import NO_METER
from collector.sensing.figures import figure, rounded_like, sensor_lines
from tests.collector.made_readings import sensor_of

KNOWN = sensor_of("""
"gpu_uuid": "GPU-7274782d-3330-3930-0000-000000000000", "driver": "535.54.03", "sensor": "nvml", "field": "instant",
"averaging": "low-pass", "n_updates": 124, "update_period_s": 0.101216, "update_period_std_s": 4.4e-06,
"update_jitter_s": 0.00064, "window_s": 0.024898, "window_std_s": 0.000153, "tau_s": 0.012449, "delay_s": -0.00593,
"delay_std_s": 0.00025, "rise_time_s": 0.027, "settle_s": 0.0656, "transient": "instant", "gain": 0.9595,
"gain_std": 0.00079, "offset_w": -2.29, "offset_std_w": 0.084, "sampled_fraction": 0.24599, "residual_w": 1.470065,
"reading_noise_w": 0.1626, "resolution_w": 0.01,
"notes": {"delay_s": "includes the host", "time_zone": "readings moved", "gain_levels": "7 levels"}
""")
READINGS_ALONE = sensor_of(f"""
"gpu_uuid": "GPU-7274782d-3330-3930-0000-000000000000", "driver": "535.54.03", "sensor": "nvml", "field": "instant",
"averaging": "undetermined", "n_updates": 124, "update_period_s": 0.101216, "update_period_std_s": 4.4e-06,
"notes": {{
"averaging": "give --load", "window_s": "give --load", "delay_s": "give --load", "sampled_fraction": "give --load",
"rise_time_s": "give the load's stamps", "transient": "give the load's stamps", "gain": "{NO_METER}", "offset_w": "{NO_METER}"
}}""")


@given(st.floats(-1e6, 1e6), st.floats(1e-7, 1e5))
def test_a_figure_is_as_exact_as_its_error(value, std):
    text = figure(value, std, "")
    shown, error = (float(part) for part in text.split(" ± "))
    assert abs(shown - value) <= 0.051 * std + 1e-9 * abs(value)
    assert error == pytest.approx(std, rel=0.051)
    assert len(text.split(" ± ")[1].replace(".", "").strip("0")) <= 2, "more digits of an error than two"
    assert "e" not in text
    assert float(rounded_like(value, std)) == shown


@pytest.mark.parametrize(
    "value, std, text",
    [
        (27.14, float("nan"), "27.1 ms"),
        (5.04, 0.0996, "5.04 ± 0.10 ms"),
        (-0.04, 1.2, "0.0 ± 1.2 ms"),
        (123456.7, None, "123457 ms"),
    ],
)
def test_figures_read_like_a_lab_book(value, std, text):
    assert figure(value, std, "ms") == text


@pytest.mark.parametrize("calibration", [KNOWN, READINGS_ALONE])
def test_no_key_of_a_program_is_shown_to_people(calibration):
    assert not re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", "\n".join(sensor_lines(calibration)))


def test_a_reason_stands_once_with_all_figures_that_it_is_for():
    assert "  note: averaging, window, delay, sampled fraction: give --load" in sensor_lines(READINGS_ALONE)


def test_a_terminal_of_80_columns_holds_the_figures():
    for calibration in (KNOWN, READINGS_ALONE):
        table = [line for line in sensor_lines(calibration) if not re.match("  note:", line)]
        assert max(map(len, table)) <= 80

"""Figures with their errors: no digit that the error leaves is lost, none beyond it is shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.sensor.figures import figure


@given(st.floats(-1e6, 1e6), st.floats(1e-7, 1e5))
def test_a_figure_is_as_exact_as_its_error(value: float, std: float) -> None:
    shown, error = (float(part) for part in figure(value, std, "").split(" ± "))
    assert abs(shown - value) <= 0.06 * std + 1e-9 * abs(value)
    assert error == pytest.approx(std, rel=0.06)


@pytest.mark.parametrize(
    ("value", "std", "text"),
    [
        (101.21694, 0.0075, "101.2169 ± 0.0075 ms"),
        (1080.3, 25.1, "1080 ± 25 ms"),
        (27.04, None, "27.04 ms"),
        (27.04, float("nan"), "27.04 ms"),
        (12345.6, 130.2, "12346 ± 130 ms"),
    ],
)
def test_figures_read_like_a_lab_book(value: float, std: float | None, text: str) -> None:
    assert figure(value, std, "ms") == text

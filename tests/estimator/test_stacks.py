"""Axes of stacked bars: round numbers, few of them, within the bars."""

from hypothesis import given
from hypothesis import strategies as st

from estimator.display.stacks import Bar, Piece, round_ticks, stack_svg


@given(longest=st.floats(1e-12, 1e12))
def test_ticks_are_round_few_and_reach_as_far_as_the_longest_bar(longest: float) -> None:
    ticks = round_ticks(longest)
    step = ticks[1]
    assert 3 <= len(ticks) <= 7
    assert ticks[0] == 0.0
    assert ticks[-1] <= longest * (1.0 + 1e-6)
    assert longest - ticks[-1] < step * (1.0 + 1e-6)
    assert float(f"{step:.0e}") == step
    assert f"{step:e}"[0] in "125"


def test_bars_without_length_are_drawn_all_the_same() -> None:
    svg = stack_svg("t", "d", [Bar(label="none", pieces=[Piece(length=0.0, part=0, tip="")])], ["part"], "s")
    assert svg.startswith("<svg")
    assert "nan" not in svg

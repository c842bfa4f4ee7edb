"""Stacked bars."""

from estimator.display.stacks import Bar, Piece, stack_svg


def test_bars_without_length_are_drawn_all_the_same() -> None:
    svg = stack_svg("t", "d", [Bar(label="none", pieces=[Piece(length=0.0, part=0, tip="")])], ["part"], "s")
    assert svg.startswith("<svg")
    assert "nan" not in svg

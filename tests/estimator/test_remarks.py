"""Warnings and notes are said once each, with whom they concern."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.display.remarks import MORE, MOST_LINES, MOST_NAMED, remark_lines

Labels = tuple[Any, ...]


def labels(batch: int, precision: str = "bf16", gpu: str = "a100") -> Labels:
    return (f"w@b{batch}", "bundle 1", gpu, batch, 512, precision, "")


BATCHES = [labels(2**i) for i in range(7)]


def test_what_holds_for_all_is_said_once() -> None:
    assert remark_lines([(one, "x") for one in BATCHES], BATCHES) == ["all 7: x"]
    assert remark_lines([(one, "x") for one in BATCHES[:2]], BATCHES[:2]) == ["both: x"]
    assert remark_lines([(BATCHES[0], "x"), (BATCHES[0], "x")], BATCHES[:1]) == ["w@b1: x"]


def test_what_holds_for_some_names_them() -> None:
    assert remark_lines([(one, "x") for one in BATCHES[:2]], BATCHES) == ["batch 1, 2: x"]
    every = [labels(b, p, g) for b, p, g in product((1, 2, 4), ("bf16", "fp8"), ("a100", "h100"))]
    own = [one for one in every if one[3] < 4 and one[5] == "fp8"]
    assert remark_lines([(one, "x") for one in own], every) == ["batch 1, 2 and precision fp8: x"]
    assert remark_lines([(one, "x") for one in every if one[2] == "h100"], every) == ["gpu h100: x"]
    odd = [every[0], every[-1]]
    assert remark_lines([(one, "x") for one in odd], every) == ["w@b1 a100 1 bf16, w@b4 h100 4 fp8: x"]


def test_many_names_are_cut_with_their_number() -> None:
    many = [labels(i) for i in range(1, 101)]
    (line,) = remark_lines([(one, "x") for one in many[:50]], many)
    assert line == f"batch 1, 2, 3, 4, 5, 6 and {50 - MOST_NAMED} more: x"


def test_lines_beyond_the_most_are_counted() -> None:
    words = ["".join(letters) for letters in product("abcdefgh", repeat=2)]
    lines = remark_lines([(BATCHES[0], word) for word in words], BATCHES)
    assert (len(lines), lines[-1]) == (MOST_LINES, MORE.format(len(words) - MOST_LINES + 1))
    assert len(remark_lines([(BATCHES[0], word) for word in words[:MOST_LINES]], BATCHES)) == MOST_LINES


def test_sizes_that_are_unknown_name_nobody() -> None:
    every: list[Labels] = [("a", "b", "g", 0, 0, "", ""), ("c", "b", "g", 4, 0, "", "")]
    assert remark_lines([(every[0], "x")], every) == ["a: x"]


@pytest.mark.parametrize(
    ("texts", "merged"),
    [
        (
            ("m = 1 is outside 16 to 2048 (3% of it)", "m = 4 is outside 16 to 2048 (12% of it)"),
            "m = 1–4 is outside 16 to 2048 (3–12% of it)",
        ),
        (("at 1.5e+03 W", "at 900 W"), "at 900–1.5e+03 W"),
        (("softmax 8192x512 needs 16 GiB", "softmax 4096x512 needs 8 GiB"), "softmax 4096–8192x512 needs 8–16 GiB"),
    ],
)
def test_texts_that_differ_in_numbers_alone_are_one_with_their_ranges(texts: tuple[str, ...], merged: str) -> None:
    assert remark_lines(list(zip(BATCHES, texts, strict=False)), BATCHES[:2]) == [f"both: {merged}"]


@pytest.mark.parametrize("pair", [("no fp64 here", "no fp32 here"), ("on h100-sxm", "on h200-sxm"), ("of 1x64", "of 1x64x128")])
def test_numbers_in_names_are_no_numbers(pair: tuple[str, str]) -> None:
    assert len(remark_lines(list(zip(BATCHES, pair, strict=False)), BATCHES[:2])) == 2


def test_boards_are_not_mixed_into_one_range() -> None:
    every = [labels(1, gpu="a100"), labels(1, gpu="h100")]
    assert remark_lines([(every[0], "40 GiB"), (every[1], "80 GiB")], every) == ["gpu a100: 40 GiB", "gpu h100: 80 GiB"]


@given(st.lists(st.tuples(st.integers(0, 6), st.sampled_from(["x", "y", "n = 3", "n = 5", "n of 4 in fp8"])), max_size=30))
def test_every_remark_is_said_and_none_twice(told: list[tuple[int, str]]) -> None:
    lines = remark_lines([(BATCHES[i], text) for i, text in told], BATCHES)
    texts = [line.partition(": ")[2] for line in lines]
    assert len(texts) == len(set(texts))
    assert {text[0] for _, text in told} == {text[0] for text in texts}

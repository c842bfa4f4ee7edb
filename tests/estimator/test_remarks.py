"""Warnings and notes are said once each, with whom they concern."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.commands.reporting import MOST_LINES, MOST_NAMED, Labels, remark_lines


def labels(batch: int, precision: str = "bf16", gpu: str = "a100") -> Labels:
    return (f"w@b{batch}", "bundle 1", gpu, precision, "")


BATCHES = [labels(2**i) for i in range(7)]
SEVERAL = [labels(b, p, g) for b, p, g in product((1, 2, 4), ("bf16", "fp8"), ("a100", "h100"))]


@pytest.mark.parametrize(
    ("concerned", "everyone", "line"),
    [
        (BATCHES, BATCHES, "all 7: x"),
        (BATCHES[:2], BATCHES[:2], "both: x"),
        (BATCHES[:1] * 2, BATCHES[:1], "w@b1: x"),
        (BATCHES[:2], BATCHES, "w@b1, w@b2: x"),
        ([SEVERAL[0], SEVERAL[2]], SEVERAL, "w@b1 a100 bf16, w@b1 a100 fp8: x"),
        (
            [labels(i) for i in range(50)],
            [labels(i) for i in range(100)],
            f"w@b0, w@b1, w@b2, w@b3, w@b4, w@b5 and {50 - MOST_NAMED} more: x",
        ),
    ],
)
def test_a_remark_is_said_once_with_whom_it_concerns(concerned: list[Labels], everyone: list[Labels], line: str) -> None:
    assert remark_lines([(one, "x") for one in concerned], everyone) == [line]


def test_lines_beyond_the_most_are_counted() -> None:
    words = ["".join(letters) for letters in product("abcdefgh", repeat=2)]
    lines = remark_lines([(BATCHES[0], word) for word in words], BATCHES)
    assert len(lines) == MOST_LINES
    assert lines[-1].startswith(f"and {len(words) - MOST_LINES + 1} more like these")
    assert len(remark_lines([(BATCHES[0], word) for word in words[:MOST_LINES]], BATCHES)) == MOST_LINES


@pytest.mark.parametrize(
    ("texts", "alike"),
    [
        (("m = 1 is outside 16 to 2048 (3% of it)", "m = 4 is outside 16 to 2048 (12% of it)"), True),
        (("softmax 8192x512 needs 16 GiB", "softmax 4096x512 needs 8 GiB"), True),
        (("no fp64 here", "no fp32 here"), False),
        (("on h100-sxm", "on h200-sxm"), False),
        (("of 1x64", "of 1x64x128"), False),
    ],
)
def test_texts_that_differ_in_numbers_alone_are_one_and_numbers_in_names_are_none(texts: tuple[str, str], alike: bool) -> None:
    lines = remark_lines(list(zip(BATCHES, texts, strict=False)), BATCHES[:2])
    assert lines == ([f"both: {texts[0]} (and 1 more with other numbers)"] if alike else [f"w@b1: {texts[0]}", f"w@b2: {texts[1]}"])


def test_remarks_on_two_boards_stay_apart() -> None:
    every = [labels(1, gpu="a100"), labels(1, gpu="h100")]
    assert remark_lines([(every[0], "40 GiB"), (every[1], "80 GiB")], every) == ["a100: 40 GiB", "h100: 80 GiB"]


@given(st.lists(st.tuples(st.integers(0, 6), st.sampled_from(["x", "y", "n = 3", "n = 5", "n of 4 in fp8"])), max_size=30))
def test_every_remark_is_said_and_none_twice(told: list[tuple[int, str]]) -> None:
    lines = remark_lines([(BATCHES[i], text) for i, text in told], BATCHES)
    texts = [line.partition(": ")[2] for line in lines]
    assert len(texts) == len(set(texts))
    assert {text[0] for _, text in told} == {text[0] for text in texts}

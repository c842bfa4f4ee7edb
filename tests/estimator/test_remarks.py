"""Warnings and notes are said once each, with the workloads that they concern."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.commands.reporting import remark_lines


@pytest.mark.parametrize(
    "concerned, names",
    [(["w"], "w"), (["w", "w", "v"], "w, v"), ([f"w{i}" for i in range(50)], "w0, w1, w2, w3, w4, w5 and 44 more")],
)
def test_a_remark_is_said_once_with_whom_it_concerns(concerned, names):
    assert remark_lines([(one, "x") for one in concerned]) == [f"{names}: x"]


@pytest.mark.parametrize(
    "texts, alike",
    [
        (("m = 1 is outside 16 to 2048 (3% of it)", "m = 4 is outside 16 to 2048 (12% of it)"), True),
        (("softmax 8192x512 needs 16 GiB", "softmax 4096x512 needs 8 GiB"), True),
        (("no fp64 here", "no fp32 here"), False),
        (("on h100-sxm", "on h200-sxm"), False),
    ],
)
def test_texts_that_differ_in_numbers_alone_are_one_and_numbers_in_names_are_none(texts, alike):
    lines = remark_lines(zip("vw", texts, strict=True))
    assert lines == ([f"v, w: {texts[0]} (and 1 more with other numbers)"] if alike else [f"v: {texts[0]}", f"w: {texts[1]}"])


@given(st.lists(st.tuples(st.sampled_from("uvw"), st.sampled_from(["x", "y", "n = 3", "n = 5", "n of 4 in fp8"])), max_size=30))
def test_every_remark_is_said_and_none_twice(told):
    texts = [line.partition(": ")[2] for line in remark_lines(told)]
    assert len(texts) == len(set(texts))
    assert {text[0] for _, text in told} == {text[0] for text in texts}

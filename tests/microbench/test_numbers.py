"""Storage of small numbers: every code round trips, every number goes to its nearest code."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from microbench.numbers import CODED, decode, encode, nearest_codes

WIDTHS = {"bf16x2": 1 << 16, "e4m3x4": 256, "e5m2x4": 256}


@pytest.mark.parametrize("kind", CODED)
def test_every_code_of_a_number_comes_back(kind):
    every = np.arange(WIDTHS[kind], dtype=CODED[kind][0])
    values = decode(every, kind)
    kept = np.isfinite(values)
    assert np.array_equal(nearest_codes(values[kept], kind), every[kept])


@pytest.mark.parametrize("kind", CODED)
@given(number=st.floats(-400.0, 400.0) | st.floats(allow_nan=False))
def test_a_number_goes_to_the_nearest(kind, number):
    table = decode(np.arange(WIDTHS[kind], dtype=CODED[kind][0]), kind)
    finite = table[np.isfinite(table)]
    found = decode(nearest_codes(np.array([number]), kind), kind)[0]
    wanted = np.clip(number, finite.min(), finite.max())
    assert abs(found - wanted) == np.abs(finite - wanted).min()
    assert found == 0.0 or (found > 0.0) == (number > 0.0)


@given(st.lists(st.integers(-8, 7), min_size=8, max_size=8), st.integers(0, 2**32 - 1))
def test_packed_numbers_come_back_lowest_first(numbers, word):
    words = encode(np.array(numbers, dtype=float), "s4x8")
    assert int(words[0]) == sum((number & 15) << 4 * place for place, number in enumerate(numbers))
    assert decode(words, "s4x8").tolist() == numbers
    bits = decode(np.array([word], dtype=np.uint32), "b1x32")
    assert [int(bit) for bit in bits] == [word >> place & 1 for place in range(32)]
    assert int(encode(bits, "b1x32")[0]) == word

"""Storage of small floating-point numbers: every code round trips, every number goes to its nearest code."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from microbench.numbers import E4M3, bf16_codes, bf16_values, decode, e4m3_codes, e5m2_codes, encode


def test_every_e4m3_code_comes_back() -> None:
    codes = np.array([code for code in range(256) if not np.isnan(E4M3[code])], dtype=np.uint8)
    assert np.array_equal(e4m3_codes(E4M3[codes]), codes)


def test_known_e4m3_values() -> None:
    # OCP 8-bit floating point specification, table 1.
    assert (E4M3[0x7E], E4M3[0x08], E4M3[0x01], E4M3[0xFE]) == (448.0, 2.0**-6, 2.0**-9, -448.0)


def test_every_e5m2_code_comes_back_and_too_large_numbers_become_the_largest() -> None:
    codes = np.array([code for code in range(256) if code & 0x7F < 0x7C], dtype=np.uint8)
    values = decode(codes.view(np.uint32), "e5m2x4")
    assert np.array_equal(e5m2_codes(values), codes)
    # OCP 8-bit floating point specification, table 1.
    assert (values.max(), values[1], values[4]) == (57344.0, 2.0**-16, 2.0**-14)
    assert np.array_equal(decode(encode(np.array([1e9, -1e9, np.inf, np.nan]), "e5m2x4"), "e5m2x4")[:3], [57344.0, -57344.0, 57344.0])


@given(st.lists(st.integers(-8, 7), min_size=8, max_size=8))
def test_numbers_of_four_bits_come_back_lowest_first(numbers: list[int]) -> None:
    words = encode(np.array(numbers, dtype=float), "s4x8")
    assert int(words[0]) == sum((number & 15) << 4 * place for place, number in enumerate(numbers))
    assert decode(words, "s4x8").tolist() == numbers


@given(st.integers(0, 2**32 - 1))
def test_single_bits_come_back_lowest_first(word: int) -> None:
    bits = decode(np.array([word], dtype=np.uint32), "b1x32")
    assert [int(bit) for bit in bits] == [word >> place & 1 for place in range(32)]
    assert int(encode(bits, "b1x32")[0]) == word


def test_every_bf16_code_comes_back() -> None:
    codes = np.arange(1 << 16, dtype=np.uint16)
    values = bf16_values(codes)
    kept = np.isfinite(values)
    assert np.array_equal(bf16_codes(values[kept]), codes[kept])


@given(st.floats(-400.0, 400.0))
def test_e4m3_rounds_to_the_nearest(number: float) -> None:
    nearest = E4M3[np.nanargmin(np.abs(E4M3 - number))]
    assert abs(E4M3[e4m3_codes(np.array([number]))[0]] - number) == abs(nearest - number)


@given(st.floats(-(2.0**100), 2.0**100))
def test_bf16_rounds_to_the_nearest(number: float) -> None:
    code = int(bf16_codes(np.array([number]))[0])
    error = abs(bf16_values(np.array([code], dtype=np.uint16))[0] - number)
    for neighbour in (code - 1, code + 1):
        assert not error > abs(bf16_values(np.array([neighbour & 0xFFFF], dtype=np.uint16))[0] - number)


@pytest.mark.parametrize("kind", ["f16x2", "bf16x2", "e4m3x4", "e5m2x4", "s8x4", "u8x4", "f32", "f64", "u32", "s32"])
def test_decoded_numbers_encode_to_the_same_words(kind: str) -> None:
    numbers = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    assert np.array_equal(decode(encode(numbers, kind), kind), numbers)

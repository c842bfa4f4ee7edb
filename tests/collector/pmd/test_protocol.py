"""Commands, answers and identities, byte for byte."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.pmd.protocol import (
    BLOCK,
    PMD2,
    PMD_USB,
    START_STREAM,
    STOP_STREAM,
    baud_of_uart_command,
    block_values,
    encode_block,
    encode_packets,
    uart_command,
)

NO_HOST_NS = np.zeros(1, dtype=np.int64)


def test_commands_are_those_of_the_published_logger():
    assert bytes.fromhex("07 01 02 ff") == START_STREAM
    assert bytes.fromhex("07 00 00 00") == STOP_STREAM
    assert uart_command(921600) == bytes.fromhex("08 00100e00 02000000 00000000 00000000")
    assert baud_of_uart_command(uart_command(460800)) == 460800


def test_a_word_is_a_signed_twelve_bit_value_in_the_upper_bits():
    raw = np.array([[1599, -7, 1599, 2047, -2048, 0, 0, -1]], dtype=np.int16)
    content = encode_packets(np.array([65536 + 258]), raw)
    assert content[:6] == bytes.fromhex("0201 f063 90ff")
    samples = PMD_USB.samples(NO_HOST_NS, raw, np.array([0.1, 0.0, 0.0, 0.0]))
    assert samples.volts[0, 0] == pytest.approx(1599 * 0.007568)
    assert samples.amperes[0, 0] == pytest.approx(-7 * 0.0488 - 0.1)


@given(st.lists(st.tuples(st.floats(0.0, 60.0), st.floats(0.0, 600.0)), min_size=10, max_size=10))
def test_a_pmd2_block_comes_back_to_the_milliampere(values):
    volts, amperes = np.array(values).T
    block = encode_block(volts, amperes)
    assert len(block) == BLOCK.itemsize == 122
    samples = PMD2.samples(NO_HOST_NS, block_values(block), np.zeros(10))
    assert np.abs(samples.volts[0] - volts).max() < 0.6e-3
    assert np.abs(samples.amperes[0] - amperes).max() < 0.6e-3

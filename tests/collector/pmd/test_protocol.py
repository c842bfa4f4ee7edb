"""Commands, answers and identities, byte for byte."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.errors import DeviceError
from collector.pmd.packets import AMPERE_PER_LSB, VOLT_PER_LSB, encode_packets, rail_amperes, rail_volts
from collector.pmd.pmd2_block import BLOCK_BYTES, PMD2_RAILS, block_amperes, block_volts, encode_block
from collector.pmd.protocol import (
    PMD2,
    PMD2_READ_SENSORS,
    START_STREAM,
    STOP_STREAM,
    baud_of_uart_command,
    identity_from_bytes,
    uart_command,
)
from tests.collector.pmd.conftest import emulated


def test_commands_are_those_of_the_published_logger() -> None:
    assert bytes.fromhex("07 01 02 ff") == START_STREAM
    assert bytes.fromhex("07 00 00 00") == STOP_STREAM
    assert uart_command(921600) == bytes.fromhex("08 00100e00 02000000 00000000 00000000")
    assert baud_of_uart_command(uart_command(460800)) == 460800


@pytest.mark.parametrize(
    ("answer", "words"), [(b"", "0 bytes"), (b"\xee\x17\x01", "PMD2X"), (b"\xef\x05\x01", "WireView"), (b"abc", "unknown")]
)
def test_strangers_are_refused_by_name(answer: bytes, words: str) -> None:
    with pytest.raises(DeviceError, match=words):
        identity_from_bytes(answer, "port")


def test_a_word_is_a_signed_twelve_bit_value_in_the_upper_bits() -> None:
    raw = np.array([[1599, -7, 1599, 2047, -2048, 0, 0, -1]], dtype=np.int16)
    content = encode_packets(np.array([65536 + 258]), raw)
    assert content[:4] == bytes.fromhex("0201 f063")
    assert content[4:6] == bytes.fromhex("90ff")
    assert rail_volts(raw)[0, 0] == pytest.approx(1599 * VOLT_PER_LSB)
    assert rail_amperes(raw, np.array([0.1, 0.0, 0.0, 0.0]))[0, 0] == pytest.approx(-7 * AMPERE_PER_LSB - 0.1)


def test_an_emulated_pmd2_holds_each_rail_near_its_nominal_voltage() -> None:
    meter = emulated(PMD2, 0)
    meter.opened(0)
    meter.send(0, 0)
    meter.receive(bytes([PMD2_READ_SENSORS]), 0, 10**7)
    volts = dict(zip(PMD2_RAILS, block_volts(meter.send(0, 10**7))[0].tolist(), strict=True))
    nominal = {"atx_5v": 5.0, "atx_5vsb": 5.0, "atx_3v3": 3.3}
    for rail, value in volts.items():
        assert value == pytest.approx(nominal.get(rail, 12.0), rel=0.05), rail


@given(st.lists(st.tuples(st.floats(0.0, 60.0), st.floats(0.0, 600.0)), min_size=10, max_size=10))
def test_a_pmd2_block_comes_back_to_the_milliampere(values: list[tuple[float, float]]) -> None:
    volts, amperes = np.array(values).T
    block = encode_block(volts, amperes)
    assert len(block) == BLOCK_BYTES == 122
    assert np.abs(block_volts(block)[0] - volts).max() < 0.6e-3
    assert np.abs(block_amperes(block, np.zeros(len(PMD2_RAILS)))[0] - amperes).max() < 0.6e-3

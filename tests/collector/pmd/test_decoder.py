"""Bytes of a meter: commands and answers as published; decoding keeps every byte in account, and finds its way back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.pmd.decoder import PacketDecoder
from collector.pmd.protocol import (
    BLOCK,
    PACKET_BYTES,
    PMD2,
    PMD_USB,
    STAMP_TURN,
    START_STREAM,
    STOP_STREAM,
    baud_of_uart_command,
    block_values,
    encode_block,
    encode_packets,
    uart_command,
)
from tests.collector.pmd.streams import accounted, decoded, stream


def test_a_sound_stream_comes_back_as_it_was_sent():
    content, ticks, raw = stream(5_000)
    raw[:, 4] = np.random.default_rng(1).integers(-3, 4, 5_000)  # a channel without a plug
    packets, tally = decoded([encode_packets(ticks, raw)])
    assert np.array_equal(packets.ticks, ticks)
    assert np.array_equal(packets.raw, raw)
    assert packets.raw.min() < 0
    assert (tally.packets, tally.discarded_bytes, len(packets.breaks)) == (5_000, 0, 0)
    cut, tally = decoded([content[:-5]])
    assert (len(cut), tally.trailing_bytes, tally.discarded_bytes) == (4_999, PACKET_BYTES - 5, 0)


@pytest.mark.parametrize("name, count", [("a100_square_wave", 47_735), ("rtx3090_step", 66_852)])
def test_every_packet_of_a_published_recording_is_found_from_any_byte_on(name, count, shared_data):
    content = (shared_data / "sensors" / name / "PMD_data.bin").read_bytes()
    whole, tally = decoded([content])
    assert (tally.packets, tally.discarded_bytes, tally.trailing_bytes) == (count, 0, 0)  # size of the file / 18
    for offset in range(1, PACKET_BYTES):
        packets, tally = decoded([content[offset : 2_000 * PACKET_BYTES]])
        assert np.array_equal(packets.raw, whole.raw[1:2_000])
        assert tally.discarded_bytes == PACKET_BYTES - offset


def missing(packets, ticks, raw):
    """Numbers of the lost packets.  Checks that each received packet was sent, at its time."""
    sent = np.searchsorted(ticks, packets.ticks)
    assert np.array_equal(ticks[sent], packets.ticks)
    assert np.array_equal(raw[sent], packets.raw)
    return sorted(set(range(len(ticks))) - set(sent.tolist()))


@given(
    at=st.integers(0, 100 * PACKET_BYTES),
    count=st.integers(-PACKET_BYTES + 1, 300).filter(bool),
    seed=st.integers(0, 20),
)
@settings(max_examples=300)
def test_bytes_that_went_missing_or_came_twice_let_no_false_packet_through(at, count, seed):
    content, ticks, raw = stream(130, seed)
    at += 10 * PACKET_BYTES
    packets, _ = decoded([content[:at] + content[at + count :]])
    assert len(missing(packets, ticks, raw)) <= max(count, 0) // PACKET_BYTES + 5


@pytest.mark.parametrize("place", [1, 2, 4, 6, 8, 10, 12, 14, 16, 3, 7, 11, 15])
def test_a_garbled_stamp_nibble_or_voltage_costs_its_packet_and_both_neighbours(place):
    content, ticks, raw = stream(200)
    spoiled = bytearray(content)
    spoiled[100 * PACKET_BYTES + place] ^= 0xFF
    assert missing(decoded([bytes(spoiled)])[0], ticks, raw) == [99, 100, 101]


def test_a_break_is_as_long_as_what_is_missing_even_beyond_a_turn_of_the_stamp():
    content, ticks, raw = stream(1_000)
    packets, tally = decoded([content[: 100 * PACKET_BYTES] + content[130 * PACKET_BYTES :]])
    assert missing(packets, ticks, raw) == [*range(99, 131)]
    assert packets.breaks.tolist() == [99]
    assert tally.discarded_bytes == 2 * PACKET_BYTES
    noise = np.random.default_rng(3).bytes(300 * PACKET_BYTES)
    assert ticks[400] - ticks[99] > 2 * STAMP_TURN
    assert decoded([content[: 100 * PACKET_BYTES] + noise + content[400 * PACKET_BYTES :]])[0].ticks[-1] == ticks[-1]


def test_packets_at_half_the_line_rate_are_none_at_the_full_one():
    _, ticks, raw = stream(200)
    slow = encode_packets(2 * ticks, raw)
    for content in (slow, b"\x00" * 10_000, b"\xff" * 10_000, bytes(range(256)) * 40, b"\xf0\x64" * 5_000):
        assert decoded([content])[1].discarded_bytes == len(content)


@st.composite
def damaged_streams(draw):
    """Packets with bytes lost, doubled, put in or cut off."""
    content = bytearray(stream(draw(st.integers(1, 60)), draw(st.integers(0, 50)))[0])
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        end = at + draw(st.integers(0, 40))
        content[at:end] = draw(st.one_of(st.binary(max_size=60), st.just(2 * content[at:end])))
    return bytes(content)


@given(content=st.one_of(st.binary(max_size=3_000), damaged_streams()), data=st.data())
@settings(max_examples=200)
def test_every_byte_is_accounted_for_time_runs_forward_and_cuts_change_nothing(content, data):
    whole, tally = decoded([content])
    assert tally.bytes == len(content) == accounted(tally)
    assert np.all(np.diff(whole.ticks) > 0)
    assert np.all(np.diff(whole.end_byte) >= PACKET_BYTES)
    step = data.draw(st.integers(1, 50))
    pieces = [content[i : i + step] for i in range(0, len(content), step)]
    other, other_tally = decoded(pieces)
    assert other_tally == tally
    for name in ("ticks", "raw", "end_byte", "breaks"):
        assert np.array_equal(getattr(other, name), getattr(whole, name))
    decoder = PacketDecoder()
    for piece in pieces:
        decoder.feed(piece)
        assert decoder.tally.bytes - accounted(decoder.tally) <= 4 * PACKET_BYTES  # what waits for more bytes stays small


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

"""Decoding keeps every byte in account, does not depend on pieces, and finds its way back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.pmd.decoder import PacketDecoder
from collector.pmd.protocol import PACKET_BYTES, STAMP_TURN, encode_packets
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


@pytest.mark.parametrize(("name", "count"), [("a100_square_wave", 47_735), ("rtx3090_step", 66_852)])
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

"""Decoding keeps every byte in account, does not depend on pieces, and finds its way back."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.pmd.decoder import PacketDecoder, Packets
from collector.pmd.protocol import PACKET_BYTES, STAMP_TURN, STREAM_BAUD, RawWords, encode_packets
from estimator.vocabulary.quantities import IntArray
from tests.collector.pmd.streams import accounted, decoded, stream

MOST_WAITING_BYTES = 4 * PACKET_BYTES
RECORDINGS = {"a100_square_wave": 47_735, "rtx3090_step": 66_852}


def test_a_sound_stream_comes_back_as_it_was_sent() -> None:
    content, ticks, raw = stream(5_000)
    packets, tally = decoded([content])
    assert np.array_equal(packets.ticks, ticks)
    assert np.array_equal(packets.raw, raw)
    assert packets.raw.min() < 0
    assert (tally.packets, tally.discarded_bytes, tally.resyncs, tally.breaks) == (5_000, 0, 0, 0)


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_packet_of_a_published_recording_is_found(name: str, shared_data: Path) -> None:
    packets, tally = decoded([(shared_data / "sensors" / name / "PMD_data.bin").read_bytes()])
    assert tally.packets == len(packets) == RECORDINGS[name]  # size of the file / 18
    assert (tally.discarded_bytes, tally.breaks, tally.trailing_bytes) == (0, 0, 0)


@pytest.mark.parametrize("offset", range(1, PACKET_BYTES))
def test_a_published_recording_is_aligned_from_any_byte_on(offset: int, shared_data: Path) -> None:
    content = (shared_data / "sensors" / "a100_square_wave" / "PMD_data.bin").read_bytes()[: 2_000 * PACKET_BYTES]
    whole, _ = decoded([content])
    packets, tally = decoded([content[offset:]])
    assert np.array_equal(packets.raw, whole.raw[1:])
    assert tally.discarded_bytes == PACKET_BYTES - offset


def assert_only_what_was_sent(packets: Packets, ticks: IntArray, raw: RawWords) -> list[int]:
    """Every packet that came out is one of those sent, at its time; the numbers of those that did not come out."""
    sent = np.searchsorted(ticks, packets.ticks)
    assert np.array_equal(ticks[sent], packets.ticks)
    assert np.array_equal(raw[sent], packets.raw)
    return sorted(set(range(len(ticks))) - set(sent.tolist()))


@pytest.mark.parametrize("place", range(PACKET_BYTES))
def test_a_lost_byte_costs_its_packet_and_at_most_its_neighbours(place: int) -> None:
    content, ticks, raw = stream(200)
    at = 100 * PACKET_BYTES + place
    packets, tally = decoded([content[:at] + content[at + 1 :]])
    assert 100 in (missing := assert_only_what_was_sent(packets, ticks, raw))
    assert set(missing) <= {99, 100, 101}
    assert packets.breaks.tolist() == [missing[0]]
    assert tally.resyncs == 1


@pytest.mark.parametrize("place", range(PACKET_BYTES))
def test_a_doubled_byte_costs_its_packet_and_at_most_its_neighbours(place: int) -> None:
    content, ticks, raw = stream(200)
    at = 100 * PACKET_BYTES + place
    packets, tally = decoded([content[: at + 1] + content[at:]])
    assert set(assert_only_what_was_sent(packets, ticks, raw)) <= {99, 100, 101}
    assert tally.resyncs == 1


@given(at=st.integers(0, 100 * PACKET_BYTES), count=st.integers(1, 300), seed=st.integers(0, 20))
@settings(max_examples=150)
def test_bytes_that_went_missing_let_no_false_packet_through(at: int, count: int, seed: int) -> None:
    content, ticks, raw = stream(130, seed)
    packets, _ = decoded([content[: 10 * PACKET_BYTES + at] + content[10 * PACKET_BYTES + at + count :]])
    missing = assert_only_what_was_sent(packets, ticks, raw)
    assert len(missing) <= count // PACKET_BYTES + 5


@given(at=st.integers(0, 100 * PACKET_BYTES), count=st.integers(1, PACKET_BYTES - 1), seed=st.integers(0, 20))
@settings(max_examples=150)
def test_bytes_that_came_twice_let_no_false_packet_through(at: int, count: int, seed: int) -> None:
    content, ticks, raw = stream(130, seed)
    at += 10 * PACKET_BYTES
    packets, _ = decoded([content[: at + count] + content[at:]])
    assert len(assert_only_what_was_sent(packets, ticks, raw)) <= 4


@pytest.mark.parametrize("place", [1, 2, 4, 6, 8, 10, 12, 14, 16, 3, 7, 11, 15])
def test_a_garbled_stamp_nibble_or_voltage_costs_its_packet_and_both_neighbours(place: int) -> None:
    content, ticks, raw = stream(200)
    spoiled = bytearray(content)
    spoiled[100 * PACKET_BYTES + place] ^= 0xFF
    packets, _ = decoded([bytes(spoiled)])
    assert assert_only_what_was_sent(packets, ticks, raw) == [99, 100, 101]


@pytest.mark.parametrize("lost", [1, 7, 30])
def test_whole_packets_that_are_missing_leave_a_gap_of_their_length(lost: int) -> None:
    content, ticks, raw = stream(300)
    packets, tally = decoded([content[: 100 * PACKET_BYTES] + content[(100 + lost) * PACKET_BYTES :]])
    assert assert_only_what_was_sent(packets, ticks, raw) == [*range(99, 101 + lost)]
    assert (tally.resyncs, tally.breaks, tally.discarded_bytes) == (0, 1, 2 * PACKET_BYTES)


def test_noise_longer_than_a_turn_of_the_stamp_does_not_shorten_time() -> None:
    content, ticks, _ = stream(1_000)
    noise = np.random.default_rng(3).integers(0, 256, 300 * PACKET_BYTES, dtype=np.uint8).tobytes()
    packets, _ = decoded([content[: 100 * PACKET_BYTES] + noise + content[400 * PACKET_BYTES :]])
    assert ticks[400] - ticks[99] > 2 * STAMP_TURN
    assert packets.ticks[-1] == ticks[-1]


def test_a_channel_without_a_plug_is_no_reason_to_lose_alignment() -> None:
    content, ticks, raw = stream(500)
    raw[:, 4] = np.random.default_rng(1).integers(-3, 4, 500)
    packets, tally = decoded([encode_packets(ticks, raw)])
    assert (len(packets), tally.discarded_bytes) == (500, 0)
    assert content


@pytest.mark.parametrize("content", [b"", b"\x00" * 10_000, b"\xff" * 10_000, bytes(range(256)) * 40, b"\xf0\x64" * 5_000])
def test_bytes_that_are_no_packets_give_none(content: bytes) -> None:
    packets, tally = decoded([content])
    assert len(packets) == 0
    assert tally.discarded_bytes == len(content)


def test_a_packet_that_was_cut_off_is_told_apart_from_damage() -> None:
    content, _, _ = stream(50)
    packets, tally = decoded([content[:-5]])
    assert (len(packets), tally.trailing_bytes, tally.discarded_bytes) == (49, PACKET_BYTES - 5, 0)


def test_packets_at_half_the_line_rate_are_none_at_the_full_one() -> None:
    _, ticks, raw = stream(200)
    slow = encode_packets(2 * ticks, raw)
    assert len(decoded([slow])[0]) == 0
    assert len(decoded([slow], STREAM_BAUD // 2)[0]) == 200


@st.composite
def damaged_streams(draw: st.DrawFn) -> bytes:
    """Packets with bytes lost, doubled, changed, put in or cut off."""
    content = bytearray(stream(draw(st.integers(1, 60)), draw(st.integers(0, 50)))[0])
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        kind = draw(st.sampled_from(["lose", "double", "change", "insert", "cut"]))
        if kind == "lose":
            del content[at : at + draw(st.integers(1, 40))]
        elif kind == "double":
            content[at:at] = content[at : at + draw(st.integers(1, 40))]
        elif kind == "change":
            content[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
        elif kind == "insert":
            content[at:at] = draw(st.binary(max_size=60))
        else:
            del content[at:]
    return bytes(content)


@given(content=st.one_of(st.binary(max_size=400), damaged_streams()), data=st.data())
@settings(max_examples=150)
def test_decoding_does_not_depend_on_how_the_stream_is_cut(content: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=8)))
    pieces = [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True)]
    whole, tally = decoded([content])
    for other, other_tally in (decoded(pieces), decoded([content[i : i + 1] for i in range(len(content))])):
        assert other_tally == tally
        assert np.array_equal(other.ticks, whole.ticks)
        assert np.array_equal(other.raw, whole.raw)
        assert np.array_equal(other.end_byte, whole.end_byte)
        assert np.array_equal(other.breaks, whole.breaks)


@given(content=st.one_of(st.binary(max_size=3_000), damaged_streams()))
@settings(max_examples=200)
def test_every_byte_is_accounted_for_and_time_runs_forward(content: bytes) -> None:
    packets, tally = decoded([content])
    assert tally.bytes == len(content) == accounted(tally)
    assert np.all(np.diff(packets.ticks) > 0)
    assert np.all(np.diff(packets.end_byte) >= PACKET_BYTES)
    assert tally.resyncs <= tally.breaks == len(packets.breaks)


@given(content=damaged_streams())
@settings(max_examples=60)
def test_what_waits_for_more_bytes_stays_small(content: bytes) -> None:
    decoder = PacketDecoder()
    for i in range(0, len(content), 7):
        decoder.feed(content[i : i + 7])
        tally = decoder.tally
        assert tally.bytes - accounted(tally) <= MOST_WAITING_BYTES


def test_a_stream_broken_everywhere_is_decoded_in_linear_work() -> None:
    six, ticks, raw = stream(6)
    packets, tally = decoded([(six + b"\xff") * 500])
    assert tally.resyncs == 499
    assert len(packets) > 3 * 499
    assert {tuple(row) for row in packets.raw.tolist()} <= {tuple(row) for row in raw.tolist()}
    assert len(ticks) == 6

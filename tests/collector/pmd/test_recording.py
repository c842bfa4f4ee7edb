"""Bytes of a meter and recordings: decoding accounts for every byte and finds its way back; what was written comes back in host time."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector.errors import DatasetError
from collector.pmd.decoder import PacketDecoder
from collector.pmd.meter import Received
from collector.pmd.protocol import (
    BLOCK,
    PACKET_BYTES,
    PMD2,
    PMD_USB,
    STAMP_TURN,
    START_STREAM,
    STOP_STREAM,
    STREAM_BAUD,
    MeterSamples,
    baud_of_uart_command,
    block_values,
    encode_block,
    encode_packets,
    uart_command,
)
from collector.pmd.recording import (
    RecordingHeader,
    open_recording_writer,
    read_recording,
    sample_blocks,
    scan_recording,
    stamps_path,
    zero_currents,
)
from collector.pmd.table import TableForm, write_table
from tests.collector.dataset_rows import disk_with
from tests.collector.pmd.conftest import FaultyMeter
from tests.collector.pmd.streams import accounted, decoded, stream
from tests.words import one_line

HEADER = RecordingHeader(model="PMD-USB", firmware=6, baud=STREAM_BAUD, started_host_ns=5 * 10**9, started_unix_s=1.7e9)


def written(path, arrivals, header=HEADER):
    """A recording of these arrivals."""
    with open_recording_writer(path, header) as writer:
        for received in arrivals:
            writer.append(received)
    return path


def emulated_recording(path, seconds, **state):
    """A recording of an emulated meter that streams from 5 s of host time on; every read comes 1 ms late or more."""
    random = np.random.default_rng(3)
    begin = HEADER.started_host_ns
    meter = FaultyMeter(start_ns=begin, baud=STREAM_BAUD, streaming=True, **state)
    arrivals, now = [], begin
    while now < begin + seconds * 1e9:
        now += round(random.uniform(2e6, 6e6))
        data = meter.send(STREAM_BAUD, now)
        if data:
            arrivals.append(Received(data=data, host_ns=now + round(1e6 + random.exponential(2e5))))
    return written(path, arrivals)


def all_samples(scanned):
    """The samples of a recording as one."""
    blocks = list(sample_blocks(scanned, np.zeros(len(scanned.recording.model.rails))))
    return MeterSamples(**{name: np.concatenate([getattr(one, name) for one in blocks]) for name in ("host_ns", "volts", "amperes")})


def sums_of(scanned):
    """What a table says of a recording."""
    rails = len(scanned.recording.model.rails)
    return write_table(scanned, None, TableForm(rails=range(rails), zero_a=np.zeros(rails)))


@pytest.mark.parametrize("error_ppm", [-1000.0, 700.0])
def test_the_clock_of_a_recording_is_tied_to_the_hosts(error_ppm, tmp_path):
    scanned = scan_recording(read_recording(emulated_recording(tmp_path / "r.pmd", 8.0, clock_error_ppm=error_ppm)))
    assert scanned.tie.ticks_per_ms == pytest.approx(2935.0 * (1 + error_ppm * 1e-6), rel=2e-5)
    assert scanned.tie.residual_s < 2e-3
    samples = all_samples(scanned)
    high = samples.rail_power_w().sum(axis=1) > 155.0
    edges_ns = samples.host_ns[1:][high[1:] != high[:-1]] - HEADER.started_host_ns
    off_s = (edges_ns * 1e-9 + 0.025) % 0.05 - 0.025
    assert 0.0 < np.median(off_s) < 4e-3  # arrivals are 1 ms late at least, and reads some ms apart
    assert np.ptp(off_s) < 1.5e-3


@pytest.mark.parametrize("hole_s", [0.005, 0.03, 3.0])
def test_a_hole_is_found_with_its_length_whatever_turns_the_stamp_took(hole_s, tmp_path):
    scanned = scan_recording(read_recording(emulated_recording(tmp_path / "r.pmd", 4.0 + hole_s, hole_s=(2.0, 2.0 + hole_s))))
    found = sums_of(scanned)
    assert (found["holes"], found["longest_hole_s"]) == (1, pytest.approx(hole_s, abs=1.5e-3))
    assert found["duration_s"] == pytest.approx(4.0 + hole_s, abs=0.02)


def test_a_recording_cut_anywhere_keeps_what_came_before(tmp_path):
    path = emulated_recording(tmp_path / "r.pmd", 1.0)
    whole, stamps = path.read_bytes(), stamps_path(path).read_bytes()
    for share in (0.9, 0.5, 0.1):
        path.write_bytes(whole[: int(share * len(whole))])
        stamps_path(path).write_bytes(stamps[: int(min(1.0, share + 0.05) * len(stamps)) - 1])
        tally = scan_recording(read_recording(path)).tally
        assert (tally.packets, tally.discarded_bytes) == (int(share * len(whole)) // PACKET_BYTES, 0)


def test_zeros_are_taken_off_and_currents_below_zero_kept(tmp_path):
    _, ticks, raw = stream(6_000)
    raw[:, 1::2] = np.array([2, -3, 0, 5]) + np.random.default_rng(0).integers(-2, 3, (6_000, 4))
    path = tmp_path / "unloaded.bin"
    path.write_bytes(encode_packets(ticks, raw))
    zero_a = zero_currents(PMD_USB, path)
    assert zero_a == pytest.approx(np.array([2, -3, 0, 5]) * 0.0488, abs=5e-3)
    samples = next(iter(sample_blocks(scan_recording(read_recording(path)), zero_a)))
    assert samples.amperes.min() < 0.0
    assert np.abs(samples.amperes.mean(axis=0)).max() < 3e-3


@pytest.mark.parametrize("packets, current, words", [(6_000, 60, "nothing plugged in"), (1_000, 1, "too short")])
def test_a_recording_under_load_or_too_short_gives_no_zero(packets, current, words, tmp_path):
    _, ticks, raw = stream(packets)
    raw[:, 1::2] = current
    path = tmp_path / "r.bin"
    path.write_bytes(encode_packets(ticks, raw))
    with pytest.raises(DatasetError, match=words):
        zero_currents(PMD_USB, path)
    with pytest.raises(DatasetError, match="no zero for a PMD2"):
        zero_currents(PMD2, path)


def test_a_pmd2_recording_is_stamped_by_the_host(tmp_path):
    header = replace(HEADER, model="PMD2", baud=115200)
    block = encode_block(np.full(10, 12.0), np.arange(10.0))
    arrivals = [Received(data=block, host_ns=10**9 + 2_000_000 * (i + 60 * (i > 50) + (i > 70))) for i in range(100)]
    scanned = scan_recording(read_recording(written(tmp_path / "r.pmd", arrivals, header)))
    samples = all_samples(scanned)
    assert samples.host_ns.tolist() == [received.host_ns for received in arrivals]
    assert samples.amperes == pytest.approx(np.tile(np.arange(10.0), (100, 1)))
    found = sums_of(scanned)
    assert (found["holes"], found["bridged_s"]) == (1, pytest.approx(0.122))  # a late answer is no hole; a lost one costs 0.1 s
    assert scanned.tie is None


DAMAGED = {0: ["nonsense", "# {}", "# [1]", "# " + "[" * 5_000], 1: ["a,b"], 2: ["1,2,3", "x,1", "-5,7", "9e99,1"], 9: ["1,1"]}
FOREIGN = [{"format": 2}, {"model": "PMD9"}, {"baud": 0}, {"started_host_ns": "x"}, {"more": 1}]


def test_damaged_stamps_or_those_of_another_release_are_refused_in_one_line(tmp_path):
    content, _, _ = stream(100)
    path = written(tmp_path / "r.pmd", [Received(data=content[i : i + 90], host_ns=10**9 + i * 10**5) for i in range(0, 1800, 90)])
    lines = stamps_path(path).read_text().splitlines()
    cases = [(line, text) for line, texts in DAMAGED.items() for text in texts]
    for line, text in [*cases, *((0, f"# {json.dumps(json.loads(lines[0][1:]) | change)}") for change in FOREIGN)]:
        stamps_path(path).write_text("\n".join([*lines[:line], text, *lines[line + 1 :]]) + "\n")
        with one_line(DatasetError, f"{stamps_path(path)}.*decode without stamps"):
            read_recording(path)


@pytest.mark.parametrize("every_ns", [0, 30_000])
def test_stamps_of_another_recording_are_noticed(every_ns, tmp_path):
    content, _, _ = stream(3_000)
    length = 45 * PACKET_BYTES
    arrivals = [Received(data=content[i : i + length], host_ns=10**9 + i * every_ns) for i in range(0, len(content), length)]
    with pytest.raises(DatasetError, match="another recording"):
        scan_recording(read_recording(written(tmp_path / "r.pmd", arrivals)))


def test_what_is_no_recording_is_refused_by_its_name(tmp_path):
    path = tmp_path / "r.bin"
    for content in (b"", b"a" * 10_000, bytes(40_000), stream(3)[0][: 2 * PACKET_BYTES]):
        path.write_bytes(content)
        with pytest.raises(DatasetError, match=str(path)):
            scan_recording(read_recording(path))
    with pytest.raises(DatasetError, match="missing"):
        read_recording(tmp_path / "missing")


@given(
    content=st.binary(max_size=2_000),
    stamps=st.one_of(st.binary(max_size=200), st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 2**62)), max_size=12)),
)
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_and_stamps_give_times_that_run_forward_or_are_refused(content, stamps, tmp_path):
    path = written(tmp_path / "r.pmd", [Received(data=stream(100)[0] + content, host_ns=10**9)])
    if not isinstance(stamps, bytes):
        head = b"\n".join(stamps_path(path).read_bytes().splitlines()[:2])
        counts, times = sorted(row[0] for row in stamps), sorted(row[1] for row in stamps)
        stamps = head + "".join(f"\n{a},{b}" for a, b in zip(counts, times, strict=True)).encode() + b"\n"
    stamps_path(path).write_bytes(stamps)
    try:
        scanned = scan_recording(read_recording(path))
    except DatasetError:
        return
    samples = all_samples(scanned)
    assert len(samples) == scanned.tally.packets
    assert np.all(np.diff(samples.host_ns) >= 0)


@pytest.mark.parametrize("room_bytes", [0, 60])
def test_a_recording_for_which_there_is_no_room_leaves_nothing(tmp_path, room_bytes):
    with disk_with(room_bytes), pytest.raises(DatasetError, match="make room"):
        written(tmp_path / "p.pmd", [Received(data=bytes(40), host_ns=HEADER.started_host_ns)])
    assert list(tmp_path.iterdir()) == []


def test_a_recording_without_a_byte_leaves_nothing(tmp_path):
    written(tmp_path / "p.pmd", [])
    with pytest.raises(KeyboardInterrupt), open_recording_writer(tmp_path / "p.pmd", HEADER):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


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
    assert encode_packets(np.array([65536 + 258]), raw)[:6] == bytes.fromhex("0201 f063 90ff")
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

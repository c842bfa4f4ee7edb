"""Recordings: what was written comes back, in host time, whatever was lost, torn or put in by hand."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector.errors import DatasetError
from collector.pmd.meter import Received
from collector.pmd.protocol import PACKET_BYTES, PMD2, PMD_USB, STREAM_BAUD, MeterSamples, encode_block, encode_packets
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
from tests.collector.pmd.streams import stream
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

"""Recorded logs: whatever their form, the same readings; what cannot be used is refused in one line."""

import gzip
import re
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector.errors import CollectorError, SensorError
from collector.recordings.readings import read_readings
from collector.recordings.rows import MOST_LATE, ordered
from collector.recordings.run import read_load, read_reference, read_run, stamps_of_levels
from collector.sensing.reference import tie_meter
from tests.words import one_line

COUNT = 400
POLL_S = 0.007
POLLED_S = np.arange(COUNT) * POLL_S
BEGIN = datetime(2023, 7, 14, 10, 12, 46, tzinfo=UTC)

POWER = 60.0 + np.round(40.0 * (np.arange(COUNT) // 15 % 7) / 6.0, 2)


def stamp(seconds):
    moment = BEGIN + timedelta(seconds=seconds)
    return moment.strftime("%Y/%m/%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}"


def smi_text(header="timestamp, utilization.gpu [%], power.draw [W]", row="{at}, 0, {watt:.2f}", newline="\n"):
    """A log of nvidia-smi with these rows."""
    rows = (row.format(at=stamp(i * POLL_S), watt=watt, milliwatt=watt * 1e3, more=watt + 7.0) for i, watt in enumerate(POWER.tolist()))
    return newline.join([header, *rows]) + newline


def written(folder, content, name="log.csv"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def seconds_text(scale=1.0):
    return "t_s,power_w\n" + "".join(f"{i * POLL_S:.3f},{scale * POWER[i]:.5f}\n" for i in range(COUNT))


FORMS = {
    "plain": smi_text(),
    "order": smi_text("power.draw [W], timestamp, pstate", "{watt:.2f} W, {at}, P0"),
    "units": smi_text("timestamp, power.draw", "{at}, {watt:.2f} W"),
    "crlf": smi_text(newline="\r\n"),
    "bom": "\ufeff" + smi_text(),
    "utf-16": smi_text().encode("utf-16"),
    "milliwatts": smi_text("timestamp,power.draw [mW]", "{at},{milliwatt:.0f}"),
    "instant": smi_text("timestamp, power.draw [W], power.draw.instant [W]", "{at}, [N/A], {watt:.2f}"),
    "fallback": smi_text("timestamp, power.draw.instant [W], power.draw [W]", "{at}, [Not Supported], {watt:.2f}"),
    "seconds": seconds_text(),
    "quoted": '"power_w","t_s","note"\n' + "".join(f"{POWER[i]:.2f},{i * POLL_S:.3f},x\n" for i in range(COUNT)),
    "truncated": smi_text() + stamp(9.0) + ", 0, 1",
    "thrice": smi_text(row="\n".join(["{at}, 0, {watt:.2f}"] * 3)),
    "iso": re.sub(r"(\d+)/(\d+)/(\d+) ", r"\1-\2-\3T", smi_text()),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_log_reads_the_same_in_every_form(tmp_path, form):
    found = read_readings(written(tmp_path, FORMS[form]))
    assert found.power_w == pytest.approx(POWER)
    assert found.time_s - found.time_s[0] == pytest.approx(POLLED_S, abs=1e-3)


def test_of_several_boards_the_named_one_is_read_by_whatever_the_log_has_of_it(tmp_path):
    uuids, places = ("GPU-0a1f2222-3333", "GPU-1b0f2222-3333"), ("00000000:41:00.0", "00000000:C1:00.0")
    rows = ["timestamp, index, uuid, pci.bus_id, power.draw [W]"]
    for i in range(COUNT):
        rows += [f"{stamp(i * POLL_S)}, {board}, {uuids[board]}, {places[board]}, {POWER[i] + 100 * board:.2f} W" for board in (0, 1)]
    path = written(tmp_path, "\n".join(rows) + "\n")
    for name in ("1", uuids[1], places[1], "c1:00.0", "0000:C1:00.0"):
        found = read_readings(path, board=name)
        assert found.power_w == pytest.approx(POWER + 100.0)
        assert found.board == uuids[1]
    for name in ("GPU-", "gpu-1b0f", "GPU-1b0f2222-3334", "41", "2"):
        with pytest.raises(SensorError, match="none of them"):
            read_readings(path, board=name)
    with pytest.raises(SensorError, match=r"2 boards \(0, 1\); choose one with --gpu"):
        read_readings(path)


def test_lines_that_are_no_row_and_a_power_that_nothing_draws_are_left_out_and_counted(tmp_path):
    lines = smi_text().splitlines()
    lines[8] = lines[8].replace(", 0, ", ", 0, 9999")
    lines.insert(len(lines) // 2, "Unable to determine the device handle for GPU0000:41:00.0: GPU is lost.")
    found = read_readings(written(tmp_path, "\n".join(lines) + "\n"))
    assert found.power_w == pytest.approx(np.delete(POWER, 7))
    assert re.search(r"1 of 400 rows have .*1 line\(s\) are no row .*Unable to determine", " ".join(found.left_out))
    assert not read_readings(written(tmp_path, smi_text() + stamp(9.0), "cut.csv")).left_out, "a last line that is cut is none of them"
    coarse = read_readings(written(tmp_path, re.sub(r"\.(\d)\d\d,", r".\g<1>00,", smi_text()), "coarse.csv"))
    assert coarse.left_out[0].startswith("23 rows left out: the next one, of another power, has the same time")


def test_the_named_column_is_read_with_or_without_its_unit(tmp_path):
    header = "timestamp, power.draw [W], power.draw.average [W]"
    path = written(tmp_path, smi_text(header, "{at}, {watt:.2f}, {more:.2f}"))
    for name in ("power.draw.average", "power.draw.average [W]", " Power.Draw.Average"):
        assert read_readings(path, name).power_w == pytest.approx(POWER + 7.0)
    with pytest.raises(SensorError, match=r"no column 'power.drow'.*power.draw"):
        read_readings(path, "power.drow")


@pytest.mark.parametrize(
    "content, reason",
    [
        ("", "is empty"),
        ("t_s,power_w\n", "no rows"),
        ("t_s,power_w\n1.0,50\n", "holds 1 rows"),
        ("time,watts\n1,2\n", "needs the columns t_s,power_w"),
        ("t_s,watts\n1,2\n", "no column 'power_w'"),
        ("2023/07/14 10:12:46.483, 0, 56.12\n", "with its header"),
        ("t_s,power_w\n" + "".join(f"{i * 7},50\n" for i in range(9)), "are no seconds"),
        ("t_s,power_w\n" + "".join(f"{i * 0.007},{56120 + i}\n" for i in range(9)), "milliwatts"),
        ("t_s,power_w\n" + "1.0,50\n" * 9, "same time"),
        ("timestamp, utilization.gpu [%]\n2023/07/14 10:12:46.483, 0\n", "no power column"),
        (smi_text(row="{at}, 0, [N/A]"), "N/A"),
        (smi_text(row="yesterday, 0, {watt}"), r"no cell of timestamp .* 'yesterday'; read are seconds .* 2024/"),
        ("t_s,power_w\n" + "1,2,3\n" * 5, r"no line has the 2 cells .*'1,2,3'"),
        (b"\x00\x01\x02\xff" * 2000, "header"),
        (b"PAR1\x15\x04" + b"\x00" * 100, "no CSV file"),
        (b"x" * 300_000, "header"),
        (smi_text("timestamp, utilization.gpu [%], power.draw [hp]"), "is none of power"),
        (smi_text("timestamp, power.draw [W], power.draw [W]"), r"2 columns are named power\.draw; keep one"),
        ("#Date Time gpu pwr\n#YYYYMMDD HH:MM:SS Idx W\n" + " 20240310 09:00:00 0 55\n" * 9, "with its header"),
        (smi_text("timestamp, power.draw [W]", "{at}, ERR!"), r"no cell of power\.draw .* 'ERR!'"),
        (gzip.compress(smi_text().encode(), mtime=0), "header"),
        ("t_s;power_w\n1,0;50,5\n2,0;60,5\n", "needs the columns t_s,power_w"),
        (smi_text() * 2, "lies before that of an earlier row"),
        (seconds_text(0.001), "less than any board draws"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(tmp_path, content, reason):
    with one_line(CollectorError, f"log.csv.*({reason})"):
        read_readings(written(tmp_path, content))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cells=st.lists(st.tuples(st.floats(), st.floats()), max_size=40))
def test_whatever_the_figures_time_ascends_and_power_is_finite(tmp_path, cells):
    path = written(tmp_path, "t_s,power_w\n" + "".join(f"{t!r},{p!r}\n" for t, p in cells))
    try:
        found = read_readings(path)
    except SensorError:
        return
    assert np.all(np.diff(found.time_s) > 0)
    assert np.all(np.isfinite(found.power_w))


def test_a_load_is_read_as_runs_with_levels(tmp_path):
    text = "t_s,level\n0,0\n1.0,1\n1.5,0\n2.0,0.5\n3.0,1\n4.0,1\n5.0,0\n"
    load = read_load(written(tmp_path, text))
    assert [column.tolist() for column in (load.start_s, load.end_s, load.levels)] == [[1.0, 2.0, 3.0], [1.5, 3.0, 5.0], [1.0, 0.5, 1.0]]
    assert (load.edges, load.known_until_s) == (5, float("inf"))
    stays_on = stamps_of_levels(np.array([1.0, 2.0, 3.0]), np.array([1.0, 0.0, 1.0]))
    assert (stays_on.end_s.tolist(), stays_on.known_until_s) == ([2.0], 3.0), "unknown after its last edge"


@pytest.mark.parametrize(
    "rows, reason",
    [
        ("", "has 0 edges"),
        ("1,0\n2,0\n", "never on"),
        ("2,1\n1,0\n", "goes back at row"),
        ("1,100\n2,0\n", "no share"),
        ("1,1\n", "end that is known"),
        ("1,1\n1,0\n2,1\n2,0\n", "no run has a length"),
        ("1.0,1\n1e90,0\n", r"row 3 is 1e\+90: no time in seconds"),
        ("1,1\n2,0\nnan,1\n4,0\n", "row 4 has no figure"),
        ("1,1\n2,0\n3,1\n4", "'4' has no figure"),
    ],
)
def test_a_load_that_says_nothing_is_refused(tmp_path, rows, reason):
    with pytest.raises(SensorError, match=reason):
        read_load(written(tmp_path, "t_s,level\n" + rows))


def test_readings_and_load_must_share_time(tmp_path):
    readings = written(tmp_path, seconds_text(), "r.csv")
    load = written(tmp_path, "t_s,level\n1000000,1\n1500000,0\n", "l.csv")
    with pytest.raises(SensorError, match="shares no time with the readings"):
        read_run(readings, load)


def test_a_local_log_is_moved_to_its_loads_zone(tmp_path):
    readings = written(tmp_path, smi_text())
    edge = (BEGIN - timedelta(hours=5, minutes=30)).timestamp()
    load = written(tmp_path, f"t_s,level\n{edge + 0.5:.6f},1\n{edge + 2.0:.6f},0\n", "l.csv")
    run = read_run(readings, load)
    assert run.record.load.start_s[0] == pytest.approx(0.5, abs=1e-3)
    assert "-5.5 h" in run.remarks["time_zone"]


def test_published_traces_are_read(shared_data):
    folder = shared_data / "sensors" / "a100_square_wave"
    run = read_run(folder / "gpudata.csv", folder / "timestamps.csv", folder / "PMD_data.bin")
    assert run.column == "power.draw.instant"
    assert len(run.record.load.start_s) == 76
    assert "-1 h" in run.remarks["time_zone"]
    tie = tie_meter(run.record.meter_s, run.record.meter_w, run.record.load)
    assert tie.rate == pytest.approx(-591e-6, abs=10e-6)


def test_a_gh200s_own_power_is_read_and_its_modules_only_when_asked_for(tmp_path):
    log = tmp_path / "gh200.csv"
    rows = [f"2026/01/02 03:04:{n // 50:02d}.{n % 50 * 20:03d}, NVIDIA GH200 480GB, {200 + n % 7} W, {380 + n % 7} W" for n in range(500)]
    log.write_text("\n".join(["timestamp, name, power.draw.average [W], power.draw.instant [W]", *rows]) + "\n")
    own, module = read_readings(log), read_readings(log, "power.draw.instant")
    assert own.column == "power.draw.average"
    assert own.power_w.max() < 210.0
    assert any("power of the whole module" in remark for remark in module.remarks)


def test_of_a_meter_with_a_hole_the_longest_stretch_is_taken(tmp_path):
    held_s = np.where(np.arange(COUNT) < 150, POLLED_S, POLLED_S + 2.0)
    found = read_reference(written(tmp_path, "t_s,power_w\n" + "".join(f"{t:.6f},90\n" for t in held_s)))
    assert found.time_s == pytest.approx(held_s[150:])
    assert "its longest stretch without a hole was taken" in " ".join(found.remarks)


@given(place=st.integers(1, COUNT - 1), rows=st.integers(1, COUNT), by_s=st.floats(0.05, 3e4))
def test_late_rows_are_left_out_or_refused_and_no_row_is_moved(place, rows, by_s):
    time_s = 1000.0 + POLL_S * np.arange(COUNT)
    time_s[place : place + rows] -= by_s
    late = int(np.count_nonzero(time_s < np.maximum.accumulate(time_s)))
    if late > MOST_LATE * COUNT:
        with pytest.raises(SensorError, match="the clock was set, or rows are in no order"):
            ordered(time_s, POWER, "log.csv")
        return
    found = ordered(time_s, POWER, "log.csv")
    assert set(found.time_s) <= set(time_s)
    assert len(found.time_s) == COUNT - late
    assert (f"{late} rows left out" in " ".join(found.remarks)) == (late > 0)


@pytest.mark.parametrize("stamp_s", [1e12, 1e99])
@pytest.mark.parametrize("place", [0, COUNT - 1])
def test_a_stamp_that_is_no_time_is_refused(stamp_s, place):
    time_s = 1000.0 + POLL_S * np.arange(COUNT)
    time_s[place] = stamp_s
    with pytest.raises(SensorError, match="are no seconds|the clock was set"):
        ordered(time_s, POWER, "log.csv")

"""Logs as users have them: touched by other programs, packed, begun anew, twice, of several boards; nothing lost, or one line says why."""

import bz2
import gzip
import lzma
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from collector.errors import SensorError
from collector.recordings.loads import read_load
from collector.recordings.readings import read_readings
from collector.recordings.reference import read_reference
from estimator.quantities import Array
from tests.collector.test_recordings import BEGIN, COUNT, POLL_S, POWER, smi_text, stamp, written


@pytest.mark.parametrize(
    "content",
    [
        smi_text("timestamp;power.draw [W]", lambda i: f"{stamp(i * POLL_S)};{POWER[i]:.2f} W".replace(".", ",")).replace(
            "power,draw", "power.draw"
        ),
        smi_text("timestamp\tpower.draw [W]", lambda i: f"{stamp(i * POLL_S)}\t{POWER[i]:.2f}"),
        "t_s;power_w\n" + "".join(f"{i * POLL_S:.3f};{POWER[i]:.2f}\n".replace(".", ",") for i in range(COUNT)),
        smi_text("timestamp,power.draw", lambda i: f"{stamp(i * POLL_S).replace('/', '-').replace(' ', 'T')}+05:30,{POWER[i]:.2f}"),
        smi_text("timestamp,power.draw", lambda i: f"{stamp(i * POLL_S)} UTC,{POWER[i]:.2f}"),
        smi_text("timestamp,power.draw", lambda i: f"{1.7e9 + i * POLL_S:.4f},{POWER[i]:.2f}"),
        smi_text("timestamp,power_w", lambda i: f"{1_700_000_000_000 + 7 * i},{POWER[i]:.2f}"),
        "# host a\n\n# board 0\n" + smi_text(),
        smi_text().encode("utf-16-le"),
        smi_text().encode("utf-16-be"),
        gzip.compress(smi_text().encode()),
        bz2.compress(smi_text().encode()),
        lzma.compress(smi_text().encode()),
        smi_text(row=lambda i: "\n".join([f"{stamp(i * POLL_S)}, 0, {POWER[i]:.2f}"] * 3)),
        smi_text(
            row=lambda i: (
                f"{stamp(i * POLL_S)}, 0, {POWER[i]:.2f}" + ("\ntimestamp, utilization.gpu [%], power.draw [W]" if i % 90 == 5 else "")
            )
        ),
    ],
    ids=[
        "semicolon",
        "tab",
        "decimal-comma",
        "zone",
        "utc",
        "epoch",
        "milliseconds",
        "remarks",
        "utf-16-le",
        "utf-16-be",
        "gzip",
        "bzip2",
        "xz",
        "thrice",
        "restarts",
    ],
)
def test_a_log_that_other_programs_touched_loses_nothing(tmp_path: Path, content: str | bytes) -> None:
    found = read_readings(written(tmp_path, content))
    assert found.power_w == pytest.approx(POWER)
    assert found.time_s - found.time_s[0] == pytest.approx(np.arange(COUNT) * POLL_S, abs=1e-3)
    assert found.left_out == 0


def test_a_zone_counts_through_a_change_to_summer_time(tmp_path: Path) -> None:
    def row(i: int) -> str:
        summer = i >= COUNT // 2
        return f"{stamp(i * POLL_S + 3600.0 * summer).replace(' ', 'T')}+0{1 + summer}:00,{POWER[i]:.2f}"

    found = read_readings(written(tmp_path, smi_text("timestamp,power.draw", row)))
    assert found.time_s == pytest.approx(BEGIN.timestamp() - 3600.0 + np.arange(COUNT) * POLL_S, abs=1e-3)
    assert not found.local_time
    assert not found.remarks


def test_restarts_and_repeated_rows_are_said(tmp_path: Path) -> None:
    header = "timestamp, index, power.draw [W]"
    again = smi_text(header, lambda i: f"{stamp(i * POLL_S)}, 0, {POWER[i]:.2f}" + (f"\n{header}" if i == 50 else ""))
    assert any("header is there 2 times" in remark for remark in read_readings(written(tmp_path, again)).remarks)
    twice = "t_s,power_w\n" + "".join(f"{i * POLL_S:.3f},{POWER[i]}\n" * 2 for i in range(COUNT))
    assert any("every row is there 2 times" in remark for remark in read_readings(written(tmp_path, twice)).remarks)


def test_a_packed_log_that_breaks_off_keeps_what_came_before(tmp_path: Path) -> None:
    whole = gzip.compress(smi_text().encode())
    found = read_readings(written(tmp_path, whole[: len(whole) // 2], "log.csv.gz"))
    assert 20 < len(found.power_w) < COUNT
    assert found.power_w == pytest.approx(POWER[: len(found.power_w)])
    assert any("last line has no end" in remark for remark in found.remarks)
    for broken in (whole[:12], b"\x1f\x8b" + b"\x00" * 50, b"PK\x03\x04" + whole, b"BZh9" + whole):
        with pytest.raises(SensorError, match="packed"):
            read_readings(written(tmp_path, broken, "log.csv.gz"))


@pytest.mark.parametrize("name", ["10.03.2024 09:00:00.010", "Sun Mar 10 09:00:00 2024", "09:00:00.010", "03/10/2024 09:00:00"])
def test_stamps_that_cannot_be_read_are_shown_with_those_that_can(tmp_path: Path, name: str) -> None:
    with pytest.raises(SensorError) as caught:
        read_readings(written(tmp_path, smi_text("timestamp, power.draw [W]", lambda i: f"{name}, {POWER[i]}")))
    for part in ("column timestamp", repr(name), "2024/03/10 09:00:00.123", "ISO 8601", "seconds since 1970"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("#Date Time gpu pwr\n#YYYYMMDD HH:MM:SS Idx W\n" + " 20240310 09:00:00 0 55\n" * 9, "a table of dmon .* nvidia-smi --query-gpu"),
        ("#Entity POWER\nID W\n" + "GPU 0 61.2\n" * 9, "a table of dmon"),
        (smi_text().split("\n", 1)[1], "has no header, its first line is a row .* without noheader"),
        (smi_text("timestamp, power.draw [W]", lambda i: f"{stamp(i * POLL_S)}, ERR!"), r"no figure of power .* power\.draw 'ERR!'"),
        ("t_s,power_w\nnow,5\nthen,6\n", "column t_s has no stamp that can be read, the first is 'now'; read are seconds"),
    ],
    ids=["dmon", "dcgm", "noheader", "err", "words"],
)
def test_what_other_tools_write_is_refused_with_what_to_do(tmp_path: Path, content: str, reason: str) -> None:
    with pytest.raises(SensorError, match=reason):
        read_readings(written(tmp_path, content))


def test_boards_that_are_polled_in_turn_are_not_read_as_one(tmp_path: Path) -> None:
    def row(i: int) -> str:
        return f"{stamp(i * POLL_S)}, {POWER[i]:.2f}\n{stamp(i * POLL_S + 0.002)}, {200.0 + i // 9 % 2:.2f}"

    with pytest.raises(SensorError, match=r"rows come 2 at a time, as of 2 boards.*timestamp,index,.* --gpu.* -i INDEX"):
        read_readings(written(tmp_path, smi_text("timestamp, power.draw [W]", row)))
    plain = "t_s,power_w\n" + "".join(f"{i * POLL_S:.3f},{POWER[i]:.2f}\n{i * POLL_S:.3f},{300 + i // 9 % 2}\n" for i in range(COUNT))
    with pytest.raises(SensorError, match="rows come 2 at a time, as of 2 boards.*give the rows of one board"):
        read_readings(written(tmp_path, plain, "plain.csv"))


@pytest.mark.parametrize("burst", [2, 3])
def test_one_board_polled_in_bursts_is_one_board(tmp_path: Path, burst: int) -> None:
    rows = "".join(f"{(i // burst) * 0.05 + (i % burst) * 0.002:.3f},{POWER[i // burst]:.2f}\n" for i in range(COUNT))
    assert len(read_readings(written(tmp_path, "t_s,power_w\n" + rows)).time_s) == COUNT


@pytest.mark.parametrize(
    ("times", "powers"),
    [
        (lambda t: pa.array((1e9 * t).astype("int64") + 10**18).cast(pa.timestamp("ns")), lambda p: pa.array(p)),
        (lambda t: pa.array((1e6 * t).astype("int64")).cast(pa.duration("us")), lambda p: pa.array(p.astype("float32"))),
        (lambda t: pa.array([Decimal(f"{x:.3f}") for x in t]), lambda p: pa.array([Decimal(f"{x:.2f}") for x in p])),
        (lambda t: pa.array([f"{x:.3f}" for x in t], pa.large_string()), lambda p: pa.array([f"{x:.2f} W" for x in p]).dictionary_encode()),
        (lambda t: pa.array(t), lambda p: pa.array([f"{x:.2f}".encode() for x in p])),
    ],
    ids=["stamps", "durations", "decimals", "dictionary", "bytes"],
)
def test_parquet_is_read_whatever_its_types(tmp_path: Path, times: Callable[..., pa.Array], powers: Callable[..., pa.Array]) -> None:
    path = tmp_path / "r.parquet"
    pq.write_table(pa.table({"t_s": times(np.arange(COUNT) * POLL_S), "power_w": powers(POWER)}), path)
    found = read_readings(path)
    assert found.power_w == pytest.approx(POWER, rel=1e-6)
    assert found.time_s - found.time_s[0] == pytest.approx(np.arange(COUNT) * POLL_S, abs=2e-6)


def plain(time_s: Array, power_w: Array, form: str = "{:.6f},{:.2f}\n") -> str:
    """A log `t_s,power_w`."""
    return "t_s,power_w\n" + "".join(form.format(*row) for row in zip(time_s, power_w, strict=True))


TIME_S = np.arange(600) * 5e-3
HELD_W = np.repeat(np.random.default_rng(6).integers(6000, 20000, 60) / 100.0, 10)
"""A sensor that updates every tenth poll."""


@pytest.mark.parametrize("begin", [0, 250])
def test_a_log_or_its_end_that_was_written_twice_is_taken_once(begin: int, tmp_path: Path) -> None:
    text = plain(TIME_S, HELD_W)
    rows = text.splitlines(keepends=True)[1:]
    found = read_readings(written(tmp_path, text + "".join(rows[begin:])))
    assert found.time_s.tolist() == pytest.approx(TIME_S.tolist())
    assert f"{600 - begin} rows are there twice" in " ".join(found.remarks)
    assert "set back" not in " ".join(found.remarks)


def test_a_clock_that_was_set_back_gives_no_rows_twice(tmp_path: Path) -> None:
    """A tenth of the rows have a stamp, and a board at rest the power, of an earlier row."""
    back_s = np.where(np.arange(600) >= 300, TIME_S - 0.5 + np.where(np.arange(600) % 10, 1e-3, 0.0), TIME_S)
    found = read_readings(written(tmp_path, plain(back_s, np.full(600, 60.0))))
    assert len(found.time_s) == 600
    assert "set back" in " ".join(found.remarks)


@pytest.mark.parametrize("boards", [2, 3, 5])
def test_boards_polled_halfway_between_each_other_are_not_read_as_one(boards: int, tmp_path: Path) -> None:
    random = np.random.default_rng(boards)
    power_w = np.column_stack([np.repeat(random.integers(6000, 20000, 60) / 100.0, 10)[:600] for _ in range(boards)])
    time_s = np.arange(power_w.size) * 5e-3 / boards + random.uniform(0.0, 4e-4, power_w.size)
    with pytest.raises(SensorError, match=f"rows come {boards} at a time, as of {boards} boards"):
        read_readings(written(tmp_path, plain(time_s, power_w.ravel())))


@pytest.mark.parametrize("every", [1, 2, 3, 10])
def test_one_board_is_not_taken_for_several_however_often_it_updates(every: int, tmp_path: Path) -> None:
    power_w = np.repeat(np.random.default_rng(every).integers(6000, 20000, 600) / 100.0, every)[:600]
    assert len(read_readings(written(tmp_path, plain(TIME_S, power_w))).time_s) == 600


def test_one_power_in_two_units_is_no_change_of_it(tmp_path: Path) -> None:
    rows = [f"{power:.2f} W" if place % 3 else f"{power * 1e3:.0f} mW" for place, power in enumerate(HELD_W.tolist())]
    text = "t_s,power_w\n" + "".join(f"{time:.3f},{row}\n" for time, row in zip(TIME_S, rows, strict=True))
    assert np.count_nonzero(np.diff(read_readings(written(tmp_path, text)).power_w)) == np.count_nonzero(np.diff(HELD_W))


@pytest.mark.parametrize("factor", [0.0, 1e-3])
def test_power_that_no_board_draws_is_refused(factor: float, tmp_path: Path) -> None:
    with pytest.raises(SensorError, match=r"the largest of 600 readings is .* W, less than any board draws: give power in watts"):
        read_readings(written(tmp_path, plain(TIME_S, factor * HELD_W, "{:.6f},{:.5f}\n")))


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_packed_log_that_breaks_off_says_so(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    content = pack(plain(np.arange(200_000) * 5e-3, random.integers(6000, 20000, 200_000) / 100.0).encode())
    found = read_readings(written(tmp_path, content[: len(content) * 3 // 4]))
    assert 1000 < len(found.time_s) < 200_000
    assert "the packed file breaks off" in " ".join(found.remarks)
    assert found.left_out == 1
    whole = read_readings(written(tmp_path, content))
    assert whole.left_out == 0
    assert not whole.remarks


def test_runs_without_length_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "load.csv"
    path.write_text("t_s,level\n1,1\n1,0\n2,1\n2,0\n")
    with pytest.raises(SensorError, match="every run ends when it starts"):
        read_load(path)


def test_of_a_meter_with_a_hole_the_longest_stretch_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "meter.csv"
    path.write_text(plain(np.where(np.arange(600) < 200, TIME_S, TIME_S + 2.0), HELD_W))
    found = read_reference(path)
    assert found.time_s.tolist() == pytest.approx((TIME_S[200:] + 2.0).tolist())
    assert "its longest stretch without a hole was taken, 1.995 s" in " ".join(found.remarks)
    path.write_text(plain(TIME_S, HELD_W))
    assert len(read_reference(path).time_s) == 600

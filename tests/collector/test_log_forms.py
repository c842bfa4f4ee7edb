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
from collector.recordings.readings import read_readings
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

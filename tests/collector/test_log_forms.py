"""Logs as users have them: touched by other programs, packed, begun anew, twice, of several boards; nothing lost, or one line says why."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from collector.errors import SensorError
from collector.recordings.loads import read_load
from collector.recordings.readings import read_readings
from collector.recordings.reference import read_reference
from estimator.vocabulary.quantities import Array
from tests.collector.test_recordings import COUNT, POLL_S, POWER, smi_text, stamp, written


@pytest.mark.parametrize(
    "content",
    [
        smi_text(row=lambda i: "\n".join([f"{stamp(i * POLL_S)}, 0, {POWER[i]:.2f}"] * 3)),
        smi_text(row=lambda i: f"{stamp(i * POLL_S).replace('/', '-').replace(' ', 'T')}, 0, {POWER[i]:.2f}"),
    ],
    ids=["thrice", "iso"],
)
def test_a_log_that_other_programs_touched_loses_nothing(tmp_path: Path, content: str | bytes) -> None:
    found = read_readings(written(tmp_path, content))
    assert found.power_w == pytest.approx(POWER)
    assert found.time_s - found.time_s[0] == pytest.approx(np.arange(COUNT) * POLL_S, abs=1e-3)
    assert found.left_out == 0


@pytest.mark.parametrize("name", ["10.03.2024 09:00:00.010", "09:00:00.010"])
def test_stamps_that_cannot_be_read_are_shown_with_those_that_can(tmp_path: Path, name: str) -> None:
    with pytest.raises(SensorError) as caught:
        read_readings(written(tmp_path, smi_text("timestamp, power.draw [W]", lambda i: f"{name}, {POWER[i]}")))
    for part in ("no cell of timestamp", repr(name), "2024/03/10 09:00:00.123", "seconds under t_s"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("#Date Time gpu pwr\n#YYYYMMDD HH:MM:SS Idx W\n" + " 20240310 09:00:00 0 55\n" * 9, "with its header"),
        ("#Entity POWER\nID W\n" + "GPU 0 61.2\n" * 9, "with its header"),
        (smi_text().split("\n", 1)[1], "with its header"),
        (smi_text("timestamp, power.draw [W]", lambda i: f"{stamp(i * POLL_S)}, ERR!"), r"no cell of power\.draw .* 'ERR!'"),
        (gzip.compress(smi_text().encode()), "is packed; unpack it first"),
        ("t_s;power_w\n1,0;50,5\n2,0;60,5\n", "needs the columns t_s,power_w"),
        (smi_text() * 2, "lies before that of an earlier row"),
        ("t_s,power_w\nnow,5\nthen,6\n", "no cell of t_s can be read, the first is 'now'; read are seconds"),
    ],
    ids=["dmon", "dcgm", "noheader", "err", "packed", "semicolons", "twice", "words"],
)
def test_what_other_tools_write_is_refused_with_what_to_do(tmp_path: Path, content: str | bytes, reason: str) -> None:
    with pytest.raises(SensorError, match=reason):
        read_readings(written(tmp_path, content))


@pytest.mark.parametrize("burst", [2, 3])
def test_one_board_polled_in_bursts_is_one_board(tmp_path: Path, burst: int) -> None:
    rows = "".join(f"{(i // burst) * 0.05 + (i % burst) * 0.002:.3f},{POWER[i // burst]:.2f}\n" for i in range(COUNT))
    assert len(read_readings(written(tmp_path, "t_s,power_w\n" + rows)).time_s) == COUNT


@pytest.mark.parametrize(
    ("times", "powers"),
    [
        (lambda t: pa.array((1e9 * t).astype("int64") + 10**18).cast(pa.timestamp("ns")), lambda p: pa.array(p)),
        (lambda t: pa.array([f"{x:.3f}" for x in t], pa.large_string()), lambda p: pa.array([f"{x:.2f} W" for x in p]).dictionary_encode()),
    ],
    ids=["stamps", "dictionary"],
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


@pytest.mark.parametrize("every", [1, 2, 3, 10])
def test_one_board_is_not_taken_for_several_however_often_it_updates(every: int, tmp_path: Path) -> None:
    power_w = np.repeat(np.random.default_rng(every).integers(6000, 20000, 600) / 100.0, every)[:600]
    assert len(read_readings(written(tmp_path, plain(TIME_S, power_w))).time_s) == 600


@pytest.mark.parametrize("factor", [0.0, 1e-3])
def test_power_that_no_board_draws_is_refused(factor: float, tmp_path: Path) -> None:
    with pytest.raises(SensorError, match=r"the largest of 600 readings is .* W, less than any board draws: give power in watts"):
        read_readings(written(tmp_path, plain(TIME_S, factor * HELD_W, "{:.6f},{:.5f}\n")))


def test_runs_without_length_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "load.csv"
    path.write_text("t_s,level\n1,1\n1,0\n2,1\n2,0\n")
    with pytest.raises(SensorError, match="no run has a length"):
        read_load(path)


def test_of_a_meter_with_a_hole_the_longest_stretch_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "meter.csv"
    path.write_text(plain(np.where(np.arange(600) < 200, TIME_S, TIME_S + 2.0), HELD_W))
    found = read_reference(path)
    assert found.time_s.tolist() == pytest.approx((TIME_S[200:] + 2.0).tolist())
    assert "its longest stretch without a hole was taken, 1.995 s" in " ".join(found.remarks)
    path.write_text(plain(TIME_S, HELD_W))
    assert len(read_reference(path).time_s) == 600

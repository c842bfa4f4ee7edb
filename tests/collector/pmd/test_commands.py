"""`collect pmd`: results on stdout, one line for an error, files whole or not at all, recordings that survive their end."""

import json
import signal
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import trapezoid

from collector.pmd.protocol import PACKET_BYTES, encode_packets
from collector.pmd.recording import stamps_path
from tests.collector.pmd.conftest import emulated_port
from tests.collector.pmd.streams import stream
from tests.collector.steady import in_real_time
from tests.processes import piped
from tests.words import answer, called, refused, told

COLUMNS = ["t_s", "power_w", *(f"{rail}_{unit}" for rail in ("pcie1", "pcie2", "eps1", "eps2") for unit in ("v", "a"))]


@pytest.fixture
def recording(tmp_path):
    """Bytes of 2,000 sound packets, no stamps."""
    path = tmp_path / "r.bin"
    path.write_bytes(stream(2_000)[0])
    return path


def fresh(folder):
    """An empty folder in a folder, for one attempt."""
    return Path(tempfile.mkdtemp(dir=folder))


def test_decoding_writes_a_table_or_stdout_with_the_same_numbers(recording):
    csv = recording.with_suffix(".csv")
    assert told(f"pmd decode {recording} --out {csv}")[0].splitlines()[-1] == f"written: {csv}"
    document = answer(f"pmd decode {recording} --out {csv} --force")
    assert (document["samples"], document["holes"], document["clock_residual_s"]) == (2_000, 0, None)
    assert csv.read_text().splitlines()[0].split(",") == COLUMNS
    columns = np.loadtxt(csv, delimiter=",", skiprows=1)
    time_s, power_w, *rails = columns.T
    assert power_w == pytest.approx(sum(volt * ampere for volt, ampere in zip(rails[::2], rails[1::2], strict=True)), abs=1e-4)
    assert document["mean_power_w"] == pytest.approx(power_w.mean(), abs=1e-6)
    assert document["energy_j"] == pytest.approx(trapezoid(power_w, time_s), rel=1e-6)
    out, err = told(f"pmd decode {recording} --rails pcie1")
    rows = out.splitlines()
    assert len(rows) == 2_001
    first = dict(zip(COLUMNS, map(float, rows[1].split(",")), strict=True))
    assert first["t_s"] == 0.0
    assert first["power_w"] == pytest.approx(first["pcie1_v"] * first["pcie1_a"], abs=1e-5)
    assert "samples           2000" in err


def test_missing_samples_are_a_warning_and_part_energy_from_mean_power(recording):
    _, ticks, raw = stream(2_000)
    raw[:1_000, 1::2], raw[1_000:, 1::2] = 40, 400
    data = encode_packets(ticks, raw)
    recording.write_bytes(data[: 600 * PACKET_BYTES + 3] + data[690 * PACKET_BYTES :])
    found = answer(f"pmd decode {recording}", status=3)
    assert found["holes"] == 1
    assert found["bridged_s"] == pytest.approx(found["longest_hole_s"]) == pytest.approx(93 / 4780, rel=0.03)
    assert found["energy_j"] != pytest.approx(found["mean_power_w"] * found["duration_s"], rel=1e-3)
    recording.write_bytes(b"\x01" * 13 + data)
    assert told(f"pmd decode {recording} --json", status=3)[1] == "warning: 13 bytes left out, in no packet that can be trusted\n"


@pytest.mark.parametrize(
    "status, words",
    [
        (1, "decode {r} --rails hpwr"),
        (1, "decode {r} --time unix"),
        (1, "decode {r} --zero {r}"),
        (2, "decode {r} --out {r}.parquet"),
        (1, "log no/such/port --out {r}.csv"),
        (1, "log no/such/port --out {r}"),
        (2, "log no/such/port --duration 5"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(status, words, recording):
    before = sorted(recording.parent.iterdir())
    refused(status, "", "pmd", *words.replace("{r}", str(recording)).split())
    assert sorted(recording.parent.iterdir()) == before


@in_real_time
def test_a_log_is_a_recording_and_its_table(tmp_path):
    tmp_path = fresh(tmp_path)
    out = tmp_path / "p.csv"
    with emulated_port() as port:
        said, err = told(f"pmd log {port.path} --out {out} --duration 0.5s --json --quiet")
    document = json.loads(said)
    assert err == ""
    assert (document["holes"], document["discarded_bytes"]) == (0, 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.csv", "p.pmd", "p.pmd.stamps.csv"]
    assert len(out.read_text().splitlines()) == document["samples"] + 1
    assert document["samples"] == (tmp_path / "p.pmd").stat().st_size // PACKET_BYTES
    refused(1, "", f"pmd log {port.path} --out {out}")
    assert called(f"pmd decode {tmp_path / 'p.pmd'} --time unix") == 0


@in_real_time
def test_a_meter_unplugged_under_a_log_leaves_what_it_sent(tmp_path):
    out = fresh(tmp_path) / "p.csv"
    with emulated_port(unplug_s=0.3) as port:
        line = refused(1, f"samples until then are in {out}", f"pmd log {port.path} --out {out} --quiet")
    rows = len(out.read_text().splitlines()) - 1
    assert rows > 500
    assert f"{rows} samples" in line


@in_real_time
def test_an_emulator_and_a_log_end_cleanly_when_they_are_asked_to(tmp_path):
    out = fresh(tmp_path) / "p.csv"
    command = [sys.executable, "-W", "error", "-m", "collector.cli", "pmd"]
    with piped(*command, "emulate") as emulator:
        port = emulator.stdout.readline().strip()
        with piped(*command, "log", port, "--out", out, "--json", "-v") as log:
            assert "recording into" in log.stderr.readline()
            assert log.stderr.readline().startswith("1 s, ")
            log.send_signal(signal.SIGINT)
            stdout, stderr = log.communicate(timeout=300)
        emulator.send_signal(signal.SIGTERM)
        assert "samples sent" in emulator.communicate(timeout=300)[1]
    assert (log.returncode, emulator.returncode) == (0, 0), stderr
    assert json.loads(stdout)["samples"] == len(out.read_text().splitlines()) - 1 > 1_000
    assert stamps_path(out.with_suffix(".pmd")).is_file()

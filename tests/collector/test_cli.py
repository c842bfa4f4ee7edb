"""The command `collect`: results on stdout, one line for an error, exit statuses, nothing half-written."""

import json
import os
import signal

import pytest

from collector.commands.output import stoppable
from collector.dataset.reader import log_path, read_kernel_dataset
from tests.collector.campaigns import campaign_words
from tests.collector.conftest import TINY_CAMPAIGN
from tests.processes import COLLECT, piped
from tests.words import answer, called, changed, refused, told

BOARD = "sim:a100-pcie-40gb"


@pytest.fixture
def arguments(sensor_file, tmp_path, tmp_path_factory):
    """A small campaign into `d.parquet`."""
    words = campaign_words(tmp_path_factory.mktemp("words"), sensor_file, TINY_CAMPAIGN, freqs="510,900")
    return f"{words} --out {tmp_path / 'd.parquet'} --seed 1"


def test_a_campaign_prints_what_was_measured_and_the_next_command(arguments, tmp_path):
    out, err = told(f"{arguments} -v")
    assert sum("softmax.softmax.fp32" in line for line in err.splitlines()) == 8
    rows = read_kernel_dataset(tmp_path / "d.parquet").table.num_rows
    assert f"{rows} of {rows} rows" in out
    assert "simulated" in out
    assert out.splitlines()[-1] == f"next: fit {tmp_path / 'd.parquet'}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.parquet"]


def test_in_a_folder_each_board_and_campaign_has_a_part_of_its_own(arguments, tmp_path):
    words = changed(arguments, f"--out {tmp_path / 'fleet'}/ --families softmax -q")
    assert called(words) == called(changed(words, "--seed 5")) == called(f"{words} --resume") == 0
    parts = list((tmp_path / "fleet").rglob("*.parquet"))
    line = refused(1, " exists", words)
    assert len(parts) == 2
    assert any(str(part) in line for part in parts)
    for part in parts:
        board, host, name = part.relative_to(tmp_path / "fleet").parts
        assert (board, host.partition("=")[0], name.partition("-")[0]) == ("board=a100-pcie-40gb", "host", "GPU")
    (tmp_path / "file").touch()
    for url_or_file in ("s3://x/y/", f"{tmp_path / 'file'}/"):
        refused(1, "", changed(arguments, f"--out {url_or_file}"))


@pytest.mark.parametrize(
    "change, status, reason",
    [
        ("--freqs ''", 2, "no clock is named"),
        ("--freqs 511", 1, "nearest 510"),
        ("--gpu sim:a900", 1, "unknown simulated board"),
        ("--gpu sim:a100-pcie-40gb,", 1, "names no board"),
        ("--campaign quik", 1, "known: "),
        ("--campaign none.toml", 1, "cannot be read"),
        ("--families gem", 1, "it has: gemm, softmax"),
        ("--families ' , '", 2, "names no family"),
        ("--out /nowhere/no.parquet", 1, "no folder"),
        ("--sensor none.json", 1, "cannot be read"),
        ("--sensor none.json --pmd sim", 2, "leave one of them out"),
        ("--budget 30", 2, "unit"),
        ("--seed -1", 2, "seed"),
        ("--colour", 2, "colour"),
        ("mystery", 2, "mystery"),
    ],
)
def test_bad_input_is_one_line(arguments, change, status, reason, tmp_path):
    refused(status, reason, changed(arguments, change))
    assert list(tmp_path.iterdir()) == []


def test_devices_lists_what_each_board_supports():
    devices = answer("devices")
    assert {"sim:a100-pcie-40gb", "sim:h200-sxm", "sim:v100-pcie-32gb", "sim:rtx-3090"} <= {device["gpu"] for device in devices}
    assert all(device["simulated"] and device["power_fields"][0] == "instant" for device in devices)
    out, err = told("devices -q")
    assert (err, len(out.splitlines())) == ("", 1 + len(devices))


def test_sensor_prints_the_fields_of_the_contract(tmp_path):
    out, recording, played = (tmp_path / name for name in ("sensor.json", "run.recording", "played.json"))
    document = answer(f"sensor --gpu {BOARD} --freq 900 --out {out} --record {recording}")
    assert document == json.loads(out.read_text())
    assert called(f"sensor --gpu replay:{recording} --freq 900 --out {played} --quiet") == 0
    assert played.read_bytes() == out.read_bytes()
    assert document["averaging"] == "low-pass"
    assert document["window_s"] == pytest.approx(2.0 * document["tau_s"])
    assert document["tau_s"] == pytest.approx(0.0125, abs=0.0008)
    assert document["transient"] == "instant"
    assert 0.02 < document["settle_s"] < 0.2
    assert document["gain"] is None
    assert "gain" in document["notes"]
    assert answer(f"sensor --gpu {BOARD} --pmd sim")["gain"] == pytest.approx(0.954, abs=0.01)
    for reason, change in (
        ("2 clocks", "--freq 510,900"),
        ("names no file", "--gpu replay:"),
        ("--pmd sim", "--pmd /dev/ttyUSB0"),
    ):
        refused(1, reason, changed(f"sensor --gpu {BOARD}", change))


def test_a_signal_keeps_the_rows_and_says_how_to_go_on(arguments, tmp_path, repository):
    process = piped(*COLLECT, *changed(arguments, "-v --campaign quick").split(), cwd=repository)
    for line in process.stderr:
        if line.startswith("5/"):
            process.send_signal(signal.SIGTERM)
            break
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    assert out == ""
    assert "--resume" in err
    assert "Traceback" not in err
    assert read_kernel_dataset(log_path(tmp_path / "d.parquet")).table.num_rows >= 5
    assert not (tmp_path / "d.parquet").exists()


def test_ctrl_c_before_the_first_row_says_that_there_is_nothing_to_resume(tmp_path, capsys):
    output = tmp_path / "d.parquet"
    for words in ("nothing is left behind", "is as it was"):
        with pytest.raises(KeyboardInterrupt), stoppable(output):
            os.kill(os.getpid(), signal.SIGTERM)
        line = capsys.readouterr().err
        assert words in line
        assert line.count("\n") == 1
        assert "--resume" not in line
        output.touch()

"""Commands of `collect` against bad files and contradictory options: one line, the contract's exit status, nothing lost."""

import json
import signal
import subprocess
import termios
from contextlib import suppress
from fcntl import ioctl

import numpy as np
import pytest

from collector.sensing.calibration import load_calibration
from estimator.vocabulary.resources import resource_folder
from tests.collector.dataset_rows import disk_with
from tests.collector.steady import until
from tests.processes import COLLECT, piped
from tests.words import called, refused, told

A100 = "sim:a100-pcie-40gb"


def table(path, header, *columns):
    rows = [",".join(str(cell) for cell in row) for row in zip(*columns, strict=True)]
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def polls(path, *, missing=0, gap_s=0.0):
    """20 s of a reading that takes a new value every 100 ms; `missing` rows have no power, and there is a gap in the middle."""
    time_s = 0.01 * np.arange(2000)
    power = [f"{100 + 0.2 * (index // 10 * 83 % 211):g}" for index in range(2000)]
    power[:missing] = ["nan"] * missing
    late = np.where(time_s > 10.0, gap_s, 0.0)
    return table(path, "t_s,power_w", [f"{value:.2f}" for value in time_s + late], power)


SENSOR = """{
"gpu_uuid": "GPU-0", "driver": "1", "sensor": "log", "field": "power_w", "averaging": "boxcar", "n_updates": 200,
"update_period_s": 0.1, "window_s": 0.1, "window_std_s": 1e-3, "delay_s": 0.0, "gain": 1.0, "gain_std": 0.01, "offset_w": 0.0,
"offset_std_w": 1.0
}"""


def sensor(path, **changed):
    path.write_text(json.dumps({**json.loads(SENSOR), **changed}))
    return path


def test_no_output_replaces_an_input_or_another_output(tmp_path):
    readings, known, own = polls(tmp_path / "r.csv"), sensor(tmp_path / "s.json"), tmp_path / "my.toml"
    own.write_bytes((resource_folder("campaigns") / "quick.toml").read_bytes())
    board = tmp_path / "board.toml"
    board.write_bytes((resource_folder("simulated-boards") / "a100-pcie-40gb.toml").read_bytes())
    (tmp_path / "link").symlink_to(readings)
    before = {path: path.read_bytes() for path in (readings, known, own, board)}
    for words in (
        ("sensor", "--readings", readings, "--out", tmp_path / "link"),
        ("correct", "--readings", readings, "--sensor", known, "--out", known),
        ("run", "--gpu", f"sim:{board}", "--out", board, "--", "true"),
        ("--gpu", A100, "--sensor", known, "--record", known, "--dry-run"),
        ("--gpu", A100, "--freqs", "510", "--campaign", own, "--out", own, "--fresh"),
        ("submit", own, "--gpu", A100, "--out", own, "--fresh"),
    ):
        refused(1, "is what this command reads", *words)
    refused(1, "two outputs", f"sensor --gpu {A100} --out {tmp_path / 'x'} --record {tmp_path / 'x'}")
    refused(2, "collect export", f"--gpu {A100} --out {tmp_path / 'x.CSV'} --dry-run")
    for ending in (".parquet", ".csv.gz"):  # a name that promises what is not written
        refused(2, "the file is .csv", f"correct --readings {readings} --sensor {known} --out {tmp_path / 'q'}{ending}")
    refused(2, "the file is .json", f"sensor --readings {readings} --out {tmp_path / 'q.csv'}")
    refused(2, "--record has no meaning with --readings", f"sensor --readings {readings} --record {tmp_path / 'x'}")
    assert before == {path: path.read_bytes() for path in before}


def test_a_path_that_cannot_be_written_is_found_before_a_program_runs(tmp_path, repository):
    ran = tmp_path / "ran"
    refused(1, "cannot be written", f"run --gpu {A100} --out {tmp_path / 'none' / 'x'} -- touch {ran}")
    with disk_with(10):  # full once the program ran: its result is on stdout alone
        out, _ = told(f"run --gpu {A100} --json --out {tmp_path / 'x'} -- {repository / 'examples' / 'gpt2-prefill.json'}", status=1)
    assert json.loads(out)["runs"]
    assert list(tmp_path.iterdir()) == []


def test_a_sensor_file_from_a_recording_says_what_it_lacks_for_a_board(tmp_path):
    known = sensor(tmp_path / "s.json", gpu_uuid="", driver="")
    assert load_calibration(known).gain == 1.0
    refused(1, "names no board", f"run --gpu {A100} --sensor {known} -- true")


def test_rows_left_out_and_gaps_are_a_warning(tmp_path):
    known, holes = sensor(tmp_path / "s.json"), polls(tmp_path / "holes.csv", missing=3)
    for command in ("sensor", f"correct --sensor {known}"):
        out, err = told(f"{command} --readings {holes}", status=3)
        assert "warning: 3 of 2000 rows have no time or no power" in err
        assert "note: 3 of 2000 rows" in out
    gap = polls(tmp_path / "gap.csv", gap_s=1e4)
    assert "1 gap(s) in the polls, 1e+04 s" in told(f"correct --sensor {known} --readings {gap}", status=3)[1]
    assert called(f"correct --sensor {known} --readings {polls(tmp_path / 'whole.csv')}") == 0


def test_a_load_that_lacks_an_edge_is_refused(tmp_path):
    readings = polls(tmp_path / "r.csv")
    refused(1, "names no boards", f"sensor --readings {readings} --gpu 7")
    single = table(tmp_path / "single.csv", "timestamp", [1_000_000, 2_000_000, 3_000_000, 4_000_000])
    paired = table(tmp_path / "paired.csv", "timestamp", [1_000_000, 1_000_000, 3_000_000, 3_000_000])
    refused(1, "every edge twice", f"sensor --readings {readings} --load {single}")
    assert called(f"sensor --readings {readings} --load {paired}") in (0, 3)


def test_a_long_recording_costs_no_more_than_its_load(tmp_path):
    time_s = 0.05 * np.arange(40_000)
    power = 100.0 + 50.0 * ((time_s > 1000.0) & (time_s < 1012.0) & (time_s % 0.6 < 0.3)) + np.arange(40_000) // 2 % 2
    readings = table(tmp_path / "r.csv", "t_s,power_w", [f"{value:.2f}" for value in time_s], power)
    edges = 1000.2 + 0.6 * np.arange(20)
    load = table(tmp_path / "l.csv", "t_s,level", np.sort(np.concatenate([edges, edges + 0.3])), [1, 0] * 20)
    known, out = sensor(tmp_path / "s.json"), tmp_path / "c.csv"
    assert called(f"correct --readings {readings} --sensor {known} --load {load} --out {out}") in (0, 3)
    times = np.loadtxt(out, delimiter=",", skiprows=1)[:, 0]
    assert times[0] == pytest.approx(700.0, abs=2.0)
    assert times[-1] == pytest.approx(1312.0, abs=2.0)


def test_sigterm_ends_every_command_like_an_interruption(tmp_path):
    with piped(*COLLECT, "sensor", "--readings", "/dev/stdin", "--out", tmp_path / "s.json") as waiting:
        waiting.stdin.write("t_s,power_w\n" + "".join(f"{row / 100},100\n" for row in range(20_000)))
        waiting.stdin.flush()
        # The command has read all and waits for the end, which does not come: it hears no signal just before it begins to read.
        until(lambda: ioctl(waiting.stdin, termios.FIONREAD, bytes(4)) == bytes(4))
        while waiting.poll() is None:  # one that came too soon all the same: as users do, ask again
            waiting.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                waiting.wait(timeout=20.0)
        said = waiting.stderr.read()
    assert waiting.returncode == 130
    assert said.strip() == "collect: interrupted"
    assert not list(tmp_path.iterdir())

"""`collect run --std`: one run of a program, from as few runs as the asked error takes.  On a simulated board, which stays at rest."""

import json
import sys

import pytest

from collector.bench import open_simulated
from collector.cli import main
from collector.sensing.calibration import SensorCalibration

BOARD = "sim:a100-pcie-40gb"
QUICK = (sys.executable, "-S", "-c", "pass")
FEW, SHORT_S = 3, 0.2
"""So few runs are enough for a program that takes much longer than an update of the sensor, as every one does on a slow machine."""


def measured(capfd, *options):
    assert main(["run", "--gpu", BOARD, "--json", *options, "--", *QUICK]) == 0
    return json.loads(capfd.readouterr().out)


def test_a_short_program_is_run_as_often_as_the_asked_error_takes(capfd):
    found = measured(capfd, "--std", "0.02")
    (clock,), (run,) = found["clocks"], found["runs"]
    assert run["executions"] == clock["runs"]
    assert run["executions"] > FEW or run["latency_s"] > SHORT_S
    assert abs(clock["above_rest_j"]) < 5.0 * clock["energy_std_j"]  # how long the program takes is the machine's chance, not a seed's
    assert not any("was not reached" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("options", "command", "status", "words"),
    [
        (("--std", "0.01", "--repeats", "3"), QUICK, 2, "leave --repeats out"),
        (("--longest", "5s"), QUICK, 2, "give both"),
        (("--std", "0"), QUICK, 2, "--std"),
        (("--std", "nan"), QUICK, 2, "--std"),
        (("--std", "0.01"), (sys.executable, "-S", "-c", "raise SystemExit(7)"), 7, "ended with status 7"),
        (("--std", "0.01"), ("no-such-program",), 127, "command not found"),
        ((), ("/",), 126, "cannot be run (Permission denied)"),
        (("--std", "0.01", "--longest", "0.001s"), QUICK, 1, "more than 0.001 s allow"),
    ],
)
def test_what_cannot_be_measured_is_one_line(options, command, status, words, capfd):
    assert main(["run", "--gpu", BOARD, "--quiet", *options, "--", *command]) == status
    said = capfd.readouterr().err.strip()
    assert words in said
    assert len(said.splitlines()) == 1


def test_a_counter_that_disagrees_within_what_its_steps_leave_open_is_no_note(capfd, tmp_path):
    with open_simulated("rtx-3090") as bench:
        identity = bench.gpu.identity()
    known = SensorCalibration(
        gpu_uuid=identity.uuid, driver=identity.driver, sensor="nvml", field="instant", averaging="boxcar", n_updates=500,
        update_period_s=0.09997, window_s=0.09997, window_std_s=1e-4, delay_s=1e-3, delay_std_s=2e-4, settle_s=0.3,
        gain=0.948, gain_std=2e-4, offset_w=1.4, offset_std_w=0.03, reading_noise_w=0.25, resolution_w=0.01,
    )  # fmt: skip
    (tmp_path / "s.json").write_text(json.dumps(known.document()))
    command = (sys.executable, "-S", "-c", "import time; time.sleep(0.25)")
    assert main(["run", "--gpu", "sim:rtx-3090", "--sensor", str(tmp_path / "s.json"), "--json", "--repeats", "6", "--", *command]) == 0
    found = json.loads(capfd.readouterr().out)
    away = [abs(run["counter_energy_j"] - run["energy_j"]) for run in found["runs"]]
    assert max(away) > 3.0 * max(run["energy_std_j"] for run in found["runs"]), (
        "the readings' error alone does not cover the counter's steps"
    )
    assert not any("counter says" in note for note in found["notes"])

"""`collect run --std`: one run of a program, from as few runs as the asked error takes.  On a simulated board, which stays at rest."""

import json
import sys
from typing import Any

import pytest

from collector.cli import main

BOARD = "sim:a100-pcie-40gb"
QUICK = (sys.executable, "-S", "-c", "pass")
FEW, SHORT_S = 3, 0.2
"""So few runs are enough for a program that takes much longer than an update of the sensor, as every one does on a slow machine."""


def measured(capfd: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main(["run", "--gpu", BOARD, "--json", *options, "--", *QUICK]) == 0
    document: dict[str, Any] = json.loads(capfd.readouterr().out)
    return document


def test_a_short_program_is_run_as_often_as_the_asked_error_takes(capfd: pytest.CaptureFixture[str]) -> None:
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
        (("--std", "0.01", "--longest", "0.001s"), QUICK, 1, "more than 0.001 s allow"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    options: tuple[str, ...], command: tuple[str, ...], status: int, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--gpu", BOARD, "--quiet", *options, "--", *command]) == status
    said = capfd.readouterr().err.strip()
    assert words in said
    assert len(said.splitlines()) == 1

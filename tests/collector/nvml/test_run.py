"""`collect run`: the energy of a program on a board whose power the program itself decides."""

import json
import os
import signal
from pathlib import Path

import pytest

from collector.bench import open_bench
from tests.collector.nvml.stub import SLOTS, board_uuid, collect
from tests.collector.steady import DEADLINE_S, until
from tests.processes import COLLECT, PYTHON, piped

REST_W, BUSY_W, BUSY_S = 80.0, 320.0, 1.5
UUID = board_uuid()

PROGRAM = f"""
import json, mmap, os, struct, sys, time
def put(name, value):
    block[8 * {SLOTS!r}.index(name):][:8] = struct.pack("q", value)
with open(os.environ["WATTPRINT_NVML_STUB"], "r+b") as file:
    block = memoryview(mmap.mmap(file.fileno(), 0))
    stamps = [time.monotonic()]
    put("gap_ns", 0); put("power_mw", {1000 * BUSY_W:.0f})
    stamps.append(time.monotonic())
    while (now := time.monotonic()) < stamps[1] + {BUSY_S}:
        put("power_mw", {1000 * BUSY_W:.0f} + int(now * 50) % 3); time.sleep(0.02)
    stamps.append(time.monotonic())
    put("power_mw", {1000 * REST_W:.0f})
    stamps.append(time.monotonic())
print(os.environ["CUDA_VISIBLE_DEVICES"])
print(json.dumps(stamps))
sys.exit(int(sys.argv[1]))
"""
"""Is busy for `BUSY_S`, longer where the machine holds it up; says when it began and ended, each between two times."""

SENSOR = f"""{{
"gpu_uuid": "{UUID}", "driver": "570.86.15", "sensor": "nvml", "field": "instant", "averaging": "none",
"n_updates": 1000, "update_period_s": 0.02, "window_s": 0.0, "delay_s": 0.0,
"gain": 1.0, "gain_std": 0.001, "offset_w": 0.0, "offset_std_w": 0.1, "settle_s": 0.1
}}"""
LOOKS = 25


@pytest.fixture(autouse=True)
def at_rest(boards):
    boards.set(power_mw=int(1000 * REST_W), fail_energy=3)


@pytest.fixture
def known_sensor(tmp_path):
    """A sensor that shows the present power every 20 ms."""
    path = tmp_path / "sensor.json"
    path.write_text(SENSOR)
    return path


def test_energy_and_exit_status_of_a_program(environment, boards, known_sensor):
    elsewhere = {**environment, "CUDA_VISIBLE_DEVICES": "1"}
    ended = collect(elsewhere, *f"run --sensor {known_sensor} --json --".split(), *PYTHON, PROGRAM, "7")
    assert ended.returncode == 7, ended.stderr
    seen, stamps = ended.stderr.splitlines()
    assert seen == UUID, "the program's own output goes to stderr, and it sees the measured board alone"
    document = json.loads(ended.stdout)
    (run,) = document["runs"]
    assert run["rest_w"] == pytest.approx(REST_W, abs=0.5)
    began, began_at_last, ended_first, over = json.loads(stamps)
    gap_j = (BUSY_W - REST_W) * boards.get("gap_ns") * 1e-9
    """What nobody can tell: where the machine held up the readings, too."""
    least_j, most_j = (BUSY_W - REST_W) * (ended_first - began_at_last), (BUSY_W - REST_W) * (over - began)
    assert 0.95 * least_j - gap_j < run["above_rest_j"] < 1.05 * most_j + gap_j
    assert least_j - gap_j - 4.0 * run["energy_std_j"] < run["above_rest_j"] < most_j + gap_j + 4.0 * run["energy_std_j"]
    assert run["energy_j"] == pytest.approx(run["above_rest_j"] + run["rest_w"] * run["latency_s"])
    assert run["latency_s"] > BUSY_S
    assert document["simulated"] is False


def test_an_unknown_sensor_widens_the_error_and_a_frozen_counter_gives_no_energy(environment, boards):
    boards.set(fail_energy=0)
    ended = collect(environment, "run", "--json", "--", *PYTHON, PROGRAM, "0")
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert document["runs"][0]["energy_std_j"] > 0.04 * document["runs"][0]["energy_j"]
    assert any("collect sensor" in line for line in document["notes"])
    assert document["runs"][0]["counter_energy_j"] is None
    assert [line for line in document["runs"][0]["notes"] if "counter moved by 0 J" in line]


def put(**slots):
    """A program that changes the stand-in's board once its clock has been read so many times, and ends when it has been as often again."""
    reads = SLOTS.index("clock_reads")
    return "\n".join(
        (
            "import mmap, os, time",
            "file = open(os.environ['WATTPRINT_NVML_STUB'], 'r+b')",
            "block = memoryview(mmap.mmap(file.fileno(), 0)).cast('q')",
            "def looked_at():",
            f"    enough = block[{reads}] + {LOOKS}",
            f"    while block[{reads}] < enough: time.sleep(0.01)",
            "looked_at()",
            *(f"block[{SLOTS.index(name)}] = {value}" for name, value in slots.items()),
            "looked_at()",
        )
    )


def test_clocks_are_held_for_the_program_and_given_back_and_one_that_is_lost_meanwhile_is_said(environment, boards, known_sensor):
    ended = collect(environment, *f"run --freqs 900,1500 --sensor {known_sensor} --json --".split(), *PYTHON, put(sm_mhz=1830))
    assert ended.returncode == 3, ended.stderr
    document = json.loads(ended.stdout)
    assert [clock["asked_sm_clock_mhz"] for clock in document["clocks"]] == [900.0, 1500.0]
    assert (boards.get("lock_calls"), boards.get("lock_high"), boards.get("reset_calls")) == (2, 0, 1)
    for clock in (900, 1500):
        assert [line for line in document["notes"] if f"was not the {clock} MHz asked for: {clock} to 1830 MHz" in line]


def test_a_power_field_that_reads_nothing_possible_is_left_out_and_said(environment, boards):
    boards.set(power_mw=0, average_mw=119_000)
    ended = collect(environment, "run --json -- sleep 0.3")
    document = json.loads(ended.stdout)
    assert document["clocks"][0]["power_w"] == pytest.approx(119.0, abs=0.5)
    assert [line for line in document["notes"] if "instant reads 0 W, which no board draws" in line]
    assert "warning: power field instant reads 0 W" in ended.stderr
    boards.set(power_mw=0, average_mw=0)
    ended = collect(environment, "run -- true")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.count("\n") == 1
    assert "power is not known to its driver" in ended.stderr


def test_a_program_too_short_for_the_energy_counter_has_no_energy_by_it(environment, known_sensor, tmp_path):
    with open_bench("sim:h200-sxm") as bench:
        document = {**json.loads(known_sensor.read_text()), "gpu_uuid": bench.gpu.identity().uuid, "driver": bench.gpu.identity().driver}
    slow = tmp_path / "slow.json"
    slow.write_text(json.dumps({**document, "update_period_s": 10.0}))  # next to it a program is short on a slow machine, too
    short = collect(environment, f"run --gpu sim:h200-sxm --sensor {slow} --json -- true")
    (run,) = json.loads(short.stdout)["runs"]
    assert run["counter_energy_j"] is None
    assert [line for line in run["notes"] if "too little to tell this program" in line]


def test_an_interruption_stops_the_program_and_gives_the_clock_back(environment, boards, tmp_path):
    marker = tmp_path / "running"
    script = f"import pathlib, time; pathlib.Path({str(marker)!r}).write_text(str(__import__('os').getpid())); time.sleep(600)"
    process = piped(*COLLECT, "run", "--freqs", "900", "--", *PYTHON, script, env=environment)
    until(lambda: marker.exists() and marker.read_text())
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert errors.split("\n")[-2] == "collect: interrupted"
    assert "Traceback" not in errors
    assert boards.get("lock_high") == 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(marker.read_text()), 0)


def test_an_interruption_loses_the_run_that_was_going_on_and_no_other(environment, tmp_path):
    marker, out = tmp_path / "once", tmp_path / "run.json"
    script = f"[ -e {marker}1 ] && {{ touch {marker}2; exec sleep 600; }}; touch {marker}1"
    process = piped(*COLLECT, "run", "--repeats", "3", "--out", out, "--json", "--", "sh", "-c", script, env=environment)
    until(Path(f"{marker}2").exists)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    lost = "stopped: the run that was going on is lost, 1 before it are reported"
    assert errors.split("\n") == [lost, "collect: interrupted", ""]
    document = json.loads(output)
    assert len(document["runs"]) == 1
    assert lost in document["notes"]
    assert json.loads(out.read_text()) == document

"""The end-to-end check: a pass is what two runs differ by, errors are relative to what was measured."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.end_to_end import SIZES, EndToEndError, Pass, compared, difference, lines_of, main, reached

START_S, START_J, REST_W = 7.5, 900.0, 80.0
ESTIMATE = {"latency_s": 0.01, "power_w": 500.0, "energy_j": 5.0}


def run(passes, latency_s, energy_j, late_s=0.0):
    seconds = passes * latency_s
    return {
        "passes": passes,
        "seconds": seconds,
        "program_s": START_S + late_s + seconds,
        "energy_j": START_J + REST_W * late_s + passes * energy_j,
        "energy_std_j": 0.5,
        "rest_w": REST_W,
    }


@given(st.floats(1e-4, 0.5), st.floats(1.0, 700.0), st.integers(3, 500), st.integers(1, 5000), st.floats(0.0, 9.0))
def test_what_both_runs_share_falls_out_and_so_does_a_slower_start(latency_s, power_w, few, more, late_s):
    energy_j = latency_s * power_w
    found = difference(run(few, latency_s, energy_j, late_s), run(few + more, latency_s, energy_j))
    assert found.latency_s == pytest.approx(latency_s, rel=1e-6)
    assert found.power_w == pytest.approx(power_w, rel=1e-3, abs=1e-6 * START_J / latency_s)
    assert found.energy_std_j == pytest.approx(0.5 * 2**0.5 / more)


@pytest.mark.parametrize("other", [run(5, 0.1, 20.0), run(9, 0.01, 20.0), run(9, 2, -99)])
def test_a_longer_run_that_is_not_longer_is_refused(other):
    with pytest.raises(EndToEndError, match="measure again"):
        difference(run(5, 0.1, 20.0), other)


def test_errors_are_of_the_estimate_relative_to_the_measurement():
    measured = Pass(latency_s=0.010, energy_j=5.0, energy_std_j=0.01)
    one = compared(measured, {"latency_s": 0.011, "power_w": 475.0, "energy_j": 5.225})
    assert one["errors"] == {"latency": pytest.approx(0.10), "power": pytest.approx(-0.05), "energy": pytest.approx(0.045)}
    assert reached({"m": one})
    assert not reached({"m": one, "n": compared(measured, {"latency_s": 0.0113, "power_w": 500.0, "energy_j": 5.0})})
    assert "+10.0 %" in lines_of({"m": one})[1]


def keep_all_but_the_last(folder):
    """Results of an earlier call, which lack one model."""
    measured = {name: compared(Pass(latency_s=0.01, energy_j=5.0, energy_std_j=0.01), ESTIMATE) for name in list(SIZES)[:2]}
    (folder / "end-to-end.json").write_text(json.dumps({"rehearsal": False, "models": measured}))
    return measured


def without_programs(folder):
    """Status of a check all of whose programs fail."""
    return main(f"--gpu sim:h200-sxm --bundle a100-pcie-40gb-eager --folder {folder} --python /bin/false".split())


def test_a_model_that_hangs_is_stopped_and_named_in_one_line(tmp_path, repository, capsys):
    """Its process ends too: it would share the board with what is measured next."""
    python, pid = tmp_path / "python", tmp_path / "pid"
    traces = f"cp {repository}/examples/gpt2-prefill.json {tmp_path}/vision.json"
    python.write_text(f'#!/bin/sh\ncase "$*" in *trace*) {traces};; *) echo $$ > {pid}; exec sleep 60;; esac\n')
    python.chmod(0o755)
    keep_all_but_the_last(tmp_path)
    assert main(f"--gpu sim:h200-sxm --bundle h200-sxm --folder {tmp_path} --python {python} --limit-s 6 --rehearse".split()) == 1
    assert capsys.readouterr().err == "error: measuring vision: no end within 6 s, stopped\n"
    with pytest.raises((ProcessLookupError, FileNotFoundError)):  # a busy machine may not have begun it in time
        os.kill(int(pid.read_text()), 0)


def test_a_step_that_fails_is_named_in_one_line(tmp_path, capsys):
    assert without_programs(tmp_path) == 1
    told = capsys.readouterr().err
    assert [line.split(": ")[:2] for line in told.splitlines()] == [["error", f"tracing {name}"] for name in SIZES]
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_was_measured_is_kept_and_not_measured_again(tmp_path, capsys):
    measured = keep_all_but_the_last(tmp_path)
    assert without_programs(tmp_path) == 1  # the third fails
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert said.out.count("10.000 ms") == 4
    assert json.loads((tmp_path / "end-to-end.json").read_text())["models"] == measured

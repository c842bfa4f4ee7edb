"""`collect doctor` names what stands in the way, with the remedy, and changes nothing."""

import json
import os

import pytest

from tests.collector.nvml.stub import GPU_LOST, NOT_SUPPORTED, Boards, collect


def examined(environment, *arguments):
    """Exit status and findings by check."""
    ended = collect(environment, "doctor", "--json", *arguments)
    assert ended.stderr == ""
    return ended.returncode, {finding["check"]: finding for finding in json.loads(ended.stdout)}


def test_a_healthy_board_has_no_fault(boards, environment):
    _, findings = examined(environment)
    assert findings["GPU 0"]["state"] == "ok"
    assert "h200-sxm" in findings["GPU 0"]["seen"]
    assert findings["GPU 0 users"]["state"] == "ok"
    assert findings["GPU 0 power"]["seen"].startswith("instant: ")
    assert "a call takes " in findings["GPU 0 power"]["seen"]
    # The one-second field of this driver, for the measured `instant` of 25 ms: half a second of the limit of 700 W, less what those miss.
    assert findings["GPU 0 sensor"]["state"] == "ok"
    assert "low-pass 0.0252 s (h200 with driver 580.159.04, 4 run(s))" in findings["GPU 0 sensor"]["seen"]
    assert "up to 341 J of a load of 1 s with 700 W" in findings["GPU 0 sensor"]["seen"]
    assert not [finding for finding in findings.values() if finding["state"] == "fault"]
    assert (boards.get("lock_calls"), boards.get("reset_calls")) == (0, 0)


@pytest.mark.parametrize(
    "change, check, state, word",
    [
        ({"processes": 2}, "GPU 0 users", "fault", "5000000, 5000001"),
        ({"fail_fields": NOT_SUPPORTED, "fail_usage": NOT_SUPPORTED}, "GPU 0 power", "fault", "no power"),
        ({}, "GPU 0 power", "warning", "0 changes"),
    ],
)
def test_what_is_wrong_is_named_with_a_remedy(change, check, state, word, boards, environment):
    boards.set(**change)
    status, findings = examined(environment)
    assert status == 3
    assert findings[check]["state"] == state
    assert word in findings[check]["seen"]
    assert findings[check]["remedy"]


def test_a_lost_board_is_one_fault_among_the_findings_of_the_others(environment, tmp_path):
    boards = Boards(tmp_path / "boards", count=2)
    boards.set(0, fail_all=GPU_LOST)
    status, findings = examined(environment)
    assert status == 3
    assert (findings["board 0"]["state"], findings["GPU 1"]["state"]) == ("fault", "ok")
    assert "fallen off the bus" in findings["board 0"]["seen"]
    assert "restart the machine" in findings["board 0"]["remedy"]


def test_a_simulated_board_needs_no_driver_and_is_looked_at():
    environment = {**os.environ, "WATTPRINT_NVML_STUB": ""}
    status, findings = examined(environment, "--gpu", "sim:h200-sxm")
    assert (status, findings["board sim:h200-sxm"]["state"]) == (0, "ok")
    assert "driver" not in findings
    status, findings = examined(environment, "--gpu", "sim:h2000")
    assert (status, findings["board sim:h2000"]["state"]) == (3, "fault")

"""What the command writes and reads besides plain files: inputs, pipes, full disks, equal names."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.estimator.estimating import run


def test_a_full_disk_behind_stdout_is_one_line(bundle, workload):
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    command = [sys.executable, "-m", "estimator.cli", workload, "--bundle", bundle, "--quiet"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "stdout cannot be written (No space left" in done.stderr


def test_workloads_of_one_name_stay_apart(bundle, workload, tmp_path):
    other = tmp_path / "other.json"
    document = json.loads(Path(workload).read_text())
    other.write_text(json.dumps({**document, "operators": document["operators"][:1]}))
    _, out, _ = run(workload, other, f"--bundle {bundle} --freq 900")
    assert out.count("kernels of layers") == 2
    assert f"kernels of layers ({other}) at" in out

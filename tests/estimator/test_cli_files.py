"""What the command writes and reads besides plain files: inputs, pipes, full disks, equal names."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from estimator.cli import main
from tests.estimator.estimating import fails, run


def test_outputs_that_are_no_files_are_one_line(capsys, bundle, workload, tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    os.mkfifo(tmp_path / "pipe")
    for name, reason in (("a", "link"), ("pipe", "it is a pipe"), ("x" * 100_000, "too long")):
        assert reason in fails(capsys, workload, "--bundle", bundle, "-o", tmp_path / name)
    assert len(fails(capsys, workload, "--bundle", "x" * 100_000)) < 3000
    assert (tmp_path / "pipe").is_fifo()


def test_a_workload_on_a_device_or_with_a_field_twice_is_refused(capsys, bundle, workload, tmp_path):
    assert "it is a device, not a file" in fails(capsys, "/dev/zero", "--bundle", bundle)
    twice = tmp_path / "twice.json"
    twice.write_text(Path(workload).read_text().replace('"m": 4096', '"m": 4096, "m": 1'))
    assert "field 'm' twice" in fails(capsys, twice, "--bundle", bundle)


def test_a_full_disk_behind_stdout_is_one_line(bundle, workload):
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    command = [
        sys.executable,
        "-c",
        "import sys; from estimator.cli import main; sys.exit(main())",
        workload,
        "--bundle",
        bundle,
        "--quiet",
    ]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "stdout cannot be written (No space left" in done.stderr


def test_workloads_of_one_name_stay_apart(capsys, bundle, workload, tmp_path):
    other = tmp_path / "other.json"
    document = json.loads(Path(workload).read_text())
    other.write_text(json.dumps({**document, "operators": document["operators"][:1]}))
    _, out, _ = run(capsys, workload, other, "--bundle", bundle, "--freq", 900)
    assert out.count("kernels of layers") == 2
    assert f"kernels of layers ({other}) at" in out


@pytest.mark.parametrize("option", ["--out", "--bundle", "--gpu-spec"])
def test_an_empty_name_of_a_file_is_wrong_usage(capsys, bundle, workload, option):
    words = {"--bundle": bundle} | {option: ""}
    assert main([str(workload), *(word for pair in words.items() for word in pair)]) == 2
    assert "empty" in capsys.readouterr().err

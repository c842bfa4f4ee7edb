"""The unit file, where systemd's own tools judge it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from collector.daemon.settings import read_settings

STATED_EXPOSURE = 1.7
"""What docs/how-to/run-a-daemon.md states; 0 is the best, 10 the worst."""


@pytest.fixture
def unit(repository: Path, tmp_path: Path) -> Path:
    """The packaged unit, with a command that is there."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    text = (repository / "packaging" / "wattprint-collect.service").read_text()
    path = tmp_path / "wattprint-collect.service"
    path.write_text(text.replace("/usr/local/bin/collect", shutil.which("true") or "/bin/true"))
    return path


def test_systemd_understands_the_unit(unit: Path) -> None:
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze cannot verify without manual pages")
    complaints = [line for line in done.stderr.splitlines() if unit.name in line]
    assert done.returncode == 0, done.stderr
    assert complaints == []


def test_the_unit_is_as_hard_as_the_documentation_says(unit: Path, repository: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"Overall exposure level for \S+: (\d+\.\d)", done.stdout)
    if found is None:
        pytest.skip(f"systemd-analyze cannot judge a unit that is not installed: {(done.stderr or done.stdout).strip()[:200]}")
    assert float(found[1]) <= STATED_EXPOSURE
    assert f"{STATED_EXPOSURE:.1f}" in (repository / "docs" / "how-to" / "run-a-daemon.md").read_text()


def test_the_unit_waits_longer_than_the_daemon_drains(repository: Path) -> None:
    text = (repository / "packaging" / "wattprint-collect.service").read_text()
    stop = re.search(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert stop is not None
    assert int(stop[1]) > read_settings(repository / "packaging" / "daemon.toml").drain_s + 60
    for line in ("Type=notify", "WatchdogSec=60", "KillMode=mixed", "NoNewPrivileges=yes", "CapabilityBoundingSet="):
        assert line in text.splitlines()
    assert "ExecStopPost=/usr/local/bin/collect clocks restore" in text


def test_a_dataset_in_a_tmp_of_the_units_own_is_refused_and_not_lost_at_its_end(repository: Path) -> None:
    lines = (repository / "packaging" / "wattprint-collect.service").read_text().splitlines()
    assert "PrivateTmp=no" in lines or "ReadOnlyPaths=/tmp /var/tmp" in lines
    temporary = next(line.partition("TMPDIR=%t/")[2] for line in lines if line.startswith("Environment=TMPDIR="))
    made = next(line.partition("=")[2].split() for line in lines if line.startswith("RuntimeDirectory="))
    assert temporary in made, "programs that need a temporary file must find a folder for it"

"""The packaged units of systemd: its own tools judge them, and they agree with settings and documentation."""

import re
import shutil

import pytest

from collector.daemon.settings import read_settings as daemon_settings
from collector.devices.clock_helper import DEFAULT_SOCKET
from tests.processes import ended

EXPOSURE = {"wattprint-collect": (1.7, "run-a-daemon.md"), "wattprint-clocks": (1.3, "lock-clocks-without-root.md")}
"""Exposure by `systemd-analyze security` that a page of docs/how-to states; 0 is the best, 10 the worst."""


@pytest.fixture
def units(repository, tmp_path):
    """A folder with the packaged units, and a command that is there."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    for path in (repository / "packaging").glob("wattprint-c*.s[eo][rc]*"):
        (tmp_path / path.name).write_text(path.read_text().replace("/usr/local/bin/collect", shutil.which("true") or "/bin/true"))
    return tmp_path


def test_systemd_understands_the_units(units):
    done = ended("systemd-analyze", "verify", "--man=no", *units.iterdir())
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze cannot verify without manual pages")
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if "wattprint-" in line] == []


@pytest.mark.parametrize("unit", EXPOSURE)
def test_a_unit_is_as_hard_as_the_documentation_says(unit, units, repository):
    stated, page = EXPOSURE[unit]
    done = ended("systemd-analyze", "security", "--offline=true", "--no-pager", units / f"{unit}.service")
    found = re.search(r"Overall exposure level for \S+: (\d+\.\d)", done.stdout)
    if found is None:
        pytest.skip(f"systemd-analyze cannot judge a unit that is not installed: {(done.stderr or done.stdout).strip()[:200]}")
    assert float(found[1]) <= stated
    assert f"{stated:.1f}" in (repository / "docs" / "how-to" / page).read_text()


def test_the_daemons_unit_waits_longer_than_the_daemon_drains_and_has_a_temporary_folder(repository):
    text = (repository / "packaging" / "wattprint-collect.service").read_text()
    lines = text.splitlines()
    stop = re.search(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert int(stop[1]) > daemon_settings(repository / "packaging" / "daemon.toml").drain_s + 60
    wanted = {"Type=notify", "WatchdogSec=60", "KillMode=mixed", "NoNewPrivileges=yes", "CapabilityBoundingSet="}
    assert wanted | {"ExecStopPost=/usr/local/bin/collect clocks restore"} <= {line.removeprefix("-") for line in lines}
    assert "PrivateTmp=no" in lines or "ReadOnlyPaths=/tmp /var/tmp" in lines, "a dataset in /tmp would be lost"
    temporary = next(line.partition("TMPDIR=%t/")[2] for line in lines if line.startswith("Environment=TMPDIR="))
    assert temporary in next(line.partition("=")[2].split() for line in lines if line.startswith("RuntimeDirectory="))


def test_the_helpers_units_and_settings_speak_of_the_same_paths(repository):
    service = (repository / "packaging" / "wattprint-clocks.service").read_text().splitlines()
    listening = (repository / "packaging" / "wattprint-clocks.socket").read_text().splitlines()
    assert "ExecStart=/usr/local/bin/collect privileged serve --config /etc/wattprint/clocks.toml" in service
    assert "ExecStopPost=/usr/local/bin/collect clocks restore" in service
    assert {f"ListenStream={DEFAULT_SOCKET}", "SocketMode=0660", "SocketGroup=wattprint-clocks"} <= set(listening)
    assert "g wattprint-clocks -" in (repository / "packaging" / "wattprint-clocks.sysusers.conf").read_text().splitlines()

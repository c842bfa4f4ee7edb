"""The packaged units: systemd's own tools judge them, and the helper works as confined as they make it."""

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from collector.privileged.protocol import DEFAULT_SOCKET
from collector.privileged.settings import DEFAULT_AUDIT, SYSTEM_CONFIG, read_settings
from tests.collector.privileged.conftest import Line, Place, stopped

STATED_EXPOSURE = 1.3
"""What docs/how-to/lock-clocks-without-root.md states; 0 is the best, 10 the worst."""

PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_MDWE = 24, 38, 65
SYS_ADMIN, LAST_CAPABILITY = 21, 40


@pytest.fixture
def units(repository: Path, tmp_path: Path) -> Path:
    """A folder with the packaged units, and a command that is there."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    for suffix in ("service", "socket"):
        text = (repository / "packaging" / f"wattprint-clocks.{suffix}").read_text()
        (tmp_path / f"wattprint-clocks.{suffix}").write_text(text.replace("/usr/local/bin/collect", shutil.which("true") or "/bin/true"))
    return tmp_path


def test_systemd_understands_the_units(units: Path) -> None:
    names = [str(units / f"wattprint-clocks.{suffix}") for suffix in ("service", "socket")]
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *names], capture_output=True, text=True, check=False)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze cannot verify without manual pages")
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if "wattprint-clocks" in line] == []


def test_the_unit_is_as_hard_as_the_documentation_says(units: Path, repository: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(units / "wattprint-clocks.service")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"Overall exposure level for \S+: (\d+\.\d)", done.stdout)
    if found is None:
        pytest.skip(f"systemd-analyze cannot judge a unit that is not installed: {(done.stderr or done.stdout).strip()[:200]}")
    assert float(found[1]) <= STATED_EXPOSURE
    assert f"{STATED_EXPOSURE:.1f}" in (repository / "docs" / "how-to" / "lock-clocks-without-root.md").read_text()


def test_units_and_settings_speak_of_the_same_paths(repository: Path, place: Place) -> None:
    service = (repository / "packaging" / "wattprint-clocks.service").read_text().splitlines()
    listening = (repository / "packaging" / "wattprint-clocks.socket").read_text().splitlines()
    assert f"ExecStart=/usr/local/bin/collect privileged serve --config {SYSTEM_CONFIG}" in service
    assert "ExecStopPost=/usr/local/bin/collect clocks restore" in service
    assert {f"ListenStream={DEFAULT_SOCKET}", "SocketMode=0660", "SocketGroup=wattprint-clocks"} <= set(listening)
    assert "g wattprint-clocks -" in (repository / "packaging" / "wattprint-clocks.sysusers.conf").read_text().splitlines()
    text = (repository / "packaging" / "clocks.toml").read_text()
    place.config.write_text(text.replace('"wattprint-clocks"', '"root"'))
    settings = read_settings(place.config)
    assert (settings.socket, str(settings.audit_log)) == (DEFAULT_SOCKET, DEFAULT_AUDIT)
    assert (settings.lease_s, settings.silence_s, settings.shared_boards) == (86_400.0, 60.0, False)


def confined() -> None:
    """Between fork and exec: one capability, no new privilege, no memory that is both written and executed (Linux 6.3)."""
    system = ctypes.CDLL(None)
    for capability in range(LAST_CAPABILITY + 1):
        if capability != SYS_ADMIN:
            system.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    system.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    system.prctl(PR_SET_MDWE, 1, 0, 0, 0)


def test_the_helper_works_as_confined_as_the_unit_makes_it(place: Place, opened: Callable[[], Line]) -> None:
    helper = place.start(preexec_fn=confined)
    client = opened()
    assert client.lock(900)["ok"]
    assert place.boards.get("lock_high") == 900
    assert stopped(helper) == 0
    assert place.boards.get("lock_high") == 0

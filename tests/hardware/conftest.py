"""Tests on a board run in whatever environment its machine has, and a kernel that breaks the context costs its own test alone.

What other packages there warn of is shown and fails nothing.  After a lost context every further test of the process would fail: the
run ends, the test is noted in the file that WATTPRINT_KILLERS names, and the next run passes over it (`scripts/real_card.py tests` repeats
by itself).
"""

import os
from pathlib import Path

import pytest

from collector.errors import DeviceError
from microbench.errors import DeviceLostError
from tests.hardware.board import open_real_runner, real_specification


def _killers():
    named = os.environ.get("WATTPRINT_KILLERS")
    return Path(named) if named else None


def pytest_collection_modifyitems(items):
    """Warnings are errors everywhere else; here versions of CuPy, PyTorch and NumPy meet that nobody chose."""
    file = _killers()
    known = file.read_text(encoding="utf-8").splitlines() if file is not None and file.is_file() else []
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.filterwarnings("default"))
        if item.nodeid in known:
            item.add_marker(pytest.mark.skip(reason=f"it broke the context in a run before ({file}); remove its line to try again"))


@pytest.fixture(scope="module")
def runner():
    with open_real_runner() as opened:
        yield opened


@pytest.fixture(scope="module")
def spec():
    return real_specification()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Notes a test that lost the board or its context, and ends the run."""
    report = yield
    file = _killers()
    lost = call.when == "call" and call.excinfo is not None and call.excinfo.errisinstance((DeviceError, DeviceLostError))
    if file is not None and lost:
        with file.open("a", encoding="utf-8") as noted:
            noted.write(f"{item.nodeid}\n")
        item.session.shouldstop = f"{item.name} broke the context; the next run passes over it"
    return report

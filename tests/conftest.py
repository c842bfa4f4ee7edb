"""What all tests share: where recorded data lie, and which tests need hardware."""

import os
import signal
import threading
from pathlib import Path

import pytest
from hypothesis import settings

from microbench.errors import CompileError
from microbench.toolchain.compile import find_toolchain
from tests.browser import NoAnswerError, find_chromium, open_pages

REPOSITORY = Path(__file__).resolve().parent.parent

# Examples are the same in every run, and a busy machine is no failure.
settings.register_profile("wattprint", derandomize=True, deadline=None)
settings.load_profile("wattprint")

# Bundles that a developer keeps for himself are not what is tested.
os.environ["WATTPRINT_BUNDLES"] = str(REPOSITORY / "build" / "no-such-store")

# Tests send signals to processes of their own.  One that is ignored here (nohup, a shell's background job) would be ignored
# there; one that is handled is not handed down, and does as little here.
if threading.current_thread() is threading.main_thread():
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: None)


@pytest.fixture(scope="session")
def repository():
    """Root of the repository."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data():
    """Folder of recorded measurements: WATTPRINT_SHARED_DATA, or `shared/data` beside the repository."""
    named = os.environ.get("WATTPRINT_SHARED_DATA")
    folder = Path(named) if named else REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"recorded measurements are not here ({folder} is missing; WATTPRINT_SHARED_DATA names another folder)")
    return folder


@pytest.fixture(scope="session")
def toolchain():
    """ptxas and nvdisasm, from the wheels of the extra `ptx` or from the PATH; without them what needs them is not tested."""
    try:
        return find_toolchain()
    except CompileError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def open_page(tmp_path_factory):
    """Opens an empty page of a headless browser."""
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium on the PATH, and WATTPRINT_CHROMIUM names none (Debian: apt install chromium)")
    with open_pages(program, tmp_path_factory.mktemp("chromium")) as opened:

        def open_or_skip():
            try:
                return opened()
            except NoAnswerError as error:
                pytest.skip(f"Chromium does not run on this machine: {error}")

        yield open_or_skip


def _why_no_gpu():
    """Why tests on a GPU cannot run here; empty where they can."""
    try:
        import pynvml
    except ImportError:
        return "nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return f"no NVIDIA driver answers: {error}"
    return "" if pynvml.nvmlDeviceGetCount() else "the driver sees no GPU"


def pytest_collection_modifyitems(items):
    """Tests marked gpu or pmd are skipped, with the reason, where their hardware is missing."""
    if any("gpu" in item.keywords for item in items) and (reason := _why_no_gpu()):
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason=reason))
    if not os.environ.get("WATTPRINT_PMD_PORT"):
        for item in items:
            if item.get_closest_marker("pmd"):
                item.add_marker(pytest.mark.skip(reason="no PMD: WATTPRINT_PMD_PORT names its serial port"))

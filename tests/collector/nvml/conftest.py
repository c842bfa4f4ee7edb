"""The stand-in for the driver's library, compiled once, its boards, and the environment of a process that uses it."""

import ctypes
import os

import pytest

from tests.collector.nvml.stub import Boards, built


@pytest.fixture(scope="session")
def library_folder(tmp_path_factory):
    return built(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def boards(tmp_path):
    return Boards(tmp_path / "boards")


@pytest.fixture
def environment(boards, library_folder, tmp_path):
    kept = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    stub = {"LD_LIBRARY_PATH": str(library_folder), "WATTPRINT_NVML_STUB": str(boards.path)}
    return {**kept, **stub, "WATTPRINT_STATE": str(tmp_path / "state")}


@pytest.fixture
def driver(environment, library_folder, monkeypatch):
    """One H200 on a new driver in this process.  The library stays loaded, but is a driver only where the variable names a block."""
    ctypes.CDLL(str(library_folder / "libnvidia-ml.so.1"))
    for name in ("WATTPRINT_NVML_STUB", "WATTPRINT_STATE"):
        monkeypatch.setenv(name, environment[name])

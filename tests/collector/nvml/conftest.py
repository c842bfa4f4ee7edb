"""The stand-in for the driver's library, compiled once, its boards, and the environment of a process that uses it."""

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

"""The stand-in for the driver's library, compiled once."""

from pathlib import Path

import pytest

from tests.collector.nvml.stub import built


@pytest.fixture(scope="session")
def library_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("nvml"))

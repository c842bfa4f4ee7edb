"""The first real board of this machine, for tests marked `gpu`; its clocks and limits are never touched."""

import time
from contextlib import contextmanager

import pytest

from collector.devices.board_runner import open_board_runner
from collector.devices.nvml import open_board
from estimator import SpecificationError, load_gpu
from microbench.errors import UnsupportedError
from microbench.runners.cupy_device import load_cupy

BOARD = "0"
"""NVML index of the board that tests run on."""


def real_specification():
    """Specification of the board; skips where it is not a known one."""
    with open_board(BOARD) as board:
        name = board.gpu.identity().canonical_name
    try:
        return load_gpu(name)
    except SpecificationError as error:
        pytest.skip(f"no specification for this board: {error}")


@contextmanager
def open_real_runner(attention="pytorch"):
    """The runner on the board; skips where CuPy is not installed."""
    try:
        load_cupy()
    except UnsupportedError as error:
        pytest.skip(str(error))
    with open_board(BOARD) as board:
        address = board.gpu.identity().pci_address
    with open_board_runner(address, real_specification(), time.monotonic_ns, attention=attention) as runner:
        yield runner

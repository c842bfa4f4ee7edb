"""Builds the stand-in for NVML with gcc, and the block of shared memory through which a test moves its boards."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.processes import COLLECT, ended

SOURCE = Path(__file__).with_name("stub.c")
SLOTS = re.search(r"enum slot \{(.*?)\}", SOURCE.read_text(), re.DOTALL)[1].lower().replace(",", " ").split()
SERIES = os.getpid()
"""Ends the UUIDs of this process's boards: who measures on a board claims it on the whole machine, and tests run side by side."""
SLOTS_PER_BOARD = 64
MOST_BOARDS = 8
PRODUCTS = re.findall('"(.*?)"', re.search(r"products\[\] = .*", SOURCE.read_text())[0])
INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, GPU_LOST, RESET_REQUIRED, VERSION_MISMATCH = 2, 3, 4, 15, 16, 18
USUAL = {
    "power_mw": 120_500,
    "average_mw": 119_000,
    "module_mw": -1,
    "energy_mj": 5_000_000,
    "sm_mhz": 1830,
    "mem_mhz": 3201,
    "temp_c": 41,
    "limit_mw": 700_000,
    "may_lock": 1,
    "value_type": 1,
}


def board_uuid(index=0):
    """UUID of one of the stand-in's boards."""
    return f"GPU-{0xABC00000 + index:08x}-1111-2222-3333-{SERIES:012x}"


def built(folder, *, old_driver=False):
    """The folder that holds the compiled library; skips where there is no C compiler."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc here: the stand-in for NVML cannot be compiled")
    target = folder / ("old" if old_driver else "new")
    target.mkdir(exist_ok=True)
    command = [compiler, "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-Wl,-soname,libnvidia-ml.so.1"]
    define = ["-DOLD_DRIVER"] if old_driver else []
    subprocess.run([*command, *define, "-o", str(target / "libnvidia-ml.so.1"), str(SOURCE)], check=True)
    return target


def collect(environment, *words):
    """A `collect` on the stand-in; a single text is split as a shell does."""
    return ended(*COLLECT, *(shlex.split(words[0]) if len(words) == 1 else words), env=environment)


class Boards:
    """The stand-in's boards: `boards.set(power_mw=…)`, `boards.get("lock_high")`."""

    def __init__(self, path, count=1):
        path.write_bytes(bytes(8 * SLOTS_PER_BOARD * MOST_BOARDS))
        self.path = path
        self._block = np.memmap(path, dtype=np.int64, mode="r+", shape=(MOST_BOARDS, SLOTS_PER_BOARD))
        for index in range(count):
            self.set(index, **USUAL)
        self.set(0, boards=count, series=SERIES)

    def set(self, index=0, **values):
        """Set numbers of one board."""
        for name, value in values.items():
            self._block[index, SLOTS.index(name)] = value

    def get(self, name, index=0):
        """A number of one board."""
        return int(self._block[index, SLOTS.index(name)])

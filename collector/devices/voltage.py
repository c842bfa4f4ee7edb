"""The core voltage from `nvidia-smi`: NVML has no call for it."""

import math
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

PATIENCE_S: Final = 10.0
"""Longest wait for a driver's answer."""

GRAPHICS_VOLTAGE: Final = re.compile(r"^\s*Graphics\s*:\s*([0-9]+(?:\.[0-9]+)?)\s*mV\s*$", re.MULTILINE)


@contextmanager
def open_voltage(uuid: str) -> Iterator[Callable[[], float] | None]:
    """The last voltage [V] of the board of that UUID, read in a thread; None if `nvidia-smi` is missing or shows none for it."""
    command = (shutil.which("nvidia-smi") or "", "-q", "-d", "VOLTAGE", "-i", uuid)
    latest_v = _shown_voltage_v(command) if command[0] else None
    if latest_v is None:
        yield None
        return
    stop = threading.Event()

    def read() -> None:
        nonlocal latest_v
        while not stop.wait(2.0):  # each reading starts a process, and the voltage under a held clock changes slowly
            shown_v = _shown_voltage_v(command)
            latest_v = math.nan if shown_v is None else shown_v

    thread = threading.Thread(target=read, name="poll voltage", daemon=True)
    thread.start()
    try:
        yield lambda: latest_v
    finally:
        stop.set()
        thread.join(PATIENCE_S)


def voltage_in(text: str) -> float | None:
    """The graphics voltage in the output of `nvidia-smi -q -d VOLTAGE` [V]; None for N/A or a missing value."""
    found = GRAPHICS_VOLTAGE.search(text)
    return float(found[1]) * 1e-3 if found else None


def _shown_voltage_v(command: tuple[str, ...]) -> float | None:
    try:
        answer = subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return voltage_in(answer.stdout.decode("utf-8", "replace")) if answer.returncode == 0 else None

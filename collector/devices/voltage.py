"""The core voltage from `nvidia-smi`: NVML has no call for it."""

import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

PATIENCE_S: Final = 10.0
"""Longest wait for a driver's answer."""

GRAPHICS_VOLTAGE: Final = re.compile(r"^\s*Graphics\s*:\s*([0-9]+(?:\.[0-9]+)?)\s*mV\s*$", re.MULTILINE)


class VoltageReader:
    """Reads the voltage periodically in a thread; `latest_v` is the last value [V]."""

    def __init__(self, command: tuple[str, ...], first_v: float) -> None:
        self._command = command
        self._latest_v = first_v
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="poll voltage", daemon=True)

    def latest_v(self) -> float:
        """The last voltage seen [V]."""
        return self._latest_v

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Stop reading."""
        self._stop.set()
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        while not self._stop.wait(2.0):  # between two readings: each starts a process, and the voltage under a held clock changes slowly
            volt = _shown_voltage_v(self._command)
            self._latest_v = float("nan") if volt is None else volt


@contextmanager
def open_voltage(uuid: str) -> Iterator[VoltageReader | None]:
    """A reader for the board of that UUID; None if `nvidia-smi` is missing or shows no voltage for it."""
    program = shutil.which("nvidia-smi")
    command = (program or "", "-q", "-d", "VOLTAGE", "-i", uuid)
    first = _shown_voltage_v(command) if program else None
    if first is None:
        yield None
        return
    reader = VoltageReader(command, first)
    reader.start()
    try:
        yield reader
    finally:
        reader.stop()


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

"""Whether a daemon could run with its settings, found out without leaving anything behind."""

import os
from pathlib import Path

from collector.boards import named_boards
from collector.daemon.schema import check_own_folder
from collector.daemon.settings import DaemonSettings, daemon_log
from collector.errors import DaemonError


def check_settings(settings: DaemonSettings) -> None:
    """Every board is there, state folder and log can be written, the sensor's file can be read; nothing is made or changed.

    Raises DaemonError, and what `named_boards` raises.
    """
    named_boards(settings.gpus)
    _check_place(settings.state_folder, "state_folder")
    log = daemon_log(settings)
    if log.is_dir():
        raise DaemonError(f"{log}: is a folder; name a file as log_file")
    if log.parent != settings.state_folder and not os.access(log.parent, os.W_OK):
        raise DaemonError(f"{log}: cannot be written; name another log_file")
    sensor = settings.defaults.sensor
    if sensor and not os.access(sensor, os.R_OK):
        raise DaemonError(f"{sensor}: cannot be read; `collect sensor --out FILE` writes one, or leave `sensor` out of [defaults]")


def _check_place(folder: Path, key: str) -> None:
    """A folder that is there and one's own, or that could be made."""
    if folder.exists() or folder.is_symlink():
        check_own_folder(folder, own=True)
        return
    above = next(parent for parent in folder.parents if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise DaemonError(f"{folder}: no state folder can be made there ({above} is no folder that you may write); name another as {key}")

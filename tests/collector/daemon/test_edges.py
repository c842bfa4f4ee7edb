"""The daemon's edges: the service manager, locks, logs, the words of a worker."""

import fcntl
import os
import signal
import socket
import threading
from errno import ENOSPC

import pytest

from collector.boards import board_words, named_boards, several
from collector.campaigns.running import Progress
from collector.daemon.log_file import LARGEST_BYTES, LogFile, Notifier
from collector.daemon.reporting import StopRequest, Tally, cause_of
from collector.daemon.store import LOCK_NAME, daemon_lock, daemon_runs, locked, worker_lock_path
from collector.devices.polling import HostClock
from collector.errors import BoardBusyError, BoardLostError, ClockError, CollectorError, DaemonError, DatasetError, DeviceError, DriverError


def test_the_service_manager_gets_fields_of_one_line_each(tmp_path):
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(path)
        end.settimeout(60)
        notifier = Notifier({"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "5"}, 5)
        assert notifier.watchdog_s == 30.0
        notifier.send(READY=1, STATUS="a\nWATCHDOG=1")
        assert end.recv(4096) == b"READY=1\nSTATUS=a WATCHDOG=1"
    Notifier({"NOTIFY_SOCKET": "/nowhere/at/all"}, 1).send(READY=1)  # ends nothing


def test_one_daemon_a_folder_and_who_only_asks_for_it_keeps_none_from_starting(tmp_path):
    asking = locked(tmp_path / LOCK_NAME, fcntl.LOCK_SH)
    assert asking is not None
    assert not daemon_runs(tmp_path), "those who ask do not take each other for it"
    threading.Timer(0.1, os.close, [asking]).start()
    with daemon_lock(tmp_path):
        assert daemon_runs(tmp_path)
        with pytest.raises(DaemonError, match="another daemon"), daemon_lock(tmp_path):
            pass
    assert not daemon_runs(tmp_path)


def test_boards_have_locks_of_their_own_whatever_they_are_called(tmp_path):
    names = ["GPU-1", "GPU-2", "sim:a", "sim-a", "sim:/x/a.toml", "sim:" + "x" * 300, "../../etc", "ä/\n"]
    paths = [worker_lock_path(tmp_path, name) for name in names]
    assert len(set(paths)) == len(names)
    for path in paths:
        assert path.parent == tmp_path
        lock = locked(path)
        os.close(lock)


def test_only_causes_that_may_pass_have_a_name():
    full = DatasetError("cannot be written")
    full.__cause__ = OSError(ENOSPC, "No space left on device")
    named = {
        BoardBusyError("x"): "board_busy",
        BoardLostError("x"): "board_lost",
        DriverError("x"): "driver_unusable",
        full: "disk_full",
        ClockError("x"): "",
        DatasetError("x"): "",
        CollectorError("x"): "",
    }
    assert {error: cause_of(error) for error in named} == named


def test_a_stop_waits_for_the_kernel_unless_none_runs_or_it_is_asked_twice():
    stop = StopRequest()
    with pytest.raises(KeyboardInterrupt):
        stop.ask(signal.SIGTERM, None)
    stop.within_row = True
    stop.ask(signal.SIGTERM, None)
    assert stop.asked
    with pytest.raises(KeyboardInterrupt):
        stop.ask(signal.SIGTERM, None)
    other = StopRequest()
    other.within_row = True
    with pytest.raises(KeyboardInterrupt):
        other.ask(signal.SIGINT, None)


def test_words_for_boards_name_each_once():
    assert [several(text) for text in ("0,1", " ALL ", "sim:a100-pcie-40gb")] == [True, True, False]
    assert board_words(" 0 , 1") == ("0", "1")
    names = ["sim:a100-pcie-40gb", "sim:h200-sxm"]
    assert [(board.key, board.simulated) for board in named_boards(names)] == [(name, True) for name in names]
    for words, reason in (
        (2 * names, "named twice"),
        (["sim:h200", "sim:NVIDIA H200"], "sim:h200-sxm is named twice"),
        (["replay:x"], "recording"),
    ):
        with pytest.raises(DeviceError, match=reason):
            named_boards(words)
    for text in ("0,", ",", "0,,1", ""):
        with pytest.raises(DeviceError, match="names no board"):
            board_words(text)


def test_a_log_is_set_aside_when_it_is_large_and_one_that_cannot_be_written_stops_nothing(tmp_path):
    log = LogFile(tmp_path / "daemon.log")
    log.write("one\ntwo")
    with (tmp_path / "daemon.log").open("ab") as stream:
        stream.truncate(LARGEST_BYTES + 1)
    log.write("three")
    assert [line.split(" ", 1)[1] for line in (tmp_path / "daemon.log").read_text().splitlines()] == ["three"]
    assert (tmp_path / "daemon.log.1").stat().st_size > LARGEST_BYTES
    (tmp_path / "file").touch()
    heard = []
    LogFile(tmp_path / "file" / "daemon.log", heard.append).write("still heard")
    assert heard[0].endswith("still heard")


def test_each_report_counts_from_the_beginning_so_that_a_lost_one_takes_nothing_with_it():
    row = {"family": "gemm", "operator": "linear", "precision": "fp16", "flags": ["throttled"], "power_w": 250.0}
    steps = [(3, None), (3, None), (4, row), (5, None), (6, {**row, "flags": []})]  # three rows were there; the fifth point could not run
    tally = Tally(HostClock())
    assert tally.message(Progress(phase="warming up", done=3, total=9)).rows is None
    told = [tally.message(Progress(phase="measuring", done=done, total=9, row=found)) for done, found in steps]
    assert [(one.rows, one.flagged, one.refused) for one in told][-1] == (5, 1, 1)
    assert (told[2].power_w, told[3].power_w) == (250.0, None)
    assert told[0].eta_s is None
    assert told[-1].eta_s is not None

"""Who else computes on a board: through the real bindings, against the stand-in for the driver."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.collector.nvml.stub import Boards, built

WATCH = """
import json, sys
from collector.devices.nvml import open_board
with open_board("0") as board:
    for line in sys.stdin:
        print(json.dumps(board.gpu.state().other_processes), flush=True)
"""


def test_processes_that_come_later_are_seen_and_this_one_is_not(tmp_path: Path) -> None:
    boards = Boards(tmp_path / "boards")
    boards.set(processes=1)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(built(tmp_path)), "WATTPRINT_NVML_STUB": str(boards.path)}
    watcher = subprocess.Popen(
        [sys.executable, "-c", WATCH], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )  # fmt: skip
    assert watcher.stdin is not None
    assert watcher.stdout is not None

    def seen() -> list[int]:
        assert watcher.stdin is not None
        assert watcher.stdout is not None
        watcher.stdin.write("now\n")
        watcher.stdin.flush()
        return list(json.loads(watcher.stdout.readline()))

    assert seen() == [1000]
    boards.set(processes=2)
    assert 1000 in seen(), "in a container the second one may be this process; nobody can tell"
    boards.set(processes=3)
    assert {1000, 1002} <= set(seen())
    boards.set(processes=0)
    assert seen() == []
    watcher.stdin.close()
    assert watcher.wait(300) == 0
    watcher.stdout.close()

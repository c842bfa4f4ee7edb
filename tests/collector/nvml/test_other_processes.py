"""Who else computes on a board: through the real bindings, against the stand-in for the driver."""

import json
import subprocess
import sys

WATCH = """
import json, sys
from collector.devices.nvml import open_board
with open_board("0") as board:
    for line in sys.stdin:
        print(json.dumps(board.gpu.state().other_processes), flush=True)
"""


def test_processes_that_come_later_are_seen_and_this_one_is_not(boards, environment):
    boards.set(processes=1)
    command = [sys.executable, "-c", WATCH]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as watcher:
        seen = []
        for count in (1, 2, 3, 0):
            boards.set(processes=count)
            watcher.stdin.write("now\n")
            watcher.stdin.flush()
            seen.append(json.loads(watcher.stdout.readline()))
        watcher.stdin.close()
        assert watcher.wait(300) == 0
    assert (seen[0], seen[3]) == ([1000], [])
    assert 1000 in seen[1], "in a container the second one may be this process; nobody can tell"
    assert {1000, 1002} <= set(seen[2])

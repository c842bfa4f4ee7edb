"""Stopping a command: SIGTERM, and a terminal that goes away, end it like Ctrl-C."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from collector.commands.output import note

STOPPING: Final = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stoppable(out: Path | None = None) -> Iterator[None]:
    """SIGTERM and SIGHUP stop like Ctrl-C; where a dataset is written at `out`, each says how to go on.

    A SIGHUP that is ignored (nohup) stays ignored.
    """

    def stop(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in STOPPING}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        yield
    except KeyboardInterrupt:
        if out is not None:
            from collector.dataset.log import log_path

            if log_path(out).is_file():
                note(f"stopped; clocks are given back, finished rows are in {log_path(out)}: the same command with --resume goes on")
            elif out.exists():
                note(f"stopped before the first new row; clocks are given back, {out} is as it was")
            else:
                note("stopped before the first row; clocks are given back, nothing is left behind: the same command begins anew")
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

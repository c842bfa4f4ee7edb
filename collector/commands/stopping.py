"""Stopping a command: SIGTERM ends it like Ctrl-C."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from collector.commands.output import note


@contextmanager
def stoppable(out: Path | None = None) -> Iterator[None]:
    """SIGTERM stops like Ctrl-C; where a dataset is written at `out`, either says how to go on."""

    def stop(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        if out is not None:
            from collector.dataset.log import log_path

            if log_path(out).is_file():
                note(f"stopped; clocks are given back, finished rows are in {log_path(out)}: the same command with --resume goes on")
        raise
    finally:
        signal.signal(signal.SIGTERM, before)

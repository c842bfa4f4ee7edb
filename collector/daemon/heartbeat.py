"""Whether a daemon that should be at work is: what its last sign of life says."""

from typing import Final

from collector.daemon.jobs import DaemonState

STALE_S: Final = 60.0
"""A daemon that has not written for so long does not work: it writes every five seconds, and before anything that lasts [s]."""
SHOWN_FROM_S: Final = 7200.0
"""From this age on it is given in hours [s]."""


def silent_s(daemon: DaemonState, now_unix_s: float) -> float:
    """How long a daemon has not said that it lives [s]; nan where there never was one.  `now_unix_s` is the time of day [s since 1970]."""
    return now_unix_s - daemon.beat_unix_s


def heartbeat_complaint(daemon: DaemonState, now_unix_s: float) -> str:
    """What is wrong with a daemon and what to do, in one line; "" for one that works, and for one that has ended as it was told.

    One that holds its lock and is silent hangs; one whose lock is free and that was not told to end has died.
    """
    silence_s = silent_s(daemon, now_unix_s)
    if not daemon.pid:
        return ""
    if daemon.running and silence_s > STALE_S:
        return (
            f"the daemon, process {daemon.pid}, has said nothing for {_age(silence_s)}: it hangs, is stopped or cannot write; look at "
            f"`collect logs`, then end it with `kill -KILL {daemon.pid}` and start it again: its jobs go on"
        )
    if not daemon.running and not daemon.draining:
        return (
            f"the last daemon, process {daemon.pid}, died without a word, last heard of {_age(silence_s)} ago; "
            "`collect daemon --config FILE` starts one that goes on with its jobs"
        )
    return ""


def _age(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < SHOWN_FROM_S else f"{seconds / 3600.0:.0f} h"

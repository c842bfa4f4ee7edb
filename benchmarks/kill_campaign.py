"""Test of campaigns that are interrupted at random moments.

    python benchmarks/kill_campaign.py [--kills N] [--others N] [--only ENDING] [--seed N] [--json]

Real processes run on a simulated board; a stand-in for NVML holds its clock through the driver's own calls (gcc is needed).  A process is
killed with SIGKILL `--kills` times, and ended `--others` times each by SIGTERM, SIGINT, SIGHUP, a full disk, a board that falls off
the bus, a meter that is unplugged.  After every interruption no finished row is lost or doubled, the dataset opens, and the clock is reset
within two seconds; resumed campaigns end with the rows of an undisturbed one.  Exit status 1 if any of these fails.
"""

import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.collector.interruption.referee import (
    WITHIN_S,
    Arena,
    Tally,
    bout,
    fill_disk,
    lose_board,
    open_arena,
    unplug_meter,
)

MOST_BLOWS = 6  # interruptions of one campaign
SMALL_DISK = "1m"


@contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A file system of a megabyte; None if this user cannot make one."""
    place = folder / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "tmpfs", str(place)], capture_output=True, check=False)
    if mounted.returncode:
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def signalled(arena: Arena, ending: int, blows: int, chance: random.Random, told: Callable[[str], None]) -> None:
    """Run campaigns that a signal ends, until `blows` interruptions have occurred."""
    number, fallen = arena.tally.finished + 1000 * ending, 0
    while fallen < blows:
        number += 1
        fallen += bout(arena, number, chance, ending=ending, blows=min(MOST_BLOWS, blows - fallen))
        told(f"{signal.Signals(ending).name}: {fallen} of {blows}")


def repeated(mishap: Callable[[Arena, int, random.Random], None], arena: Arena, times: int, chance: random.Random) -> None:
    """Repeat the same fault `times` times."""
    for number in range(times):
        mishap(arena, number, chance)


def shown(name: str, tally: Tally, seconds: float, failure: str) -> dict[str, object]:
    """Result of one kind of interruption; `failure` names the broken guarantee."""
    back = np.array(tally.clocks_back_s or [0.0])
    return {
        "ending": name,
        "blows": tally.blows,
        "clock_held_when_hit": tally.locked_when_hit,
        "rows_told_of": tally.rows,
        "rows_lost": tally.lost,
        "rows_doubled": tally.doubled,
        "campaigns_brought_to_their_end": tally.finished,
        "clock_back_median_s": round(float(np.median(back)), 3),
        "clock_back_longest_s": round(float(back.max()), 3),
        "blows_after": dict(sorted(tally.at.items(), key=lambda item: -item[1])),
        "wall_s": round(seconds, 1),
        "failure": failure,
    }


@click.command()
@click.option("--kills", default=300, show_default=True, help="Times that a process is killed with SIGKILL.")
@click.option("--others", default=20, show_default=True, help="Times that it is ended in each other way.")
@click.option("--only", default="", help="Only the endings whose name begins so, such as SIGKILL or disk.")
@click.option("--seed", default=1, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(kills: int, others: int, only: str, seed: int, as_json: bool) -> None:
    """Interrupt campaigns and check their results."""
    chance = random.Random(seed)
    results = []

    def told(line: str) -> None:
        click.echo(line, err=True)

    with tempfile.TemporaryDirectory() as folder, open_arena(Path(folder)) as arena, small_disk(Path(folder)) as small:
        disk = "disk full" if small else "disk full (a limit on files)"
        endings: list[tuple[str, Callable[[], None]]] = [("SIGKILL", lambda: signalled(arena, signal.SIGKILL, kills, chance, told))]
        for ending in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            endings.append((ending.name, partial(signalled, arena, ending, others, chance, told)))
        mishaps = ((disk, partial(fill_disk, folder=small)), ("board lost", lose_board), ("meter unplugged", unplug_meter))
        for name, mishap in mishaps:
            endings.append((name, partial(repeated, mishap, arena, others, chance)))
        for name, run in endings:
            if not name.startswith(only):
                continue
            arena.tally, begun, failure = Tally(), time.monotonic(), ""
            try:
                run()
            except AssertionError as error:
                failure = str(error)
                arena.boards.set(fail_all=0)
            results.append(shown(name, arena.tally, time.monotonic() - begun, failure))
            told(json.dumps(results[-1]))
    late = [result for result in results if float(str(result["clock_back_longest_s"])) > WITHIN_S]
    broken = [result for result in results if result["failure"]]
    if as_json:
        click.echo(json.dumps(results, indent=2))
    else:
        for result in results:
            click.echo(
                f"{result['ending']:<16}{result['blows']:>5} blows, {result['rows_told_of']} rows told of, {result['rows_lost']} lost, "
                f"{result['rows_doubled']} doubled, {result['campaigns_brought_to_their_end']} campaigns as undisturbed; clock back after "
                f"{result['clock_back_median_s']:.3f} s, {result['clock_back_longest_s']:.3f} s at most"
                f"{'; FAILED: ' if result['failure'] else ''}{result['failure']}"
            )
    sys.exit(1 if late or broken else 0)


if __name__ == "__main__":
    main()

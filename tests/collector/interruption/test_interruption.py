"""However a campaign ends: no finished row is lost or doubled, and the board is as it was found.

A quick part of `benchmarks/kill_campaign.py`, which does it three hundred times.
"""

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.devices.clock_record import left_records
from tests.collector.interruption.campaign_process import INTERRUPTED
from tests.collector.interruption.referee import (
    WITHIN_S,
    Arena,
    Contestant,
    bout,
    bring_to_end,
    check_left,
    clock_back_s,
    fill_disk,
    lose_board,
    open_arena,
    told_rows,
    unplug_meter,
)
from tests.collector.nvml.stub import GPU_LOST

PHASES = ("characterising the power sensor", "warming up, idle power", "measuring", "row", "idle power again")
TOUCHED = ("lock_low", "lock_high", "limit_mw", "mem_mhz")
"""What of a board a campaign could leave changed."""


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with open_arena(tmp_path_factory.mktemp("arena")) as opened:
        yield opened


def found(arena: Arena) -> dict[str, int]:
    """The board as it is."""
    return {name: arena.boards.get(name) for name in TOUCHED}


def test_kills_at_random_moments_lose_and_double_no_row(arena: Arena) -> None:
    chance, fallen = random.Random(3), 0
    while fallen < 3:
        fallen += bout(arena, fallen, chance, blows=3 - fallen)
    assert max(arena.tally.clocks_back_s) < WITHIN_S


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGHUP], ids=lambda ending: ending.name)
def test_signals_end_a_campaign_in_order(arena: Arena, ending: int) -> None:
    bout(arena, 100 + ending, random.Random(4), ending=ending, blows=1)
    assert max(arena.tally.clocks_back_s) < WITHIN_S


def test_a_full_disk_loses_no_row(arena: Arena) -> None:
    fill_disk(arena, 0, random.Random(1))


def test_a_board_that_is_lost_gets_its_clock_back_when_it_returns(arena: Arena) -> None:
    lose_board(arena, 0, random.Random(2))
    assert arena.tally.clocks_back_s[-1] < WITHIN_S


def test_a_meter_that_is_pulled_out_loses_no_row(arena: Arena) -> None:
    unplug_meter(arena, 0, random.Random(2))


EXITS = (
    "normal",
    "error",
    "SIGINT",
    "SIGTERM",
    "SIGHUP",
    "SIGKILL",
    "lost board",
    "disk full",
    *(f"exception: {phase}" for phase in PHASES),
)


@pytest.mark.parametrize("way_out", EXITS)
def test_no_exit_leaves_the_board_in_another_state(arena: Arena, way_out: str) -> None:
    """Every exit path there is: in order, by an error of ours, by each signal, by the device, by the disk, from every phase."""
    before = found(arena)
    assert before["lock_high"] == 0
    folder = arena.folder / way_out.replace(" ", "-").replace(":", "")
    folder.mkdir()
    output, changes, expected = folder / "d.parquet", dict[str, object](), 0
    if way_out == "error":
        (folder / "broken.json").write_text("{}")
        changes, expected = {"sensor": folder / "broken.json"}, 1
    elif way_out == "disk full":
        changes, expected = {"file_limit_bytes": 5_000}, 1
    elif way_out.startswith("exception: "):
        phase = way_out.removeprefix("exception: ")
        changes, expected = {"fail": phase, "sensor": None if phase == PHASES[0] else arena.sensor}, 1
    contestant = Contestant(arena, arena.order(output, **changes))
    if way_out.startswith("SIG"):
        contestant.listen(4)
        number = signal.Signals[way_out]
        assert contestant.process.pid is not None
        os.kill(contestant.process.pid, number)
        expected = -number if number == signal.SIGKILL else INTERRUPTED
    elif way_out == "lost board":
        contestant.listen(4)
        arena.boards.set(fail_all=GPU_LOST)
        expected = 1
    status = contestant.end()
    since = time.monotonic()
    arena.boards.set(fail_all=0)
    assert status == expected, contestant.message
    assert clock_back_s(arena, since) < WITHIN_S
    assert found(arena) == before
    assert left_records(arena.state) == []


def test_a_process_that_is_killed_while_resuming_loses_nothing(arena: Arena, tmp_path: Path) -> None:
    output = tmp_path / "d.parquet"
    told: set[str] = set()
    for rows in (4, 1, 1):
        contestant = Contestant(arena, arena.order(output))
        contestant.listen(2 + rows)
        contestant.process.kill()
        contestant.end()
        told |= set(contestant.rows)
        check_left(output, told, traces=False)
        told = told_rows(output)
    bring_to_end(arena, output, told)

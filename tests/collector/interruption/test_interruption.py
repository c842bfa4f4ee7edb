"""However a campaign ends: no finished row is lost or doubled, and the board is as it was found.

A quick part of `benchmarks/kill_campaign.py`, which does it three hundred times.
"""

import json
import os
import random
import re
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from collector.devices.clock_record import left_records, write_record
from tests.collector.interruption.campaign_process import INTERRUPTED
from tests.collector.interruption.referee import (
    Contestant,
    check_failure,
    clock_back_s,
    lose_board,
    open_arena,
    unplug_meter,
)
from tests.collector.nvml.stub import INVALID_ARGUMENT
from tests.processes import COLLECT, ended

TOUCHED = ("lock_low", "lock_high", "limit_mw", "mem_mhz")
"""What of a board a campaign could leave changed."""


@pytest.fixture(scope="module")
def arena(tmp_path_factory):
    with open_arena(tmp_path_factory.mktemp("arena")) as opened:
        yield opened


def found(arena):
    """The board as it is."""
    return {name: arena.boards.get(name) for name in TOUCHED}


def test_a_board_that_is_lost_gets_its_clock_back_when_it_returns(arena):
    lose_board(arena, 0, random.Random(2))


def test_a_meter_that_is_pulled_out_loses_no_row(arena):
    unplug_meter(arena, 0, random.Random(2))


def began(arena, output, **changes):
    """A campaign that has its clock locked and rows on disk, and is held there."""
    contestant = Contestant(arena, arena.order(output, **{"hold_after": 4, **changes}))
    contestant.listen(4)
    return contestant


def by_signal(ending):
    """A signal in the middle; those that the command takes end it with 130, the others at once."""

    def way_out(arena, output):
        contestant = began(arena, output)
        os.kill(contestant.process.pid or 0, ending)
        return contestant, -ending if ending == signal.SIGKILL else INTERRUPTED

    return way_out


def by_exception(phase):
    """A defect of ours in a phase."""

    def way_out(arena, output):
        return Contestant(arena, arena.order(output, fail=phase, sensor=arena.sensor if phase == "row" else None)), 1

    return way_out


def killed_with_its_guard(arena, output):
    contestant = began(arena, output)
    for guard in guards(arena):
        os.kill(guard, signal.SIGKILL)
    contestant.process.kill()
    contestant.end()
    return contestant


def guard_killed_too(arena, output):
    """Neither the campaign nor its guard lives on: the clock comes back with the next command that looks for it."""
    contestant = killed_with_its_guard(arena, output)
    assert arena.boards.get("lock_high") > 0, "the clock was not held when both were killed"
    assert len(restore()) == 1
    return contestant, -signal.SIGKILL


def by_power_off(arena, output):
    """The machine goes off: nobody gives anything back; after its start the driver has its clocks, and the record is forgotten."""
    contestant = killed_with_its_guard(arena, output)
    (record,) = left_records(arena.state)
    write_record(arena.state, replace(record, boot_id="the start before"))
    arena.boards.set(lock_low=0, lock_high=0)
    calls = arena.boards.get("reset_calls")
    restore()
    assert arena.boards.get("reset_calls") == calls, "a clock that somebody has set since is not ours to give back"
    return contestant, -signal.SIGKILL


def by_next_campaign(arena, output):
    """Campaign and guard are killed, and nobody restores: the next campaign on the board does, before it locks a clock of its own."""
    killed_with_its_guard(arena, output)
    return Contestant(arena, arena.order(output)), 0


def guards(arena):
    """Processes that guard a clock of the arena's."""
    found = []
    for place in Path("/proc").iterdir():
        with suppress(OSError):
            if place.name.isdecimal() and {b"collector.devices.clock_record", bytes(arena.state)} <= set(
                (place / "cmdline").read_bytes().split(b"\0")
            ):
                found.append(int(place.name))
    assert found, "no guard lives"
    return found


def restore():
    """Boards whose clock `collect clocks restore` gives back."""
    return json.loads(ended(*COLLECT, "clocks", "restore", "--json").stdout)["restored"]


EXITS = {
    "end of the budget": lambda arena, output: (Contestant(arena, arena.order(output, budget_s=25.0)), 0),
    "Ctrl-C": by_signal(signal.SIGINT),
    "SIGTERM": by_signal(signal.SIGTERM),
    "SIGHUP": by_signal(signal.SIGHUP),
    "SIGKILL": by_signal(signal.SIGKILL),
    "SIGKILL, the guard's too": guard_killed_too,
    "SIGKILL, the guard's too, then another campaign": by_next_campaign,
    "power-off": by_power_off,
    **{f"exception: {phase}": by_exception(phase) for phase in ("characterising the power sensor", "row")},
}
"""Ways out of a measurement; those that cost the board, its clock, the disk or the meter have tests of their own."""


@pytest.mark.parametrize("way_out", EXITS)
def test_no_exit_leaves_the_board_in_another_state(arena, way_out):
    before = found(arena)
    assert before["lock_high"] == 0
    folder = arena.folder / re.sub(r"\W+", "-", way_out)
    folder.mkdir()
    contestant, expected = EXITS[way_out](arena, folder / "d.parquet")
    status = contestant.end()
    arena.boards.set(fail_all=0, fail_lock=0, may_lock=1)
    assert status == expected, contestant.message
    clock_back_s(arena, time.monotonic())  # fails where it never comes back
    assert found(arena) == before
    assert left_records(arena.state) == []
    if way_out == "end of the budget":
        assert 0 < len(contestant.rows) < len(arena.planned)


@pytest.mark.parametrize("refusal", [{"fail_lock": INVALID_ARGUMENT}, {"may_lock": 0}], ids=["the clock", "the right"])
def test_a_clock_that_is_refused_in_the_middle_of_a_sweep_loses_no_row(arena, tmp_path, refusal):
    output, before = tmp_path / "d.parquet", found(arena)
    contestant = began(arena, output)
    arena.boards.set(**refusal)
    contestant.go_on()
    check_failure(arena, contestant, output, "clock", lambda: arena.boards.set(fail_lock=0, may_lock=1))
    assert 0 < len(contestant.rows) < len(arena.planned)
    assert found(arena) == before

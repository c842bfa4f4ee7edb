"""A sweep over clocks that the helper holds loses them in the middle: it ends with one line, no row is lost, the clock is back."""

import signal
import subprocess

import pytest

from collector.devices.clock_record import left_records
from tests.collector.interruption.referee import Contestant, check_finished, check_left, open_arena
from tests.collector.privileged.conftest import stopped
from tests.collector.steady import until

EVENTS = 4
"""Events of a campaign after which its clock is locked and rows are on disk, while other clocks are still to come."""

Helper = subprocess.Popen[str]


@pytest.fixture(scope="module")
def arena(tmp_path_factory):
    with open_arena(tmp_path_factory.mktemp("arena")) as opened:
        yield opened


def sweep(arena, place, output, hold_after=0):
    """A campaign at two clocks in a process that may not lock them itself."""
    own = {"stub": place.boards.path, "state": place.folder / "own", "clock_helper": str(place.socket)}
    return Contestant(arena, arena.order(output, hold_after=hold_after, **own))


def back(place):
    return place.boards.get("lock_high") == 0 and left_records(place.state) == []


def helper_is_killed(place, helper):
    """The clock stays where it is until the next helper starts."""
    stopped(helper, signal.SIGKILL)
    place.start()


def lease_runs_out(place, _helper):
    """It has begun with the first clock, and no later one makes it longer."""
    until(lambda: place.events()[-1].get("why") == "lease_over")


@pytest.mark.parametrize(
    ("loss", "limits"),
    [
        (helper_is_killed, ""),
        (lease_runs_out, "lease_s = 4.0"),
    ],
)
def test_a_lease_that_is_lost_in_the_middle_of_a_sweep_loses_no_row(loss, limits, arena, place, tmp_path):
    output = tmp_path / "d.parquet"
    place.write_config(head=limits)
    helper = place.start()
    sweeping = sweep(arena, place, output, hold_after=EVENTS)
    sweeping.listen(EVENTS)
    loss(place, helper)
    sweeping.go_on()
    assert sweeping.end() == 1, sweeping.message
    assert "the clock helper has given the clock" in sweeping.message
    assert "--resume goes on" in sweeping.message
    assert "\n" not in sweeping.message
    until(lambda: back(place))
    told = set(sweeping.rows)
    check_left(arena, output, told)
    place.write_config()
    stopped(place.processes[-1])
    place.start()
    resumed = sweep(arena, place, output)
    assert resumed.end() == 0, resumed.message
    assert not told & set(resumed.rows), "a finished row was measured again"
    check_finished(arena, output)
    until(lambda: back(place))

"""A daemon that died or hangs is named in one line; telling it to end twice, or too late, does no harm."""

import json
import sqlite3
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.cli import main
from collector.daemon.jobs import AFTER_ROW, AT_ONCE, STALE_S, Daemon, Overview
from collector.daemon.locks import daemon_lock
from collector.daemon.store import FILE_NAME, open_store

PID = 4321
NOW_S = 1_800_000_000.0
CLOCK_STEP_S = 1.0
"""The time of day may be set meanwhile by so much [s]."""


def complaint(*, running, silent_s, draining):
    daemon = Daemon(pid=PID, version="1", beat_unix_s=NOW_S - silent_s, draining=draining)
    return Overview(daemon=daemon, running=running).complaint(NOW_S)


def daemon_was_there(place, *, silent_s, draining):
    """What a daemon writes of itself, so long ago."""
    with open_store(place.state) as store:
        store.daemon_started(PID, "1", "", [])
        store.daemon_beats(draining=draining)
    with sqlite3.connect(place.state / FILE_NAME) as connection:
        connection.execute("UPDATE daemon SET beat_unix_s = ?", (time.time() - silent_s,))
    connection.close()


@given(silent_s=st.floats(-1e6, 1e9), running=st.booleans(), draining=st.booleans())
def test_a_complaint_is_one_line_and_only_of_a_daemon_that_hangs_or_died(silent_s, running, draining):
    line = complaint(running=running, silent_s=silent_s, draining=draining)
    wrong = NOW_S - (NOW_S - silent_s) > STALE_S if running else not draining
    assert bool(line) == wrong
    assert "\n" not in line
    assert not line or str(PID) in line


@pytest.mark.parametrize(
    ("runs", "silent_s", "draining", "words"),
    [
        (True, 3 * STALE_S, False, "has said nothing for 180 s"),
        (False, 12.0, False, "died without a word"),
        (True, 0.0, False, ""),
    ],
)
def test_status_flags_a_dead_and_a_hung_daemon_in_one_line(runs, silent_s, draining, words, place, capsys):
    since_s = time.time() - silent_s
    daemon_was_there(place, silent_s=silent_s, draining=draining)
    config = ["--config", str(place.config)]
    with daemon_lock(place.state) if runs else open_store(place.state):
        assert main(["status", *config]) == 0
        shown = capsys.readouterr()
        assert main(["status", "--json", "--quiet", *config]) == 0
        document = json.loads(capsys.readouterr().out)
    assert shown.err.count("\n") == (1 if words else 0)
    assert words in shown.err
    assert words in document["daemon"]["complaint"]
    assert silent_s - CLOCK_STEP_S <= document["daemon"]["silent_s"] <= time.time() - since_s + CLOCK_STEP_S


def test_the_second_stop_ends_it_at_once_and_the_third_finds_it_done(place, capsys):
    words = ["stop", "--daemon", "--config", str(place.config)]
    place.overview()
    daemon_was_there(place, silent_s=0.0, draining=False)
    with daemon_lock(place.state):
        for said, asked in (("is draining; once more ends it at once", AFTER_ROW), ("ends at once", AT_ONCE)):
            assert main(words) == 0
            assert capsys.readouterr().out == f"the daemon {said}\n"
            assert place.overview().daemon.stop == asked
    assert main(words) == 0
    assert capsys.readouterr().out == "the daemon has ended before\n"

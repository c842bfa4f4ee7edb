"""The sensor of four H200 boards, identified again from what was recorded on them (tests/golden/h200-card/README.md)."""

import gzip
import json
import math
from itertools import combinations
from pathlib import Path
from statistics import median

import pytest

from collector.replay.recording import restored
from collector.sensing.catalogue import find_sensor
from tests.words import called

CARD = Path(__file__).parents[1] / "golden" / "h200-card"
QUICK = ("sensor-2", "sensor-3", "sensor-again-1", "sensor-4")
"""The runs that read every 2 ms; sensor-1 reads every 12 ms."""
RUNS = ("sensor-1", *QUICK)


def identified(run, folder):
    """What `collect sensor` determines from the readings and the runs of a recording.

    It is not replayed: a replay must wait as long as the fit that recorded it did, to the bit.
    """
    readings, edges, waited = ["t_s,power_w"], ["t_s,level"], False
    with gzip.open(CARD / f"{run}.recording", "rt", encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            call = (line.get("device"), line.get("method"))
            waited = waited or call == ("clock", "wait")
            if call == ("runner", "run") and waited:  # runs before the first wait only time a launch
                edges += [f"{line['answer'][end] * 1e-9:.9f},{level}" for end, level in (("start_ns", 1), ("end_ns", 0))]
            if call == ("sensor0", "read") and len(edges) > 1:  # readings before the first of these runs are not part of the record
                (polls,) = restored(line["answer"])
                readings += [f"{ns * 1e-9:.9f},{watt}" for ns, watt in zip(polls.host_ns.tolist(), polls.power_w.tolist(), strict=True)]
    files = [folder / f"{run}-{what}.csv" for what in ("readings", "load")]
    for path, rows in zip(files, (readings, edges), strict=True):
        path.write_text("\n".join(rows) + "\n")
    out = folder / f"{run}.json"
    assert called(f"sensor --readings {files[0]} --load {files[1]} --out {out} --quiet") == 0
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def sensors(tmp_path_factory):
    """The calibration that each recording gives."""
    folder = tmp_path_factory.mktemp("card")
    return {run: identified(run, folder) for run in RUNS}


@pytest.mark.parametrize("run", RUNS)
def test_the_sensor_is_a_low_pass_that_is_shown_every_100_ms(sensors, run):
    found = sensors[run]
    assert found["averaging"] == "low-pass"
    assert found["update_period_s"] == pytest.approx(0.1, abs=2e-4)
    assert abs(found["window_s"] - 0.025) < min(2.0 * found["window_std_s"], 3e-3)


@pytest.mark.parametrize("run", QUICK)
def test_its_width_is_that_which_is_published_for_hopper(sensors, run):
    assert sensors[run]["window_s"] == pytest.approx(find_sensor("hopper", field="instant").window_s, abs=1e-3)
    assert sensors[run]["residual_w"] < 20.0


@pytest.mark.parametrize("run", QUICK)
def test_its_delay_drifts_by_the_difference_from_100_ms(sensors, run):
    """The sensor keeps samples of its own every 20 ms: an update that comes 0.03 ms later than the fifth of them shows an older one."""
    rate = float(sensors[run]["notes"]["delay_s"].removeprefix("changes by ").split()[0]) * 1e-3
    assert rate == pytest.approx(sensors[run]["update_period_s"] / 0.1 - 1.0, abs=5e-5)


@pytest.mark.parametrize("one, other", [*combinations(RUNS, 2)])
def test_delays_agree_within_their_errors(sensors, one, other):
    delays, errors = zip(*((sensors[run]["delay_s"], sensors[run]["delay_std_s"]) for run in (one, other)), strict=True)
    assert abs(delays[0] - delays[1]) < 1.5 * math.hypot(*errors)
    assert max(errors) < 0.01


def test_the_catalogue_has_this_sensor(sensors):
    entry = find_sensor("NVIDIA H200", "580.159.04", "instant")
    assert entry.averaging == "low-pass"
    assert find_sensor("NVIDIA H200", "580.159.04", "usage").name == "hopper"
    assert all(abs(sensors[run]["delay_s"] - entry.delay_s) < 2.0 * entry.delay_std_s for run in RUNS)
    for key in ("window_s", "update_period_s", "rise_time_s"):
        assert getattr(entry, key) == pytest.approx(median(sensors[run][key] for run in QUICK), rel=0.03)

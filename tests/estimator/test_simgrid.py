"""Block-count models as a SimGrid platform: the published example, the file's form, and a real SimGrid where there is one."""

import json
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator import EstimatorError
from estimator.blocks.model import section_of
from estimator.blocks.simgrid import host_name, platform_xml, simulated_run
from estimator.bundle.files import save_bundle
from tests.estimator.estimating import printed
from tests.estimator.test_block_count import MODEL
from tests.fitter.measured import planted_bundle
from tests.processes import ended

PYTHON = "/usr/bin/python3"
"""The system's own, for which distributions package SimGrid."""

EXAMPLE = Path(__file__).parents[2] / "examples" / "simgrid" / "blocks.py"

FERMI = replace(
    # Boughzala et al., fig. 3: vectorAdd on a Tesla M2075, whose round of 14 blocks is taken to last a second.
    MODEL,
    kernel="vectorAdd",
    num_sms=14,
    blocks_per_sm=1,
    sm_clock_mhz=1150.0,
    times_s=np.array([1e-30, 1e-30, 1.0]),
    energies=np.array([(153.65 - 29.4) / 14, 0.0]),
    static_w=29.4,
    slope_s=1.0 / 14,
    slope_j=(153.65 - 29.4) / 14,
    flop_per_block=3413.0 / 14,
)
SLOWER = replace(FERMI, sm_clock_mhz=800.0, times_s=np.array([3e-3, 0.4, 0.7]), energies=np.array([5.0, 11.0]), static_w=25.1)
OTHER = replace(FERMI, kernel='a<b>&"c', blocks_per_sm=3, flop_per_block=math.nan)


def test_clocks_are_states_of_one_host_fastest_first_and_names_are_quoted():
    root = ET.fromstring(platform_xml([SLOWER, OTHER, FERMI]))
    hosts = {host.get("id"): host for host in root.iter("host")}
    assert set(hosts) == {host_name(FERMI), host_name(OTHER)}
    assert {host.get("core") for host in hosts.values()} == {"1"}
    speeds = [float(word.removesuffix("f")) for word in hosts[host_name(FERMI)].get("speed", "").split(",")]
    watts = [[float(word) for word in pair.split(":")] for pair in hosts[host_name(FERMI)][0].get("value", "").split(",")]
    assert len(speeds) == 2
    assert speeds[0] == pytest.approx(3413.0, rel=1e-12)
    assert watts[0] == pytest.approx([29.4, 153.65], rel=1e-12)
    assert watts[1][0] == pytest.approx(25.1)
    assert simulated_run(SLOWER, 14, [FERMI, SLOWER]).pstate == 1


@given(
    blocks=st.integers(1, 10_000),
    times=st.tuples(*[st.floats(1e-9, 1)] * 3),
    resident=st.integers(1, 16),
)
def test_work_takes_the_models_time(blocks, times, resident):
    model = replace(FERMI, times_s=np.array(times), blocks_per_sm=resident)
    assert simulated_run(model, blocks).latency_s == pytest.approx(float(model.latency_s(blocks)), rel=1e-9)


@pytest.mark.parametrize(
    "models, message",
    [
        ([], "no block-count model"),
        ([FERMI, FERMI], "two models at one clock"),
        ([replace(FERMI, energies=np.full(2, np.nan))], "without power"),
    ],
)
def test_a_platform_that_makes_no_sense_is_refused(models, message):
    with pytest.raises(EstimatorError, match=message):
        platform_xml(models)


def simulated(*words):
    """Time [s] and energy [J] of each grid as SimGrid finds them, by the example.  Skips where there is no SimGrid."""
    try:
        there = ended(PYTHON, "-c", "import simgrid").returncode == 0
    except OSError:
        there = False
    if not there:
        pytest.skip("no SimGrid for the system's Python; `make simgrid` installs Debian's and runs this test")
    ran = ended(PYTHON, EXAMPLE, *words)
    assert ran.returncode == 0, ran.stderr
    assert "Total energy consumption" in ran.stderr, "SimGrid says so itself"
    return [(float(time), float(energy)) for time, energy in re.findall(r"SimGrid (\S+) s, (\S+) J;", ran.stdout)]


def test_simgrid_finds_the_sum_of_power_times_time(tmp_path):
    models = [FERMI, SLOWER, replace(OTHER, kernel="scale")]
    cases = [(0, 140), (0, 149), (1, 1), (1, 123), (2, 1000)]
    runs = [simulated_run(models[number], blocks, models) for number, blocks in cases]
    platform, work = tmp_path / "platform.xml", tmp_path / "work.json"
    platform.write_text(platform_xml(models))
    work.write_text(json.dumps([{**asdict(run), "blocks": blocks} for run, (_, blocks) in zip(runs, cases, strict=True)]))
    found = simulated(str(platform), str(work))
    assert found == [pytest.approx((run.latency_s, run.energy_j), rel=1e-8) for run in runs]


def test_the_published_example_has_whole_and_partial_rounds():
    """145 blocks on 14 SMs: the eleventh round has 5, and lasts as long as a whole one."""
    found = simulated()
    assert found == [
        pytest.approx((float(FERMI.latency_s(n, "rounds")), float(FERMI.energy_j(n, "rounds"))), rel=1e-8) for n in (140, 145, 700)
    ]
    assert simulated_run(FERMI, 145).latency_s == pytest.approx(found[1][0], rel=1e-8)


def test_the_command_says_what_simgrid_is_to_execute(tmp_path):
    bundle = tmp_path / "blocks.json"
    save_bundle(replace(planted_bundle(), block_models=section_of([FERMI, SLOWER])), bundle)
    rows = printed("blocks", FERMI.kernel, "--bundle", bundle, "--form simgrid --quiet --blocks 140,149,2000000000")
    assert [row["pstate"] for row in rows] == [0, 0, 0, 1, 1, 1]
    assert rows[0]["energy_j"] == pytest.approx(1536.5, rel=1e-12)
    for row in rows:
        units = row["launch"] + row["rounds"] * row["whole"] + row["rest"]
        assert row["latency_s"] == pytest.approx(units / row["speed"], rel=1e-12)
        model = FERMI if row["pstate"] == 0 else SLOWER
        assert row["latency_s"] == pytest.approx(float(model.latency_s(row["blocks"])), rel=1e-9)

"""Block-count models: what they answer and refuse, in a bundle and as SimGrid platforms."""

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

from estimator import BundleError, EstimatorError
from estimator.blocks.model import FORMS, BlockModel, model_key, models_from_section, occupancy_times, section_of
from estimator.blocks.simgrid import host_name, platform_xml, simulated_run
from estimator.bundle.files import save_bundle
from tests.estimator.estimating import printed, run
from tests.fitter.measured import PLANTED
from tests.processes import ended

MODEL = BlockModel(
    kernel="vector_add_1024",
    block_threads=1024,
    num_sms=108,
    blocks_per_sm=2,
    sm_clock_mhz=900.0,
    times_s=np.array([4e-6, 1.2e-3, 0.9e-3]),
    overlap=2.0,
    time_covariance=np.diag([0.04, 1e-4, 4e-4, 0.01]),
    energies=np.array([0.15e-2, 12.0]),
    energy_covariance=np.diag([1e-10, 0.04]),
    static_w=41.0,
    static_std_w=0.1,
    slope_s=1.4e-5,
    intercept_s=5e-4,
    slope_j=2e-3,
    blocks=(54, 5000),
    rows=8,
    scatter={"occupancy": {"time": 0.002, "energy": 0.004}, "rounds": {"time": 0.14, "energy": 0.3}},
    tied=("start_s",),
)
GRIDS = st.integers(1, 2**31 - 1)


def test_a_round_is_as_long_as_its_fullest_sm():
    start, lone, share = MODEL.times_s
    one, two = math.hypot(lone, share), math.hypot(lone, 2 * share)
    expected = {1: one, 108: one, 109: two, 216: two, 217: two + one, 432: 2 * two, 325: two + one + (two - one)}
    assert MODEL.latency_s(list(expected)) == pytest.approx([start + time for time in expected.values()], rel=1e-12)
    sharp = replace(MODEL, overlap=1e3)
    assert sharp.latency_s([108, 216]) == pytest.approx([start + lone, start + 2 * share], rel=1e-3), "the longer of both"


def test_derivatives_are_those_of_the_times():
    grids = np.array([1.0, 150.0, 216.0, 500.0])
    at = MODEL.logarithms
    _, slopes = occupancy_times(grids, 108, 2, at)
    for place in range(4):
        step = np.zeros(4)
        step[place] = 1e-6
        above, below = (occupancy_times(grids, 108, 2, at + sign * step)[0] for sign in (1, -1))
        assert slopes[:, place] == pytest.approx((above - below) / 2e-6, rel=1e-4, abs=1e-9)


def test_the_published_forms_are_equations_1_to_7():
    grids = np.array([1, 108, 109, 1000])
    rounds = np.array([1, 1, 2, 10])
    assert MODEL.latency_s(grids, "linear") == pytest.approx(1.4e-5 * grids + 5e-4)
    assert MODEL.energy_j(grids, "linear") == pytest.approx(2e-3 * grids + 41.0 * (1.4e-5 * grids + 5e-4))
    assert MODEL.latency_s(grids, "rounds") == pytest.approx(1.4e-5 * 108 * rounds)
    assert MODEL.energy_j(grids, "rounds") == pytest.approx((2e-3 * 108 + 41.0 * 1.4e-5 * 108) * rounds)


@given(grid=GRIDS, form=st.sampled_from(FORMS))
def test_more_blocks_never_take_less(grid, form):
    pair = [grid, min(grid + 1, 2**31 - 1)]
    assert np.all(np.diff(MODEL.latency_s(pair, form)) >= 0)
    assert np.all(np.diff(MODEL.energy_j(pair, form)) >= 0)


def test_the_power_of_whole_rounds_is_the_rounds_power():
    grids = 216 * 9_000_000
    assert float(MODEL.energy_j(grids) / MODEL.latency_s(grids)) == pytest.approx(MODEL.round_power_w(), rel=1e-6)


def test_uncertainty_has_the_coefficients_and_the_scatter():
    exact = replace(MODEL, time_covariance=np.zeros((4, 4)), energy_covariance=np.zeros((2, 2)), static_std_w=0.0)
    assert exact.latency_std_s(216) == pytest.approx(0.002 * float(exact.latency_s(216)))
    assert exact.energy_std_j(216) == pytest.approx(0.004 * float(exact.energy_j(216)))
    assert MODEL.latency_std_s(216) > exact.latency_std_s(216)
    assert MODEL.energy_std_j(216) > exact.energy_std_j(216)
    quiet = replace(MODEL, scatter={})
    slopes = occupancy_times(np.array(216.0), 108, 2, MODEL.logarithms)[1]
    assert float(quiet.latency_std_s(216)) == pytest.approx(math.sqrt(float(np.diag(MODEL.time_covariance) @ slopes**2)), rel=1e-9)


def test_the_section_gives_every_model_back():
    bare = replace(MODEL, kernel="plain", energies=np.full(2, np.nan), static_w=math.nan, scatter={}, sm_clock_mhz=math.nan)
    section = json.loads(json.dumps(section_of([MODEL, bare]), allow_nan=False))
    models = models_from_section(section)
    assert set(models) == {"vector_add_1024/1024@900", "plain/1024"}
    assert json.dumps(section_of([models[model_key(MODEL)]])) == json.dumps(section_of([MODEL]))
    assert not models["plain/1024"].has_power
    assert np.isnan(models["plain/1024"].energy_j(5))
    assert models_from_section({}) == {}


@pytest.mark.parametrize(
    "change", [{"times_s": [1.0, 2.0]}, {"times_s": [1.0, 2.0, 0.0]}, {"time_covariance": [[-1.0] * 4] * 4}, {"scatter": {"cubic": {}}}]
)
def test_a_section_that_does_not_fit_is_refused(change):
    section = section_of([MODEL])
    name = next(iter(section))
    with pytest.raises(BundleError, match="block_models"):
        models_from_section({name: {**section[name], **change}})


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
    save_bundle(replace(PLANTED, block_models=section_of([FERMI, SLOWER])), bundle)
    rows = printed("blocks", FERMI.kernel, "--bundle", bundle, "--form simgrid --quiet --blocks 140,149,2000000000")
    assert [row["pstate"] for row in rows] == [0, 0, 0, 1, 1, 1]
    assert rows[0]["energy_j"] == pytest.approx(1536.5, rel=1e-12)
    for row in rows:
        units = row["launch"] + row["rounds"] * row["whole"] + row["rest"]
        assert row["latency_s"] == pytest.approx(units / row["speed"], rel=1e-12)
        model = FERMI if row["pstate"] == 0 else SLOWER
        assert row["latency_s"] == pytest.approx(float(model.latency_s(row["blocks"])), rel=1e-9)


def test_power_above_the_limit_is_a_warning(tmp_path):
    bundle = tmp_path / "blocks.json"
    limit_w = PLANTED.gpu.power_limit_w
    below, above = (replace(MODEL, kernel=kernel, static_w=limit_w * share) for kernel, share in (("below", 0.1), ("above", 2.0)))
    save_bundle(replace(PLANTED, block_models=section_of([below, above])), bundle)
    for form in (*FORMS, "simgrid"):
        told = [run("blocks", kernel, "--bundle", bundle, "--blocks 432 --strict --form", form) for kernel in ("below", "above")]
        assert [one.status for one in told] == [0, 3]
        assert f"432 blocks draw more than {limit_w:g} W, the limit" in told[1].err

"""Many points at once are the same points."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator import Sweep, Variant, estimate, load_bundle, load_gpu, pareto_front, sweep, sweep_chunks, variants
from estimator.questions.sweeping import VALUES, joined_sweeps
from examples.gpt2_prefill import gpt2_prefill
from tests.estimator.synthetic import transformer

BUNDLE = load_bundle("a100-pcie-40gb-eager")
WORKLOADS = [transformer(512, 768, 4), gpt2_prefill(8, 512), transformer(16, 256, 2, name="small", family="gpt2")]
CLOCKS = (510.0, 1005.0, 1410.0)


@pytest.mark.parametrize("cap_w", [None, 150.0, 45.0])
@pytest.mark.parametrize("gpu", [None, "h100-sxm"])
def test_a_sweep_holds_the_estimates_of_its_points(cap_w, gpu):
    spec = None if gpu is None else load_gpu(gpu)
    points = sweep(WORKLOADS, BUNDLE, sm_clock_mhz=CLOCKS, gpu=spec, power_cap_w=cap_w, host_launch_s=2e-5)
    single = [one for w in WORKLOADS for one in estimate(w, BUNDLE, sm_clock_mhz=CLOCKS, gpu=spec, power_cap_w=cap_w, host_launch_s=2e-5)]
    assert len(points) == len(single) == 9
    for name in VALUES:
        np.testing.assert_allclose(getattr(points, name), [getattr(one, name) for one in single], rtol=1e-9, err_msg=name)
    named = {(workload, line) for workload, line in points.warnings}
    assert named == {(one.workload, line) for one in single for line in one.warnings}


def test_pieces_are_the_whole_in_its_order():
    whole = sweep(WORKLOADS, BUNDLE, sm_clock_mhz=CLOCKS, power_cap_w=150.0)
    pieces = list(sweep_chunks(WORKLOADS, BUNDLE, sm_clock_mhz=CLOCKS, power_cap_w=150.0, most_numbers=60))
    assert len(pieces) == 3
    assert joined_sweeps(pieces).label("workload") == whole.label("workload")
    for name in VALUES:
        np.testing.assert_allclose(getattr(joined_sweeps(pieces), name), getattr(whole, name), rtol=1e-12)


def test_bundles_and_gpus_nest_around_workloads_and_clocks():
    points = sweep(
        WORKLOADS[:2], [BUNDLE, load_bundle("a10-eager")], gpu=[load_gpu("h100-sxm"), load_gpu("l40s")], sm_clock_mhz=(900.0, 1200.0)
    )
    assert points.label("gpu") == (["h100-sxm"] * 4 + ["l40s"] * 4) * 2
    assert [name.split()[0] for name in points.label("bundle")] == ["a100-pcie-40gb-eager"] * 8 + ["a10-eager"] * 8
    assert points.asked_clock_mhz.tolist() == [900.0, 1200.0] * 8


def artificial(latency, energy):
    """Points of given latencies and energies."""
    one = sweep(Variant(workload=WORKLOADS[2]), BUNDLE, sm_clock_mhz=900.0).select(np.zeros(len(latency), dtype=np.int64))
    arrays = {name: getattr(one, name) for name in (*VALUES, "cases", "case", "above_limit")}
    return Sweep(**{**arrays, "latency_s": np.array(latency), "energy_j": np.array(energy)})


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=30))
def test_nothing_beats_a_point_of_the_front_and_something_beats_every_other(pairs):
    latency, energy = ([float(pair[i]) for pair in pairs] for i in (0, 1))
    front = set(pareto_front(artificial(latency, energy)).tolist())
    for i, (t, e) in enumerate(pairs):
        beaten = any((u <= t and f < e) or (u < t and f <= e) for u, f in pairs)
        twin = any(pairs[j] == (t, e) for j in front)
        assert (i in front) <= (not beaten)
        assert beaten or twin


def test_pandas_takes_points_as_they_are_with_a_row_for_each():
    points = sweep(variants(gpt2_prefill(8, 333), batch=(2, 8)), BUNDLE, sm_clock_mhz=(510.0, 900.0, 1410.0))
    frame = pd.DataFrame(points)
    assert list(frame.columns) == list(points.columns())
    assert frame["batch"].tolist() == [2, 2, 2, 8, 8, 8]
    for name in VALUES:
        np.testing.assert_array_equal(frame[name].to_numpy(), getattr(points, name), err_msg=name)
    assert pd.DataFrame(points.select(np.zeros(0, dtype=np.int64))).empty
    assert points.select(points.sm_clock_mhz == 510.0).label("batch") == [2, 8]
    found = estimate(gpt2_prefill(8, 333), BUNDLE, sm_clock_mhz=(510.0, 900.0))
    assert pd.DataFrame(found)["power_w"].tolist() == [one.power_w for one in found]

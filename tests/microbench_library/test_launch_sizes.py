"""How many launches, graphs, copies and blocks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator import load_gpu
from microbench.sizing import (
    GRAPH_S,
    MOST_GRAPH_NODES,
    SMALLEST_GRAPH,
    displacing_sets,
    graph_ladder,
    graph_launches,
    resident_blocks,
    segment_launches,
)

A100 = load_gpu("a100-pcie-40gb")
H200 = load_gpu("h200-sxm")
V100 = load_gpu("v100-pcie-32gb")
T4 = load_gpu("t4")


@given(st.integers(1, 10**6), st.integers(1, 50), st.integers(1, 500))
def test_segments_begin_with_the_first_buffer_set(launches, segments, sets):
    parts = segment_launches(launches, segments, sets)
    assert sum(parts) == launches
    assert min(parts) >= 1
    assert len(parts) <= segments
    assert all(part % sets == 0 for part in parts[:-1])


@given(st.integers(1, 4096), st.integers(1, 4096), st.integers(1, 10**6))
def test_graphs_leave_few_launches_to_be_made_one_by_one(turns, sets, launches):
    sizes = graph_ladder(turns * sets, sets)
    assert list(sizes) == sorted(sizes, reverse=True)
    assert all(size % sets == 0 for size in sizes)
    left = launches
    for size in sizes:
        left %= size
    assert left < SMALLEST_GRAPH + sets or not sizes


@given(st.floats(1e-7, 1.0), st.floats(1e-6, 1e-4), st.integers(1, 4096))
def test_a_graph_rotates_through_all_buffers_and_hides_its_own_launch(launch_s, host_s, sets):
    size = graph_launches(launch_s, host_s, sets)
    if size == 1:
        assert launch_s >= 20 * host_s or (sets == 1 and launch_s >= GRAPH_S)
    else:
        assert size % sets == 0
        assert size * launch_s >= min(GRAPH_S, MOST_GRAPH_NODES * launch_s) * 0.999
        assert size <= MOST_GRAPH_NODES + sets


@given(st.floats(1.0, 1e10), st.floats(1e6, 1e8))
def test_between_two_uses_of_a_buffer_more_than_the_cache_is_read(working_set, l2):
    assert (displacing_sets(working_set, l2) - 1) * working_set >= 2 * l2 * 0.999


@pytest.mark.parametrize(
    "gpu, threads, registers, shared, blocks",
    [
        # the limits of CUDA's occupancy calculator, one after the other
        (A100, 256, 64, 0, 4),  # registers: 16384 of 65536 a block
        (A100, 128, 255, 0, 2),  # registers by sub-partition: two warps of 8192 each
        (A100, 1024, 32, 0, 2),  # warps
        (A100, 32, 16, 0, 32),  # blocks
        (A100, 256, 32, 49152, 3),  # shared memory: 48 KiB and the reserved 1 KiB, of 164
        (H200, 384, 168, 232448, 1),  # all shared memory of an SM
        (V100, 256, 32, 49152, 2),  # 96 KiB, nothing reserved
        (T4, 1024, 32, 0, 1),  # 32 warps
        (H200, 1024, 65, 0, 0),  # 65 registers of 1024 threads: not even one
    ],
)
def test_resident_blocks_are_those_of_the_occupancy_calculator(gpu, threads, registers, shared, blocks):
    assert resident_blocks(gpu, threads, registers, shared) == blocks

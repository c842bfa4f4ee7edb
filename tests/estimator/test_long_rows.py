"""Rows of norms and softmax that are looked at again: what of them no longer lies in L2 crosses DRAM once more."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.model.lowering import STREAM_KINDS
from estimator.model.phases import EVENTS, OVERLAPPED, SERIAL
from estimator.model.streams import Stream, norm_loads
from estimator.vocabulary.specifications import load_gpu
from estimator.vocabulary.workload import make_operator

LARGE_L2, SMALL_L2 = load_gpu("a100-pcie-40gb"), load_gpu("v100-pcie-32gb")
ROWS = 20_000
AGAIN, DRAM = OVERLAPPED.index("dram_activations"), OVERLAPPED.index("dram")


def rows_of(operator, dim, gpu, rows=ROWS, precision="fp32"):
    family = "softmax" if operator == "softmax" else "norm"
    return STREAM_KINDS["stream"]([make_operator(family, operator, precision, rows=rows, dim=dim)], gpu)


def read_again(phases, dim, gpu):
    """Bytes that cross DRAM once more, in sizes of the fp32 matrix."""
    return float(phases.overlapped[0, AGAIN]) * gpu.dram_bytes_per_s / (4.0 * ROWS * dim)


LONGEST = Stream.SHARED_ROW_BYTES // 4


@pytest.mark.parametrize(
    "operator, dim, gpu, low, high",
    [
        ("layernorm", 1024, LARGE_L2, 0.0, 0.01), ("layernorm", 8192, SMALL_L2, 0.9, 1.0),
        ("softmax", LONGEST, SMALL_L2, 0.0, 0.0), ("softmax", 4 * LONGEST, SMALL_L2, 1.8, 2.0),
    ],
)  # fmt: skip
def test_rows_that_outgrow_l2_are_read_again_norms_once_and_long_softmax_rows_twice(operator, dim, gpu, low, high):
    assert low <= read_again(rows_of(operator, dim, gpu), dim, gpu) <= high


@given(st.sampled_from(["softmax", "layernorm", "rmsnorm"]), st.integers(8, 60_000), st.integers(1, 50_000))
def test_time_and_energy_count_the_same_bytes(operator, dim, rows):
    for gpu in (LARGE_L2, SMALL_L2):
        phases = rows_of(operator, dim, gpu, rows)
        counted = phases.events[0, EVENTS.index("dram")] / gpu.dram_bytes_per_s
        assert phases.overlapped[0, AGAIN] + phases.overlapped[0, DRAM] == pytest.approx(counted)


def test_lines_held_in_both_partitions_of_l2_crowd_out_rows():
    again = [read_again(rows_of("layernorm", 3072, gpu), 3072, gpu) for gpu in (LARGE_L2, replace(LARGE_L2, compute_capability="8.6"))]
    assert again[0] > 2.0 * again[1]


@given(st.sampled_from(["layernorm", "rmsnorm"]), st.integers(8, 60_000), st.integers(1, 50_000))
def test_a_norm_without_vectors_waits_longer_than_one_of_longer_rows_with_them(operator, dim, rows):
    plain, vectors = (rows_of(operator, length, LARGE_L2, rows) for length in (dim // 4 * 4 + 1, dim // 4 * 4 + 4))
    for name in ("issue", "loop", "wait"):
        assert plain.overlapped[0, OVERLAPPED.index(name)] >= vectors.overlapped[0, OVERLAPPED.index(name)]
    assert plain.serial[0, SERIAL.index("waves")] > vectors.serial[0, SERIAL.index("waves")]


def slowest_warp(dim):
    """Loads one after the other of the slowest of four warps, lane by lane: a warp walks every way that one of its lanes takes."""
    vectors = -(-dim // 4)
    counts = [len(range(thread, vectors, 128)) for thread in range(128)]
    warps = [counts[first : first + 32] for first in range(0, 128, 32)]
    return max(max(count // 4 for count in warp) + max(count % 4 for count in warp) for warp in warps)


@given(st.integers(1, 40_000))
def test_a_norm_waits_for_the_loads_of_its_slowest_warp(dim):
    assert norm_loads(dim) == slowest_warp(dim)

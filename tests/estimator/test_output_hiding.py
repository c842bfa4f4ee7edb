"""What persistent blocks hide of their output, and that no byte of it is lost or counted twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.model.gemm import candidate_phases
from estimator.model.lowering import matrix_columns
from estimator.model.phases import OVERLAPPED, SERIAL
from estimator.model.tiling import tile_candidates
from estimator.vocabulary.specifications import load_gpu
from tests.estimator.synthetic import matmul

ACTIVATIONS, EPILOGUE = OVERLAPPED.index("dram_activations"), SERIAL.index("epilogue")
sizes = st.integers(1, 40_000)


def shares(gpu, m, n, k):
    """Output in the open and hidden, over the time that the whole output takes, and split-K, of every candidate tile."""
    columns = matrix_columns([matmul(m, n, k)], gpu)
    tiles = tile_candidates(gpu, cuda_cores=False)
    phases = candidate_phases(columns, tiles, gpu)
    whole = columns.output_byte[0] / gpu.dram_bytes_per_s
    hidden = phases.overlapped[0, :, ACTIVATIONS] - columns.activation_byte[0] / gpu.dram_bytes_per_s
    return phases.serial[0, :, EPILOGUE] / whole, hidden / whole, tiles.split


@given(sizes, sizes, sizes)
def test_all_of_the_output_is_written_once(m, n, k):
    serial, hidden, split = shares(load_gpu("h100-sxm"), m, n, k)
    assert serial + hidden == pytest.approx(1.0, rel=1e-6)
    assert (serial > 0.0).all()
    assert serial[split > 1] == pytest.approx(1.0)


def test_a_block_alone_on_its_sm_hides_nothing_and_the_more_follow_the_more_is_hidden():
    gpu = load_gpu("h100-sxm")
    alone, few, many = (shares(gpu, m, 1024, 512)[0][shares(gpu, m, 1024, 512)[2] == 1] for m in (64, 8192, 32768))
    assert alone == pytest.approx(1.0)
    assert (many < few).all()
    assert many.min() < 0.5


def test_blocks_that_stay_on_their_sm_write_in_the_open():
    assert shares(load_gpu("a100-sxm-80gb"), 32768, 4096, 512)[0] == pytest.approx(1.0)

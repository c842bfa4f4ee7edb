"""The runner's laws, over a stand-in for the device."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.campaigns.measurement import ranged_launch_s
from collector.campaigns.outcome import RANGE_TOLERANCE
from collector.devices.board_runner import Libraries, open_board_runner
from collector.devices.tracer import NoTracer
from collector.errors import DeviceError, RunnerError
from estimator import load_gpu, make_operator
from microbench.runners.runner import PROBE_LAUNCHES
from microbench.sizing import DISPLACING_L2_SIZES
from tests.collector.dataset_rows import product
from tests.microbench_library.conftest import open_fake_board
from tests.microbench_library.cuda_fake import CudaRuntimeError, OutOfMemoryError, World, fake_cupy
from tests.words import one_line

H200_L2_BYTES = 50e6


SMALL = product(32)


@pytest.mark.parametrize("kernel_s", [0.8e-6, 2e-6, 7e-6, 60e-6, 3e-3])
@pytest.mark.parametrize("l2_state", ["warm", "cold"])
def test_ranging_finds_the_time_of_a_launch_whatever_the_host_needs(kernel_s, l2_state):
    with open_fake_board(kernel_s=kernel_s, computes=False) as board:
        prepared = board.runner.prepare(product(512), l2_state)
        assert ranged_launch_s(board, prepared, 0.02) == pytest.approx(kernel_s, rel=0.5 * RANGE_TOLERANCE)


@given(st.integers(1, 3000), st.sampled_from([0.7e-6, 30e-6, 1e-3]))
def test_a_run_launches_as_often_as_it_was_told(launches, kernel_s):
    with open_fake_board(kernel_s=kernel_s, computes=False) as board:
        prepared = board.runner.prepare(SMALL)
        board.world.launched.clear()
        before_ns = board.world.now_ns()
        record = board.runner.run(prepared, launches)
        assert len(board.world.launched) == launches == record.launches
        assert before_ns <= record.start_ns < record.end_ns == board.world.now_ns()
        mean_s = record.segment_s.mean()
        assert mean_s >= kernel_s * 0.999
        assert 1 <= len(record.segment_s) <= 20
        assert kernel_s > 1e-6 or launches < 2000 or board.world.graphs_launched, "the host is slower"


def test_a_long_launch_is_repeated_once_before_its_runs():
    """On an H200 a chase through the L2 takes 0.45 s a launch, and eight of them went before the 1.8 s that count."""
    warm_ups = []
    for kernel_s in (1e-3, 0.5):
        with open_fake_board(kernel_s=kernel_s, computes=False) as board:
            traced = len(board.world.launched)
            board.runner.prepare(SMALL)
            warm_ups.append(len(board.world.launched) - traced)
    assert warm_ups[0] - warm_ups[1] == 1 + PROBE_LAUNCHES


def test_cold_operands_displace_the_cache_and_take_turns():
    operator = product(1024)
    with open_fake_board(kernel_s=10e-6, computes=False) as board:
        warm, cold = board.runner.prepare(operator, "warm"), board.runner.prepare(operator, "cold")
        assert warm.buffer_sets == 1
        assert (cold.buffer_sets - 1) * cold.working_set_bytes >= DISPLACING_L2_SIZES * H200_L2_BYTES
        board.world.addresses.clear()
        board.runner.run(cold, 3 * cold.buffer_sets)
        addresses = board.world.addresses
    assert len(set(addresses)) == cold.buffer_sets
    assert addresses[: cold.buffer_sets] == addresses[cold.buffer_sets : 2 * cold.buffer_sets]


def test_what_the_tracer_saw_stands_in_the_prepared_kernel():
    with open_fake_board(tracer=NoTracer("CUPTI is not installed")) as board:
        unknown = board.runner.prepare(SMALL)
        assert board.runner.run(unknown, 10).launches == 10
    assert (unknown.kernel_name, unknown.blocks_per_sm, unknown.untraced) == ("", 0, "CUPTI is not installed")
    with open_fake_board(computes=False) as board:
        prepared = board.runner.prepare(product(2048, k=64, precision="fp32"))
    assert prepared.kernel_name == "ampere_sgemm_128x64_tn"
    assert (prepared.grid, prepared.block, prepared.registers_per_thread) == ((16, 32, 1), (256, 1, 1), 122)
    assert (prepared.tile_m, prepared.tile_n, prepared.split_k, prepared.transpose) == (64, 128, 1, "tn")
    assert prepared.shared_bytes_per_block == 34816
    assert prepared.blocks_per_sm == 2  # 122 registers of 256 threads: two blocks of 32768
    assert prepared.untraced == ""


@pytest.mark.parametrize(
    "operator, l2_state, layout, words",
    [
        (product(8), "cold", "", "too small to displace the L2"),
        (product(64, precision="fp8"), "warm", "nt", "gemm.linear in fp8: is multiplied in layout tn alone, not in nt"),
        (make_operator("softmax", "softmax", "fp32", rows=8, dim=8), "warm", "", "softmax.*needs PyTorch.*does not see the board"),
    ],
)
def test_what_no_library_here_runs_is_refused_by_name(operator, l2_state, layout, words):
    with open_fake_board() as board:
        assert board.runner.supports(operator, layout) == (l2_state == "cold")
        with pytest.raises(RunnerError, match=words):
            board.runner.prepare(operator, l2_state, layout)


def test_operands_beyond_the_memory_are_refused_before_any_is_taken():
    with open_fake_board(total_bytes=10**9) as board:
        big = product(32_768)
        assert not board.runner.supports(big)
        before = board.world.largest_allocation
        with pytest.raises(RunnerError, match="needs 6.5 GB, 1.0 GB are free"):
            board.runner.prepare(big)
        assert board.world.largest_allocation == before


@pytest.mark.parametrize(
    "fault, error, words",
    [
        (OutOfMemoryError("Out of memory allocating 5 bytes"), RunnerError, "Out of memory"),
        (CudaRuntimeError(1, "cudaErrorInvalidValue: invalid argument"), RunnerError, "invalid argument"),
        (CudaRuntimeError(700, "cudaErrorIllegalAddress"), DeviceError, "IllegalAddress"),
        (CudaRuntimeError(999, "cudaErrorUnknown"), DeviceError, "Unknown.*nvidia-smi"),
    ],
)
@pytest.mark.parametrize("place", ["fail_launch", "fail_sync"])
def test_cudas_errors_say_whether_a_campaign_goes_on(fault, error, words, place):
    with open_fake_board() as board:
        prepared = board.runner.prepare(SMALL)
        setattr(board.world, place, fault)
        with one_line(error, words) as caught:
            board.runner.run(prepared, 10)
        assert isinstance(caught.value, RunnerError) == (error is RunnerError)
        setattr(board.world, place, None)


def test_a_failed_capture_ends_and_the_stream_works_on():
    with open_fake_board(kernel_s=1e-6) as board:
        board.cublas.status = 15
        with pytest.raises(RunnerError, match="not supported"):
            board.runner.prepare(SMALL)
        board.cublas.status = 0
        assert board.world.captured is None
        assert board.runner.run(board.runner.prepare(SMALL), 10).launches == 10


def test_a_board_that_cuda_does_not_see_is_a_device_error():
    world = World()
    libraries = Libraries(cupy=fake_cupy(world))
    opened = open_board_runner("0000:01:00.0", load_gpu("h200-sxm"), world.now_ns, tracer=NoTracer(""), libraries=libraries)
    with pytest.raises(DeviceError, match="0000:01:00.0.*CUDA_VISIBLE_DEVICES"), opened:
        pass

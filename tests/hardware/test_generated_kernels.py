"""Generated kernels on the board: every result right, and arithmetic at the published rate."""

import math
from dataclasses import replace

import numpy as np
import pytest

from collector.devices.nvml import open_board
from collector.errors import RunnerError
from estimator.vocabulary.quantities import HZ_PER_MHZ
from microbench.errors import CompileError, UnsupportedError
from microbench.families.catalogue import KERNELS
from microbench.kernel import Launch
from microbench.loads.copies import COPIES
from microbench.loads.generated import architecture_of
from microbench.operands import verify
from microbench.sizing import resident_blocks
from microbench.toolchain.compile import compile_kernels, find_toolchain
from tests.hardware.board import BOARD
from tests.hardware.rates import SATURATING, least_share, reachable_share

pytestmark = pytest.mark.gpu

LEAST_COPY_BYTES_PER_S = 5e9
"""What the slowest link that a board of today sits on carries: PCI Express 3.0 with 8 lanes."""


@pytest.fixture(scope="module")
def module(spec):
    """All that this board runs, its own instructions included, assembled at once: the disassembler's start takes longer than its work."""
    try:
        architecture = architecture_of(spec)
        return compile_kernels([one for one in KERNELS if not one.refusal(architecture)], architecture, "O3", find_toolchain())
    except (CompileError, UnsupportedError) as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_a_kernels_result_is_right(kernel, runner, module):
    if refusal := kernel.refusal(module.architecture):
        pytest.skip(refusal)
    launch = kernel.check_launch()
    try:
        loaded = runner.load_generated(kernel, launch, module.cubin)
    except RunnerError as error:
        if any(buffer.location == "peer" for buffer in kernel.buffers):
            pytest.skip(str(error))
        raise
    verify(kernel, launch.pattern, loaded.results())


@pytest.mark.parametrize("load", COPIES, ids=lambda load: load.name)
def test_what_is_copied_arrives_as_it_was_sent(load, runner):
    try:
        prepared = runner.prepare_generated(load)
    except RunnerError as error:
        if load.link == "peer":
            pytest.skip(str(error))
        raise
    assert prepared.corrupted == ""
    record = runner.run(prepared, 20)
    assert load.bytes_moved / float(record.segment_s.mean()) > LEAST_COPY_BYTES_PER_S


@pytest.mark.parametrize("kernel", SATURATING, ids=lambda kernel: kernel.name)
def test_saturating_arithmetic_reaches_the_published_rate(kernel, runner, spec, module):
    if refusal := kernel.refusal(module.architecture):
        pytest.skip(refusal)
    expected = reachable_share(kernel, spec)
    if not expected:
        pytest.skip(f"{kernel.name} does not fill the matrix units of compute capability {spec.compute_capability}")
    precision, flop = next(iter(kernel.work.flop.items()))
    per_clock = spec.matrix_flop_per_clock(precision, kernel.module == "cuda")
    if not math.isfinite(per_clock):
        pytest.skip(f"no published rate for {precision} on {kernel.module} units")
    probe = Launch(
        mode="full",
        blocks=1,
        threads_per_block=kernel.block_threads,
        iterations=20_000,
        region_bytes=kernel.min_region_bytes,
        pattern="zero",
    )
    entry = module.entries[kernel.name]
    resident = resident_blocks(spec, kernel.block_threads, entry.registers, entry.shared_bytes)
    launch = replace(probe, blocks=spec.num_sms * max(1, resident))
    loaded = runner.load_generated(kernel, launch, module.cubin)
    launch_s = float(loaded.run(3).segment_s.mean())
    with open_board(BOARD) as board:
        board.gpu.read_states()
        record = loaded.run(max(3, int(0.5 / launch_s)))
        clocks = board.gpu.read_states().sm_clock_mhz
    clock_hz = float(np.median(clocks)) * HZ_PER_MHZ
    rate = flop * launch.active_threads * launch.iterations / float(record.segment_s[1:].mean())
    share = rate / (expected * per_clock * spec.num_sms * clock_hz)
    assert least_share(kernel) <= share <= 1.03, f"{kernel.name}: {share:.3f} of the published rate at {clock_hz / HZ_PER_MHZ:.0f} MHz"

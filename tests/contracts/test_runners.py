"""What every runner keeps to: the simulated one, the one over CuPy on a stand-in, and the one over CuPy on a real board."""

import numpy as np
import pytest

from collector.bench import open_bench
from collector.errors import RunnerError
from microbench.layouts import LAYOUTS
from tests.collector.dataset_rows import addition, product
from tests.hardware.board import open_real_runner
from tests.microbench_library.conftest import open_fake_board

PRODUCT = product(1024)
OTHER = product(512, 256, 512)
ADDITION = addition(1 << 20, "fp32")
IMPOSSIBLE = product(2**21)
FP8 = product(64, precision="fp8")
UNKNOWN = product(64, precision="nvfp4")


@pytest.fixture(params=["simulated", "stand-in", pytest.param("real", marks=pytest.mark.gpu)])
def runner(request):
    if request.param == "simulated":
        with open_bench("sim:h200-sxm") as bench:
            yield bench.runner
    elif request.param == "stand-in":
        with open_fake_board(kernel_s=20e-6, computes=False) as board:
            yield board.runner
    else:
        with open_real_runner() as real:
            yield real


def test_preparing_twice_prepares_the_same_kernel(runner):
    for l2_state in ("warm", "cold"):
        prepared = runner.prepare(PRODUCT, l2_state)
        assert prepared == runner.prepare(PRODUCT, l2_state)
        assert (prepared.operator, prepared.l2_state, prepared.transpose) == (PRODUCT, l2_state, "tn")
        assert prepared.working_set_bytes >= 3 * 2 * 1024 * 1024
        assert (prepared.buffer_sets > 1) == (l2_state == "cold")
        assert prepared.split_k >= 1


def test_a_product_runs_in_every_layout_and_nothing_else_has_one(runner):
    prepared = {layout: runner.prepare(PRODUCT, "warm", layout) for layout in LAYOUTS}
    for layout, one in prepared.items():
        assert runner.supports(PRODUCT, layout)
        assert (one.operator, one.transpose) == (PRODUCT, layout)
        assert runner.run(one, 3).launches == 3
    assert prepared["tn"] == runner.prepare(PRODUCT)
    for operator, layout, words in ((ADDITION, "nn", "matrix products alone"), (PRODUCT, "nx", "'nx' is unknown"), (FP8, "nn", "tn alone")):
        assert not runner.supports(operator, layout)
        with pytest.raises(RunnerError, match=words):
            runner.prepare(operator, "warm", layout)


def test_a_traced_kernel_has_sizes_and_a_tile(runner):
    prepared = runner.prepare(PRODUCT)
    if prepared.untraced:
        pytest.skip(prepared.untraced)
    assert prepared.kernel_name
    assert min(*prepared.grid, *prepared.block, prepared.blocks_per_sm, prepared.registers_per_thread) >= 1
    assert min(prepared.tile_m, prepared.tile_n) >= 8
    assert prepared.library


def test_a_run_takes_the_time_that_its_launches_take(runner):
    prepared = runner.prepare(OTHER)
    launches = max(100, int(0.2 / runner.run(prepared, 50).segment_s.mean()))
    record = runner.run(prepared, launches)
    assert record.launches == launches
    assert np.all(record.segment_s > 0.0)
    host_s = (record.end_ns - record.start_ns) * 1e-9
    assert record.segment_s.mean() * launches == pytest.approx(host_s, rel=0.05)


@pytest.mark.parametrize("launches", [1, 2, 19, 20, 21, 1000])
def test_kernels_that_are_prepared_take_turns_and_run_any_number_of_times(runner, launches):
    prepared = [runner.prepare(operator) for operator in (PRODUCT, OTHER)]
    for one in (*prepared, *prepared):
        record = runner.run(one, launches)
        assert record.launches == launches
        assert 1 <= len(record.segment_s) <= launches
        assert record.end_ns > record.start_ns


def test_what_cannot_run_is_refused_before_and_in_prepare(runner):
    assert runner.supports(PRODUCT)
    for operator in (IMPOSSIBLE, UNKNOWN):
        assert not runner.supports(operator)
        with pytest.raises(RunnerError):
            runner.prepare(operator)
    assert runner.run(runner.prepare(PRODUCT), 3).launches == 3

"""Loads that are switched on for a time: they last what they should, on the board that is there."""

import pytest

from collector.bench import open_bench
from collector.sampling import Sampler
from collector.sensing.live_load import ChainLoad, LibraryLoad, open_live_load
from microbench.errors import CompileError
from microbench.toolchain.compile import find_toolchain


def test_the_chain_lasts_as_long_as_it_should_on_the_share_that_was_asked_for() -> None:
    try:
        find_toolchain()
    except CompileError as error:
        pytest.skip(str(error))
    with open_bench("sim:a100-pcie-40gb", seed=5) as bench:
        bench.gpu.lock_clock_mhz(900)
        load = open_live_load(bench, Sampler(bench.gpu, bench.sensors))
        assert isinstance(load, ChainLoad)
        assert "ffma_k8_u64" in load.remark
        for duration_s in (0.01, 0.0635, 0.4, 1.3):
            start_ns, end_ns = load.ready(duration_s).run()
            assert (end_ns - start_ns) * 1e-9 == pytest.approx(duration_s, rel=0.02, abs=4e-4)
        half = load.ready(0.1, 0.5)
        assert half.share == pytest.approx(0.5, abs=0.01)
        start_ns, end_ns = half.run()
        assert (end_ns - start_ns) * 1e-9 == pytest.approx(0.1, rel=0.02)


def test_a_board_without_generated_kernels_gets_a_librarys_with_the_reason() -> None:
    with open_bench("sim:v100-pcie-32gb", seed=5) as bench:
        load = open_live_load(bench, Sampler(bench.gpu, bench.sensors))
        assert isinstance(load, LibraryLoad)
        assert "sm_70" in load.remark
        ready = load.ready(0.2)
        assert ready is not None
        start_ns, end_ns = ready.run()
        assert (end_ns - start_ns) * 1e-9 == pytest.approx(0.2, rel=0.05)

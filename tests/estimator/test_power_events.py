"""Laws of the counted events and of the share of busy power."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from estimator.coefficients import coefficient_rows, group_key
from estimator.gpu import GpuSpec
from estimator.kernel_prediction import kernel_events
from estimator.kernels.registry import KnownTiles, lower
from estimator.phases import EVENTS, Phases
from estimator.power import POWER_TERMS, busy_share
from estimator.specifications import load_gpu
from estimator.timeline import warm_ratio
from estimator.workload import Operator, make_operator
from fitter.latency import prior_groups


@pytest.fixture(scope="module")
def a100() -> GpuSpec:
    return load_gpu("a100-pcie-40gb")


def phases_of(operator: Operator, gpu: GpuSpec, tile_m: float = 128.0, tile_n: float = 128.0, split: float = 1.0) -> Phases:
    coefficients, _ = coefficient_rows(prior_groups(), [group_key(operator)])
    known = KnownTiles(tile_m=np.array([tile_m]), tile_n=np.array([tile_n]), split=np.array([split]))
    return lower([operator], gpu, coefficients, known).phases


def events_of(operator: Operator, gpu: GpuSpec, **tile: float) -> dict[str, float]:
    return dict(zip(EVENTS, phases_of(operator, gpu, **tile).events[0].tolist(), strict=True))


def linear(m: int, precision: str = "bf16", n: int = 1024, k: int = 1024) -> Operator:
    return make_operator("gemm", "linear", precision, batch=1, m=m, n=n, k=k)


def test_padded_products_cost_less_than_useful_ones_but_not_nothing(a100: GpuSpec) -> None:
    full, padded = events_of(linear(128), a100), events_of(linear(65), a100)
    assert full["tensor"] == 2 * 128 * 1024 * 1024
    assert 2 * 65 * 1024 * 1024 < padded["tensor"] < full["tensor"]


def test_tensor_flop_are_counted_by_the_time_for_which_they_keep_the_units_busy(a100: GpuSpec) -> None:
    assert events_of(linear(256, "tf32"), a100)["tensor"] == 2 * events_of(linear(256), a100)["tensor"]
    assert events_of(linear(256, "int8"), a100)["tensor"] == events_of(linear(256), a100)["tensor"] / 2


def test_blocks_fetch_nothing_beyond_the_edge_of_a_matrix(a100: GpuSpec) -> None:
    m, n, k = 65, 1024, 1024
    fetched = 2 * k * (m * n / 128 + n * np.ceil(m / 128))
    assert_allclose(events_of(linear(m), a100)["l2"], fetched + 2 * m * n)


def test_a_split_writes_and_reads_its_partial_results(a100: GpuSpec) -> None:
    one, four = (events_of(linear(128), a100, split=split) for split in (1.0, 4.0))
    assert_allclose(four["l2"] - one["l2"], 4 * 8 * 128 * 1024)
    assert four["shared"] == one["shared"]


def test_smaller_tiles_pass_more_through_shared_memory(a100: GpuSpec) -> None:
    small, large = (events_of(linear(1024), a100, tile_m=edge, tile_n=edge)["shared"] for edge in (64.0, 128.0))
    assert_allclose(small, 2 * large)


def test_a_long_softmax_row_passes_through_shared_memory_and_a_short_one_does_not(a100: GpuSpec) -> None:
    short, long, longest = (make_operator("softmax", "softmax", "bf16", rows=4096, dim=dim) for dim in (1024, 4096, 65536))
    assert events_of(short, a100)["shared"] == 0
    assert events_of(long, a100)["shared"] >= 3 * 4096 * 4096 * 2
    assert_allclose(events_of(longest, a100)["l2"], 4 * 4096 * 65536 * 2)  # read three times, written once


def test_warm_operands_that_fit_into_the_l2_do_not_cross_dram(a100: GpuSpec) -> None:
    for m, low, high in ((512, 0.0, 0.01), (16384, 0.99, 1.0)):
        operator = linear(m, n=16384 if m > 512 else 1024)
        phases = phases_of(operator, a100)
        coefficients, _ = coefficient_rows(prior_groups(), [group_key(operator)])
        warm, cold = (kernel_events(phases, a100, coefficients, warm_ratio(phases, a100, np.array([w])))[0] for w in (True, False))
        dram, l2 = POWER_TERMS.index("dram"), POWER_TERMS.index("l2")
        assert low <= warm[dram] / cold[dram] <= high
        assert warm[l2] == cold[l2]


def test_busy_power_falls_with_idle_sms_and_with_the_gaps_between_short_kernels() -> None:
    seconds = np.array([1e-3, 1e-5, 3e-6])
    full, half = busy_share(seconds, np.ones(3)), busy_share(seconds, np.full(3, 0.5))
    assert (np.diff(full) < 0).all()
    assert full[0] == pytest.approx(1.0, abs=2e-3)
    assert (half < full).all()
    assert (half > 0.5 * full).all()


def test_few_blocks_leave_sms_without_work(a100: GpuSpec) -> None:
    for m, expected in ((128, 8 / 108), (128 * 27, 1.0), (128 * 54, 1.0)):
        assert_allclose(phases_of(linear(m), a100).occupied, expected)

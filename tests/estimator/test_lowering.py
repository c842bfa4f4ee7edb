"""From operators to phases: each kernel as if it were alone, whichever tiles are known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.model.coefficients import coefficient_vector
from estimator.model.lowering import KnownTiles, lower
from estimator.model.phases import OVERLAPPED, SERIAL, Phases
from estimator.vocabulary.specifications import load_gpu
from estimator.vocabulary.work import operator_work
from estimator.vocabulary.workload import make_operator

COEFFICIENTS = coefficient_vector({"math": 1.05, "l2": 1.0, "dram": 1.06, "loop": 1.0, "prologue": 1.0, "epilogue": 1.06, "exponent": 1.5})
PRECISIONS = ("bf16", "fp32", "int8")
TILES = (np.nan, 32.0, 64.0, 128.0)
SPLITS = (np.nan, 1.0, 4.0)

products = st.tuples(st.sampled_from(PRECISIONS), *[st.integers(1, 5000) for _ in range(3)])
known_tiles = st.tuples(st.sampled_from(TILES), st.sampled_from(TILES), st.sampled_from(SPLITS))


@pytest.mark.parametrize("name", ["a100-pcie-40gb", "h100-sxm"])
@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(products, known_tiles), min_size=1, max_size=5))
def test_a_product_keeps_what_is_known_of_its_tile_and_is_lowered_as_if_alone(name, drawn):
    gpu = load_gpu(name)
    operators = [make_operator("gemm", "linear", precision, batch=1, m=m, n=n, k=k) for (precision, m, n, k), _ in drawn]
    columns = np.array([tile for _, tile in drawn])
    known = KnownTiles(tile_m=columns[:, 0], tile_n=columns[:, 1], split=columns[:, 2])
    together = lower(operators, gpu, np.tile(COEFFICIENTS, (len(drawn), 1)), known)
    for i, operator in enumerate(operators):
        own = KnownTiles(**{field: getattr(known, field)[i : i + 1] for field in KnownTiles.__slots__})
        alone = lower([operator], gpu, COEFFICIENTS[None, :], own)
        tile_m, tile_n, _ = columns[i]
        assert np.isnan(tile_m * tile_n) or alone.tile_area[0] == tile_m * tile_n
        for field in Phases.__slots__:
            np.testing.assert_array_equal(getattr(together, field)[i], getattr(alone, field)[0], err_msg=field)


@pytest.mark.parametrize(
    ("precision", "weight", "activation", "rate", "converts"),
    [
        ("bf16", 2.0, 2.0, 989.4, False), ("fp8", 1.0, 1.0, 1978.9, True), ("fp8_static", 1.0, 1.0, 1978.9, False),
        ("fp8_block", 1.0, 1.03125, 1978.9, True), ("sq", 1.0, 1.0, 1978.9, True), ("int8_wo", 1.0, 2.0, 989.4, False),
        ("int4_wo", 0.516, 2.0, 989.4, False), ("w4a16_mxfp4", 0.531, 2.0, 989.4, False),
        ("w4a8_mxfp4_mxfp8", 0.531, 1.03125, 1978.9, True),
    ],
)  # fmt: skip
def test_a_number_format_says_what_moves_how_fast_it_is_multiplied_and_whether_it_is_converted(
    precision, weight, activation, rate, converts
):
    gpu, sizes = load_gpu("h100-sxm"), {"batch": 1, "m": 512, "n": 4096, "k": 8192}
    operator = make_operator("gemm", "linear", precision, **sizes)
    phases = lower([operator], gpu, COEFFICIENTS[None, :])
    column = dict(zip(OVERLAPPED, phases.overlapped[0], strict=True))
    assert column["dram"] * gpu.dram_bytes_per_s == pytest.approx(weight * 4096 * 8192, rel=1e-3)
    assert operator_work(operator).read_byte == pytest.approx((weight * 4096 + activation * 512) * 8192, rel=1e-3)
    assert 2 * 512 * 4096 * 8192 / (phases.ideal_math[0] / gpu.sm_clock_max_mhz / 1e6) == pytest.approx(rate * 1e12, rel=1e-3)
    assert (phases.serial[0, SERIAL.index("quantise")] > 0.0) == converts
    assert make_operator("gemm", "bmm", precision, **sizes).precision == precision
    batched = lower([make_operator("gemm", "bmm", precision, **sizes)], gpu, COEFFICIENTS[None, :])
    assert batched.serial[0, SERIAL.index("quantise")] == 0.0


@pytest.mark.parametrize(
    ("kind", "gpu", "window", "cache", "joined"),
    [
        ("decode", "l40s", 0, "bf16", True),
        ("decode", "l40s", 128, "bf16", False),
        ("decode", "l40s", 128, "fp8", True),
        ("decode", "h100-sxm", 128, "bf16", True),
        ("prefill", "l40s", 0, "bf16", False),
        ("prefill", "l40s", 0, "fp8", True),
    ],
)
def test_query_heads_of_a_key_head_share_a_block_where_their_library_joins_them(kind, gpu, window, cache, joined):
    """Then many query heads need no more blocks of math than one."""
    shape = {
        "batch": 64,
        "queries": 1 if kind == "decode" else 4,
        "context": 512,
        "kv_heads": 4,
        "head_dim": 128,
        "window": window,
        "causal": 0,
    }
    operators = [make_operator("attention", kind, "bf16", precision_kv=cache, heads=heads, **shape) for heads in (4, 64)]
    phases = lower(operators, load_gpu(gpu), np.tile(coefficient_vector({}), (2, 1)))
    one, many = phases.overlapped[:, OVERLAPPED.index("math")]
    assert bool(many == one) == joined

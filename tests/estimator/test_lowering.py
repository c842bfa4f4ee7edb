"""From operators to phases: each kernel as if it were alone, whichever tiles are known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.model.coefficients import coefficient_vector
from estimator.model.lowering import KnownTiles, lower
from estimator.model.phases import Phases
from estimator.vocabulary.specifications import load_gpu
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

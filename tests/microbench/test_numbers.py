"""Storage of small numbers: every number goes to its nearest code, also one beyond the largest."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from microbench.numbers import CODED, decode, nearest_codes

WIDTHS = {"bf16x2": 1 << 16, "e4m3x4": 256, "e5m2x4": 256}


@pytest.mark.parametrize("kind", CODED)
@given(number=st.floats(-400.0, 400.0) | st.floats(allow_nan=False))
def test_a_number_goes_to_the_nearest(kind, number):
    table = decode(np.arange(WIDTHS[kind], dtype=CODED[kind][0]), kind)
    finite = table[np.isfinite(table)]
    found = decode(nearest_codes(np.array([number]), kind), kind)[0]
    wanted = np.clip(number, finite.min(), finite.max())
    assert abs(found - wanted) == np.abs(finite - wanted).min()
    assert found == 0.0 or (found > 0.0) == (number > 0.0)

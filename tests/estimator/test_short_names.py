"""Numbers and names of any size make short lines."""

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator import write_workload
from estimator.display.text import ENERGY_UNITS, POWER_UNITS, TIME_UNITS, with_uncertainty
from estimator.vocabulary.workload import UnknownOperator
from tests.estimator.estimating import run
from tests.estimator.synthetic import transformer

NUMBER = re.compile(r"[0-9.]+(?:e[+-][0-9]+)?")


def test_names_of_a_hundred_thousand_characters_are_not_repeated(tmp_path):
    whole = transformer(1024, 512, 4)
    odd = UnknownOperator(name="k" * 10**5, count=3, elements=0.0)
    path = tmp_path / "w.json"
    write_workload(replace(whole, name="n" * 10**5, unknown=(odd,)), path)
    for command in ((), "sweep", "explain", "best"):
        status, _, said = run(command, path, "--bundle a100-pcie-40gb-eager --freqs 900")
        assert status == 3
        assert "left out" in said
        assert max(map(len, said.splitlines())) < 500


@given(st.floats(1e-30, 1e30), st.sampled_from([TIME_UNITS, POWER_UNITS, ENERGY_UNITS]))
def test_a_quantity_of_any_size_shows_what_it_is(value, units):
    text = with_uncertainty(value, value / 7.0, units)
    scale = {name: size for size, name in units}[text.split()[-1]]
    assert float(NUMBER.search(text).group()) * scale == pytest.approx(value, rel=0.051)


def test_a_tiny_quantity_has_an_exponent():
    assert with_uncertainty(2.345e-14, 4e-15, TIME_UNITS) == "2.345e-05 ± 4.0e-06 ns"
    assert with_uncertainty(0.0, 0.0, TIME_UNITS) == "0.000 ± 0 s"
    assert with_uncertainty(0.0123456, 0.00061, TIME_UNITS) == "12.35 ± 0.61 ms"
    assert with_uncertainty(math.nan, 1.0, TIME_UNITS) == "–"

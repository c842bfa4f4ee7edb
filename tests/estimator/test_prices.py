"""Prices of classes without an energy of their own: a like one's or what rare ones share, said and less sure."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.counts.activities import CountedKernel, EnergyTable, load_energy_table
from estimator.counts.counted_energy import counted_energies
from estimator.counts.energies import INSTRUCTION, Activity
from estimator.counts.opcodes import RARE
from estimator.counts.prices import LIKE_SPREAD, is_matrix, price_of, products_of
from estimator.vocabulary.errors import CountsError
from tests.estimator.test_instructions import ENERGIES

DENSE_J, RARE_J = 80e-12, 4e-12
MATRIX = (
    "HMMA.16816.F32",
    "HMMA.SP.16832.F32",
    "HMMA.1688.F32",
    "HMMA.16816.F16",
    "HMMA.SP.16832.F32.BF16",
    "IMMA.16832.S8.S8.SAT",
    "DMMA.884",
)


def energies(**added):
    """The energies of the other tests, with further classes."""
    values = np.array([*ENERGIES.values, *added.values()])
    return replace(
        ENERGIES,
        terms=(*ENERGIES.terms, *(INSTRUCTION + name.replace("_", ".") for name in added)),
        values=values,
        covariance=np.diag((0.01 * values) ** 2),
        identified=(True,) * len(values),
    )


def activity(name, count=1e9):
    return Activity(instructions={name: count}, issued=0.0, transactions={}, stalls=0.0, time_s=0.0)


@pytest.mark.parametrize(
    "name, products",
    [("HMMA.16816.F32", 2048), ("HMMA.SP.16832.F32", 2048), ("HMMA.1684.F32.TF32", 512), ("DMMA.8x8x4", 256),
     ("BMMA.168256.AND.POPC", 32768), ("HGMMA.64x256x16.F32.BF16", 262144), ("IMMA.8816.S8.S8.SAT", 1024), ("FFMA", 0), ("HMMA", 0)],
)  # fmt: skip
def test_the_products_of_a_matrix_instruction_are_in_its_name(name, products):
    assert products_of(name) == products


def test_a_sparse_product_whose_class_was_left_out_costs_what_a_dense_one_of_its_type_costs_and_says_so():
    known = energies(HMMA_16816_F32=DENSE_J, HMMA_16816_F16=0.5 * DENSE_J, rare=RARE_J)
    value, std = known.energy_j(activity("HMMA.SP.16832.F32"))
    assert value == pytest.approx(DENSE_J * 1e9)
    assert std == pytest.approx(np.hypot(0.01, LIKE_SPREAD) * DENSE_J * 1e9)
    assert known.doubt("HMMA.SP.16832.F32") == "no run is made of it; at the energy of HMMA.16816.F32"
    half, _ = known.energy_j(activity("HMMA.1688.F32"))
    assert half == pytest.approx(0.5 * DENSE_J * 1e9)
    assert known.doubt("HMMA.1688.F32").endswith("HMMA.16816.F32 times 0.5")
    assert known.doubt("HMMA.16816.F32") == ""


@given(st.sampled_from(MATRIX), st.sets(st.sampled_from([*MATRIX, "FFMA", "DFMA", RARE])))
def test_a_matrix_product_is_never_priced_as_a_rare_instruction(name, known):
    price = price_of(name, known)
    assert price.name in {one for one in known if is_matrix(one)} | {""}
    assert (price.reason == "") == (name in known)
    if price.name:
        assert price.factor == pytest.approx(products_of(name) / products_of(price.name))
        assert price.name.split(".")[0] == name.split(".")[0]


def table(known):
    return EnergyTable(name="made", source="", vocabulary="sass", energies=known, constant_w=40.0)


def test_counts_priced_at_another_class_are_warned_about_and_less_sure():
    known = energies(HMMA_16816_F32=DENSE_J, rare=RARE_J)
    kernels = [
        CountedKernel(name="k", launches=3.0, activity=replace(activity("HMMA.SP.16832.F32"), time_s=1e-3)),
        CountedKernel(name="l", launches=1.0, activity=replace(activity("FFMA"), time_s=1e-3)),
    ]
    rows, total, warnings = counted_energies(kernels, table(known))
    assert warnings == ("energy of HMMA.SP.16832.F32 is of low confidence: no run is made of it; at the energy of HMMA.16816.F32",)
    assert rows[0].energy_std_j > LIKE_SPREAD * 3.0 * DENSE_J * 1e9
    assert total.energy_std_j > LIKE_SPREAD * 3.0 * DENSE_J * 1e9
    assert rows[1].energy_std_j < 0.02 * rows[1].energy_j
    unlike = CountedKernel(name="m", launches=1.0, activity=replace(activity("DMMA.884"), time_s=1e-3))
    with pytest.raises(CountsError, match=r"made has no energy of DMMA\.884"):
        counted_energies([unlike], table(known))


def test_a_kernel_of_which_nothing_is_counted_has_an_unknown_error_not_none():
    idle = CountedKernel(name="idle", launches=1.0, activity=replace(activity("FFMA"), instructions={}, issued=0.0, time_s=1e-3))
    rows, total, _ = counted_energies([idle], load_energy_table("tesla-k40"), constant_w=40.0)
    assert rows[0].energy_j == total.energy_j == pytest.approx(0.04)
    assert np.isnan([rows[0].energy_std_j, total.energy_std_j]).all()

"""Energy of instructions: classes of opcodes, sums of terms, the bundle's section."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator import BundleError
from estimator.counts.energies import (
    CONSTANT,
    INSTRUCTION,
    ISSUE,
    LOOP,
    STALL,
    TRANSACTION,
    Activity,
    Expansion,
    InstructionEnergies,
    energies_from_section,
    section_of,
)
from estimator.counts.opcodes import LANES, loop_classes, sass_class
from tests.words import one_line

TERMS = (CONSTANT, STALL, ISSUE, LOOP, f"{INSTRUCTION}FFMA", f"{INSTRUCTION}LOP3", f"{TRANSACTION}l2", f"{TRANSACTION}dram")
VALUES = np.array([60.0, 5e-11, 7e-11, 2e-12, 4e-12, 2e-12, 5e-10, 1.5e-9])
ENERGIES = InstructionEnergies(
    terms=TERMS,
    values=VALUES,
    covariance=np.diag((0.01 * VALUES) ** 2),
    identified=(True,) * len(TERMS),
    reference_voltage_v=0.9,
    reference_clock_mhz=1410.0,
    temperature_c=50.0,
    scatter=0.002,
    rows=100,
    ptx={"ffma": Expansion(instruction="fma.rn.f32", classes={"FFMA": 1.0}, issued=1.0, energy_j=6e-12, std_j=1e-13)},
)
COUNTS = st.floats(min_value=0.0, max_value=1e15)


def activities():
    return st.builds(
        Activity,
        instructions=st.fixed_dictionaries({"FFMA": COUNTS, "LOP3": COUNTS}),
        issued=COUNTS,
        transactions=st.fixed_dictionaries({"l2": COUNTS, "dram": COUNTS}),
        stalls=COUNTS,
        time_s=st.floats(min_value=0.0, max_value=100.0),
        loops=COUNTS,
    )


CLASSES = {
    "": "LDG.E.128.STRONG.GPU STS REDG.E.ADD RED.E.ADD UIADD3 BRA LDGDEPBAR", "FFMA": "FFMA FFMA.FTZ", "HFMA2": "HFMA2.MMA",
    "HFMA2.BF16_V2": "HFMA2.MMA.BF16_V2", "HMMA.16816.F32.BF16": "HMMA.16816.F32.BF16", "IADD3": "IADD3.X", "IDP.4A": "IDP.4A.S8.S8",
    "IMAD.HI": "IMAD.HI.U32", "ISETP": "ISETP.GE.AND", "LOP3": "LOP3.LUT", "MUFU.EX2": "MUFU.EX2.F16", "REDUX": "REDUX.SUM.S32",
    "SHF": "SHF.L.W.U32.HI",
}  # fmt: skip


@pytest.mark.parametrize("name", CLASSES)
def test_an_opcode_has_the_class_of_what_it_does(name):
    assert {sass_class(opcode) for opcode in CLASSES[name].split()} == {name}


@given(st.integers(1, 4096), st.sampled_from(["UISETP.NE.AND", "ISETP.NE.U32.AND"]))
def test_loop_control_is_taken_out_of_a_body_once(count, test):
    classes, issued = loop_classes({"FFMA": count, "UIADD3": 1, test: 1, "BRA": 1})
    assert classes == {"FFMA": count}
    assert issued == count + 3


def test_comparisons_of_the_work_itself_stay_in_the_body():
    classes, _ = loop_classes({"ISETP.NE.U32.AND": 1, "ISETP.EQ.U32.AND": 32, "SEL": 32, "UIADD3": 1, "BRA": 3})
    assert classes["SEL"] == 32
    assert classes["ISETP"] == 32


@given(activities(), st.floats(0.5, 1.2))
def test_core_energy_goes_with_the_square_of_the_voltage_and_that_of_dram_does_not(activity, volt):
    core = replace(activity, transactions={}, time_s=0.0)
    there = ENERGIES.energy_j(replace(core, voltage_v=volt))[0]
    assert there == pytest.approx(ENERGIES.energy_j(core)[0] * (volt / 0.9) ** 2)
    dram = Activity(instructions={}, issued=0.0, transactions={"dram": 1e9}, stalls=0.0, time_s=0.0, voltage_v=volt)
    assert ENERGIES.energy_j(dram)[0] == pytest.approx(1.5)


def test_energy_per_instruction_holds_its_share_of_the_issue():
    value, std = ENERGIES.epi_j("FFMA")
    assert value == pytest.approx(4e-12 + 7e-11 / LANES)
    assert std == pytest.approx(math.hypot(4e-14, 7e-13 / LANES))


def test_a_class_that_was_not_measured_is_named():
    with pytest.raises(BundleError, match=r"no energy of DFMA in this bundle; measure it with"):
        ENERGIES.energy_j(Activity(instructions={"DFMA": 1.0}, issued=1.0, transactions={}, stalls=0.0, time_s=0.0))


def test_the_section_gives_the_energies_back():
    section = json.loads(json.dumps(section_of(ENERGIES)))
    back = energies_from_section(section)
    assert section_of(back) == section_of(ENERGIES)
    assert section["transactions"]["dram"]["pj_per_bit"] == pytest.approx(1.5e3 / 256)
    assert energies_from_section({}) is None


@pytest.mark.parametrize(
    "change, complaint",
    [
        ({"covariance": [[-1.0] * 8] * 8}, "a variance must not be negative"),
        ({"terms": ["issue"] * 8}, "terms holds a term twice"),
        ({"ptx": {"ffma": {"foreign": 1}}}, "ptx.ffma has an unknown field 'foreign'"),
        ({"instructions": {"FFMA": {"epi_j": 1e-12, "std_j": 1e-13, "identified": True, "surprise": 1}}}, "unknown field 'surprise'"),
    ],
)
def test_a_damaged_section_is_refused_in_one_line(change, complaint):
    with one_line(BundleError, match=complaint):
        energies_from_section({**section_of(ENERGIES), **change})

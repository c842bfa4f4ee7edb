"""Opcodes by operands: what passes one value on is a copy, whatever unit it goes through, and all else is what its name says."""

import json

import numpy as np
import pytest

from estimator.counts.opcodes import sass_class
from microbench.toolchain.inspect import PRODUCTS, operation
from tests.microbench.golden import OPERAND_ARCHITECTURES, OPERANDS, operand_forms
from tests.microbench.kernels import kernel_named

FORMS = json.loads(OPERANDS.read_text())
NDIGITS = 6


def computed(opcode, values):
    """What an instruction gives for its sources; a half's pair of constants is one summand."""
    if len(values) > 3:  # two halves of one number: the second factor where both are 1, else the summand
        values = [values[0], *values[2:]] if values[1] == values[2] == 1.0 else values[:3]
    if opcode.partition(".")[0] in PRODUCTS:
        return values[0] * values[1] + sum(values[2:])
    return sum(values)


@pytest.mark.parametrize("form", FORMS)
def test_an_instruction_is_a_copy_just_where_its_result_is_one_of_its_sources(form):
    """The oracle computes with numbers, and knows neither names nor zeros of registers."""
    opcode, *sources = form.split()
    if "X" in opcode.split("."):
        assert operation(opcode, sources) == opcode  # there is a carry in the sum
        return
    generator = np.random.default_rng(7)
    values = [float(word) if word in "01" else float(generator.uniform(2.0, 9.0)) for word in sources]
    result = round(computed(opcode, values), NDIGITS)
    copied = any(result == round(value, NDIGITS) for value in [0.0, *values])
    assert ("MOV" in operation(opcode, ["RZ" if word == "0" else word for word in sources]).split(".")) == copied


@pytest.mark.parametrize(
    "form, name",
    [
        ("IMAD.U32 R2 R3.reuse R4", "IMAD"),
        ("IMAD.U32 RZ RZ UR4", "IMAD.MOV"),
        ("IMAD.IADD R2 0x1 R3", "IMAD.IADD"),
        ("IMAD.X RZ RZ R3", "IMAD.X"),
        ("IMAD.HI.U32 R2 R3 RZ", "IMAD.HI"),
        ("FADD -RZ |R3|", "FADD.MOV"),
        ("HFMA2.MMA -RZ RZ 0 5.9604644775390625e-08", "HFMA2.MOV"),
        ("HFMA2.BF16_V2 R2 R3 -RZ", "HFMA2.BF16_V2"),
    ],
)
def test_classes_of_forms_that_the_assembler_writes(form, name):
    opcode, *sources = form.split()
    assert sass_class(operation(opcode, sources)) == name


@pytest.mark.parametrize("level", ["O0", "O3"])
@pytest.mark.parametrize("architecture", OPERAND_ARCHITECTURES)
def test_the_assembler_here_writes_no_form_that_was_not_looked_at(architecture, level, toolchain):
    names = ("imad_k8_u64", "isub_k8_u64", "idiv_s32_k8_u16", "fdiv_rn_k8_u16", "ddiv_k4_u8", "iabs_k8_u32", "hfma2_k8_u64", "madc_k8_u64")
    kernels = [kernel_named(name) for name in names]
    seen = operand_forms(kernels, architecture, level, toolchain)
    assert "IMAD.U32 r r r" in seen or level == "O3"
    assert {form for form in seen if f"{architecture}-{level}" not in FORMS.get(form, "")} == set()

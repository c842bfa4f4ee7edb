"""Energies of low confidence are marked, with the reason, wherever they are shown; what is not known says why."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from estimator import load_gpu
from estimator.counts.energies import energies_from_section, section_of
from estimator.counts.opcodes import RARE
from estimator.counts.prices import LIKE_SPREAD
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.reader import plain
from fitter.bundle.sections import prior_bundle
from fitter.instructions.display import instruction_tables
from fitter.instructions.section import fit_instructions, link_energies
from fitter.rows.columns import InstructionRows
from tests.fitter.test_instruction_links import COPY, rows_of
from tests.fitter.test_instruction_rows import CONTROL, ROW, made_row, made_rows

GPU = load_gpu("a100-pcie-40gb")
DENSE, SPARSE = "HMMA.16816.F32", "HMMA.SP.16832.F32"
PRODUCT_J = 80e-12


def with_body(row, name, opcode, ptx, *, lane_j):
    """A run of FFMA made one of another opcode, whose lanes cost `lane_j` more."""
    work = row.body["FFMA"] * row.threads * row.turns
    return replace(
        row,
        kernel=name,
        instruction=ptx,
        body={opcode: row.body["FFMA"], **CONTROL},
        operations={ptx: row.body["FFMA"]},
        power_w=row.power_w + lane_j * work / row.latency_s,
    )


def products(opcode, name, count=2):
    """Runs of a matrix instruction."""
    each = [made_row(name, {"FFMA": 64.0, **CONTROL}, {"x": 64.0}, blocks=864.0, lanes=32.0, speed=0.3 + 0.2 * i) for i in range(count)]
    return [with_body(row, name, opcode, f"{name}.f32", lane_j=PRODUCT_J) for row in each]


def fitted(*more):
    return fit_instructions(InstructionRows(rows=(*made_rows().rows, *more)), GPU)


def bundle(energies):
    section = json.loads(json.dumps(section_of(energies)))
    assert section_of(energies_from_section(section) or energies) == section_of(energies)
    return replace(prior_bundle(GPU), instruction_energies=FrozenMapping(section))


def line_of(name, energies):
    return next(line for table in instruction_tables(bundle(energies)) for line in table.lines() if line.split()[0] == name)


def ffma_with(*opcodes, speed=0.7, **change):
    """A run of FFMA of which some instructions are others."""
    row = made_row("c_k8_u64", {"FFMA": 64.0, **CONTROL}, {"x": 64.0}, blocks=864.0, lanes=32.0, speed=speed)
    return replace(row, body={"FFMA": 64.0 - sum(count for _, count in opcodes), **dict(opcodes), **CONTROL}, **change)


MOVES = [ffma_with(("IMAD.MOV.U32", 10.0), speed=speed, power_std_w=20.0) for speed in (0.8, 0.6)]
"""A copy in two bodies, each of which could have any share of what it costs: its error is larger than itself."""


@pytest.mark.parametrize(
    "rows, name, reason",
    [
        (products(DENSE, "mma_f16", 1), DENSE, "one run is made of it, so that nothing checks it"),
        (products(DENSE, "mma_f16", 3), DENSE, ""),
        (MOVES, "IMAD.MOV", "its error is more than 25% of it"),
        ([ffma_with(("BREV", 4.0))], RARE, "one figure for all classes that no run is made of"),
    ],
)
def test_a_class_of_low_confidence_is_marked_with_the_reason(rows, name, reason):
    energies = fitted(*rows)
    assert energies.doubts.get(name, "") == reason
    assert line_of(name, energies).endswith(reason or "pJ")
    assert "FFMA" not in energies.doubts
    if "mma_f16" in energies.ptx:
        assert energies.ptx["mma_f16"].low_confidence == (f"{name}: {reason}" if reason else "")


def throttled(*rows, opcode, name):
    """A fit that leaves out the only run of an opcode: throttled at an unknown voltage."""
    left_out = replace(products(opcode, name, 1)[0], throttled=True)
    known = (*made_rows().rows, *rows, left_out)
    return fit_instructions(InstructionRows(rows=tuple(replace(row, voltage_v=math.nan) for row in known)), replace(GPU, voltage_v=None))


def test_a_sparse_product_that_the_regression_left_out_is_priced_as_a_dense_one_and_marked():
    """What rare classes share would be a tenth of it."""
    energies = throttled(*products(DENSE, "mma_f16"), ffma_with(("BREV", 4.0)), opcode=SPARSE, name="mma_sparse_f16")
    assert SPARSE not in energies.classes
    dense, sparse = energies.ptx["mma_f16"], energies.ptx["mma_sparse_f16"]
    assert sparse.energy_j == pytest.approx(dense.energy_j, rel=1e-6)
    assert sparse.std_j > 0.9 * LIKE_SPREAD * sparse.energy_j
    assert sparse.low_confidence == f"{SPARSE}: no run is made of it; at the energy of {DENSE}"
    assert line_of("mma_sparse_f16", energies).endswith(sparse.low_confidence)


def test_a_product_that_nothing_stands_for_is_unknown_with_the_reason_and_null_in_the_bundle():
    energies = throttled(opcode="IMMA.16832.S8.S8.SAT", name="mma_s8")
    one, line = energies.ptx["mma_s8"], line_of("mma_s8", energies)
    assert math.isnan(one.energy_j)
    assert section_of(energies)["ptx"]["mma_s8"]["energy_j"] is None
    assert "unknown" in line
    assert line.endswith(one.low_confidence)
    assert "nor of another IMMA.S8.S8 instruction" in one.low_confidence


def test_a_copy_without_an_energy_says_why_and_takes_the_rest_of_others_where_there_is_one():
    unrested = rows_of({**COPY, "idle_before_w": None})
    alone = link_energies(InstructionRows(rows=unrested))["copy_host_to_device"]
    assert math.isnan(alone.j_per_byte)
    assert alone.why_unknown.startswith("no power at rest (idle_before_w)")
    shown = replace(prior_bundle(GPU), instruction_energies=FrozenMapping({"links": plain({"copy_host_to_device": alone})}))
    (table,) = instruction_tables(shown)
    assert table.lines()[-1].endswith(alone.why_unknown)
    others = rows_of({**ROW, "idle_before_w": 44.0}, {**ROW, "idle_before_w": 46.0})
    known = link_energies(InstructionRows(rows=(*unrested, *others)))["copy_host_to_device"]
    assert known.j_per_byte == pytest.approx((70.0 - 45.0) * 0.04 / 1e9)
    assert known.std_j >= np.std([44.0, 46.0]) * 0.04 / 1e9
    assert known.why_unknown == ""
    elsewhere = rows_of({**COPY, "idle_before_w": None, "sm_clock_mhz": 510.0}, {**ROW, "sm_clock_mhz": 900.0})
    assert link_energies(InstructionRows(rows=elsewhere))["copy_host_to_device"].why_unknown

"""Energies of low confidence are marked, with the reason, wherever they are shown; what is not known says why."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from estimator.bundle.content import Bundle
from estimator.counts.energies import InstructionEnergies, energies_from_section, links_document, section_of
from estimator.counts.opcodes import RARE
from estimator.counts.prices import LIKE_SPREAD
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.specifications import load_gpu
from fitter.bundle.sections import prior_bundle
from fitter.instructions.display import instruction_tables
from fitter.instructions.energies import fit_instructions
from fitter.instructions.section import link_energies
from fitter.rows.instruction_dataset import InstructionRow, InstructionRows
from tests.fitter.test_instruction_links import COPY, rows_of
from tests.fitter.test_instruction_rows import CONTROL, ROW, made_row, made_rows

GPU = load_gpu("a100-pcie-40gb")
DENSE, SPARSE = "HMMA.16816.F32", "HMMA.SP.16832.F32"
PRODUCT_J = 80e-12


def with_body(row: InstructionRow, name: str, opcode: str, ptx: str, *, lane_j: float) -> InstructionRow:
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


def products(opcode: str, name: str, count: int = 2) -> list[InstructionRow]:
    """Runs of a matrix instruction."""
    each = [made_row(name, {"FFMA": 64.0, **CONTROL}, {"x": 64.0}, blocks=864.0, lanes=32.0, speed=0.3 + 0.2 * i) for i in range(count)]
    return [with_body(row, name, opcode, f"{name}.f32", lane_j=PRODUCT_J) for row in each]


def fitted(*more: InstructionRow) -> InstructionEnergies:
    return fit_instructions(InstructionRows(rows=(*made_rows().rows, *more)), GPU)


def bundle(energies: InstructionEnergies) -> Bundle:
    section = json.loads(json.dumps(section_of(energies)))
    assert section_of(energies_from_section(section) or energies) == section_of(energies)
    return replace(prior_bundle(GPU), instruction_energies=FrozenMapping(section))


def line_of(name: str, energies: InstructionEnergies) -> str:
    return next(line for table in instruction_tables(bundle(energies)) for line in table.lines() if line.split()[0] == name)


def test_a_class_of_one_run_is_marked_and_one_of_several_is_not() -> None:
    few, several = fitted(*products(DENSE, "mma_f16", 1)), fitted(*products(DENSE, "mma_f16", 3))
    assert "one run is made of it" in few.doubts[DENSE]
    assert DENSE not in several.doubts
    assert "FFMA" not in few.doubts
    assert line_of(DENSE, few).endswith(few.doubts[DENSE])
    assert line_of(DENSE, several).endswith("pJ")
    assert few.ptx["mma_f16"].low_confidence.startswith(f"{DENSE}: one run is made of it")
    assert several.ptx["mma_f16"].low_confidence == ""


def test_a_class_that_only_accompanies_others_in_noise_is_marked() -> None:
    """A copy in two bodies, each of which could have any share of what it costs: its error is larger than itself."""
    rows = []
    for name, opcode, speed in (("a_k8_u64", "IMAD.MOV.U32", 0.8), ("b_k8_u64", "IMAD.MOV.U32", 0.6)):
        row = made_row(name, {"FFMA": 64.0, **CONTROL}, {"x": 64.0}, blocks=864.0, lanes=32.0, speed=speed)
        rows.append(replace(row, body={opcode: 10.0, "FFMA": 54.0, **CONTROL}, power_std_w=20.0))
    energies = fitted(*rows)
    value, std = energies.epi_j("IMAD.MOV")
    assert std > 0.25 * value
    assert energies.doubts["IMAD.MOV"] == "its error is more than 25% of it"
    assert line_of("IMAD.MOV", energies).endswith(energies.doubts["IMAD.MOV"])


def test_what_rare_classes_share_is_always_marked_with_what_it_is_of() -> None:
    row = made_row("c_k8_u64", {"FFMA": 64.0, **CONTROL}, {"x": 64.0}, blocks=864.0, lanes=32.0, speed=0.7)
    energies = fitted(replace(row, body={"FFMA": 60.0, "BREV": 4.0, **CONTROL}))
    assert energies.doubts[RARE] == "one figure for BREV, which no run is made of"
    assert line_of(RARE, energies).endswith(energies.doubts[RARE])


def test_a_sparse_product_that_the_regression_left_out_is_priced_as_a_dense_one_and_marked() -> None:
    """Throttled at an unknown voltage it is in no regression, and what rare classes share would be a tenth of it."""
    rare = made_row("c_k8_u64", {"FFMA": 60.0, "LOP3": 4.0, **CONTROL}, {"x": 60.0}, blocks=864.0, lanes=32.0, speed=0.7)
    kept = (*made_rows().rows, *products(DENSE, "mma_f16"), replace(rare, body={"FFMA": 60.0, "BREV": 4.0, **CONTROL}))
    left_out = replace(products(SPARSE, "mma_sparse_f16", 1)[0], throttled=True)
    rows = InstructionRows(rows=tuple(replace(row, voltage_v=math.nan) for row in (*kept, left_out)))
    energies = fit_instructions(rows, replace(GPU, voltage_v=None))
    assert SPARSE not in energies.classes
    dense, sparse = energies.ptx["mma_f16"], energies.ptx["mma_sparse_f16"]
    assert sparse.energy_j == pytest.approx(dense.energy_j, rel=1e-6)
    assert sparse.std_j > 0.9 * LIKE_SPREAD * sparse.energy_j
    assert sparse.low_confidence == f"{SPARSE}: no run is made of it; at the energy of {DENSE}"
    assert line_of("mma_sparse_f16", energies).endswith(sparse.low_confidence)


def test_a_product_that_nothing_stands_for_is_unknown_with_the_reason_and_null_in_the_bundle() -> None:
    left_out = replace(products("IMMA.16832.S8.S8.SAT", "mma_s8", 1)[0], throttled=True)
    rows = InstructionRows(rows=tuple(replace(row, voltage_v=math.nan) for row in (*made_rows().rows, left_out)))
    energies = fit_instructions(rows, replace(GPU, voltage_v=None))
    one = energies.ptx["mma_s8"]
    assert math.isnan(one.energy_j)
    assert "nor of another IMMA.S8.S8 instruction" in one.low_confidence
    assert section_of(energies)["ptx"]["mma_s8"]["energy_j"] is None
    line = line_of("mma_s8", energies)
    assert "unknown" in line
    assert line.endswith(one.low_confidence)


def test_a_figure_of_the_published_formula_that_is_missing_says_why() -> None:
    energies = fitted()
    assert {key.partition(".")[0] for key in energies.ptx["ffma"].published_j} == {"full"}
    assert dict(energies.ptx["ffma"].unpublished) == {"single": "not run as single"}
    assert "not run as single" in line_of("ffma", energies)
    alone = replace(next(row for row in made_rows().rows if row.kernel == "ffma_k8_u256"), mode="single")
    assert dict(fitted(alone).ptx["ffma"].unpublished) == {"single": "empty_loop not run as single"}
    empty = next(row for row in made_rows().rows if row.kernel == "empty_loop")
    assert dict(fitted(alone, replace(empty, mode="single")).ptx["ffma"].unpublished) == {}


def test_a_copy_without_an_energy_says_why_and_takes_the_rest_of_others_where_there_is_one() -> None:
    unrested = rows_of({**COPY, "idle_before_w": None})
    alone = link_energies(InstructionRows(rows=unrested))["copy_host_to_device"]
    assert math.isnan(alone.j_per_byte)
    assert alone.why_unknown.startswith("no power at rest at the current clock (idle_before_w")
    shown = replace(prior_bundle(GPU), instruction_energies=FrozenMapping({"links": links_document({"copy_host_to_device": alone})}))
    (table,) = instruction_tables(shown)
    assert table.lines()[-1].endswith(alone.why_unknown)
    others = rows_of({**ROW, "idle_before_w": 44.0}, {**ROW, "idle_before_w": 46.0})
    known = link_energies(InstructionRows(rows=(*unrested, *others)))["copy_host_to_device"]
    assert known.j_per_byte == pytest.approx((70.0 - 45.0) * 0.04 / 1e9)
    assert known.std_j >= np.std([44.0, 46.0]) * 0.04 / 1e9
    assert known.why_unknown == ""
    elsewhere = rows_of({**ROW, "sm_clock_mhz": 900.0})
    other_clock = rows_of({**COPY, "idle_before_w": None, "sm_clock_mhz": 510.0})
    assert "at 510 MHz" in link_energies(InstructionRows(rows=(*other_clock, *elsewhere)))["copy_host_to_device"].why_unknown

"""Rows of generated kernels and links: read, fitted on known truth, PTX rows derived; what is left out, doubtful or unknown says why."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from estimator import load_gpu
from estimator.counts.energies import CONSTANT, INSTRUCTION, ISSUE, LOOP, STALL, section_of, stall_slots
from estimator.counts.opcodes import RARE, loop_classes, sass_class
from estimator.counts.prices import LIKE_SPREAD
from estimator.model.power import BoardTables
from estimator.vocabulary.errors import CountsError
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.gpu import ClockTable
from estimator.vocabulary.reader import plain
from fitter.bundle.sections import prior_bundle
from fitter.errors import CalibrationError
from fitter.instructions.display import bundle_energies, instruction_tables
from fitter.instructions.ptx import published_differences
from fitter.instructions.published import compared_with_table, level_ratio, table_document, table_errors
from fitter.instructions.section import FEWEST_ROWS, fit_instructions, fitted_rows, instruction_section, link_energies, predict_instructions
from fitter.rows.columns import InstructionRows, Selection
from fitter.rows.instruction_dataset import read_instruction_rows
from fitter.rows.tables import Table
from fitter.validate.predictions import error_rows
from tests.collector.dataset_rows import rows_to_table

GPU = load_gpu("a100-pcie-40gb")
TRUTH = {CONSTANT: 60.0, STALL: 45e-12, ISSUE: 65e-12, LOOP: 2e-12, "FFMA": 4.5e-12, "LOP3": 2.1e-12, "FADD": 3.2e-12}
IDLE_W = 45.0
BOARD = BoardTables(
    gpu=GPU, voltage_v=None, idle_w=ClockTable(sm_clock_mhz=(210.0, 1410.0), value=(IDLE_W, IDLE_W)), reference_clock_mhz=900.0
)
BLIND = replace(BOARD, gpu=replace(GPU, voltage_v=None))
ROW = json.loads(r"""{
"row_id": "0", "family": "instruction", "operator": "ffma_k8_u64", "precision": "f32", "cuda_cores": false, "gpu": "a100-pcie-40gb",
"gpu_uuid": "GPU-0", "throttle_reasons": 0, "launches": 100, "samples": 20, "flags": [], "trial": 0, "seed": 0, "grid_x": 108, "grid_y":
1, "grid_z": 1, "latency_s": 0.004, "power_w": 150.0, "power_std_w": 0.2, "idle_before_w": 45.0, "temperature_before_c": 40.0,
"temperature_c": 45.0, "sm_clock_measured_mhz": 1410.0, "voltage_v": 0.9, "instruction": "fma.rn.f32", "launch_mode": "full",
"data_pattern": "random", "unroll": 64, "chains": 8, "iterations": 1000, "active_threads": 27648, "active_warps": 864, "loop_opcodes":
"{\"FFMA\":64,\"UIADD3\":1,\"ISETP.NE.AND\":1,\"BRA\":1}", "loop_operations": "{\"fma.rn.f32\":64.0}", "assembler": "ptxas",
"energy_mtsm_j": 0.6
}""")


def read_rows(*rows):
    """Instructions that rows of a data set hold, and what of them is rejected."""
    found = read_instruction_rows(Table.of(rows_to_table(list(rows), {}), Path("x.parquet")))
    return found.instructions, list(found.rejected)


def read_one(**change):
    found, rejected = read_rows({**ROW, **change})
    return rejected[0] if rejected else found.rows[0]


def made_row(name, body, operations, *, blocks, lanes, speed):
    """A run of which every count is known and whose energy is that of TRUTH."""
    known = read_one()
    turns, warps = 5000.0, 8.0 * blocks
    classes, issued_once = loop_classes(body)
    issued = issued_once * warps * turns
    latency = issued / (4.0 * min(blocks, GPU.num_sms) * 1410e6) / speed
    stalls = stall_slots(latency, 1410.0, min(blocks, GPU.num_sms), issued)
    joule = sum(TRUTH[part] * count * warps * lanes * turns for part, count in classes.items())
    joule += TRUTH[ISSUE] * issued + TRUTH[STALL] * stalls + TRUTH[LOOP] * warps * lanes * turns + TRUTH[CONSTANT] * latency
    power = joule / latency + IDLE_W
    return replace(
        known,
        kernel=name,
        instruction=next(iter(operations)),
        mode="full",
        unroll=int(next(iter(operations.values()))),
        body=body,
        operations=operations,
        turns=turns,
        threads=warps * lanes,
        warps=warps,
        blocks=blocks,
        latency_s=latency,
        power_w=power,
        idle_w=IDLE_W,
        published=dict.fromkeys(("mtsm", "sma", "papi"), power * latency),
    )


CONTROL = {"UIADD3": 1.0, "ISETP.NE.AND": 1.0, "BRA": 1.0}


def made_rows():
    """Three instructions and the empty loop at several unroll factors, occupancies, lanes and speeds, without any noise."""
    rows = []
    for opcode, ptx in (("FFMA", "fma.rn.f32"), ("LOP3.LUT", "lop3.b32"), ("FADD", "add.rn.f32")):
        for unroll, blocks, lanes, speed in (
            (16.0, 864.0, 32.0, 0.5), (64.0, 864.0, 32.0, 0.9), (256.0, 864.0, 32.0, 0.6), (64.0, 54.0, 32.0, 0.4), (64.0, 1.0, 32.0, 0.3),
            (64.0, 864.0, 8.0, 0.9), (64.0, 864.0, 1.0, 0.7),
        ):  # fmt: skip
            name = f"{sass_class(opcode).lower()}_k8_u{unroll:.0f}"
            rows.append(made_row(name, {opcode: unroll, **CONTROL}, {ptx: unroll}, blocks=blocks, lanes=lanes, speed=speed))
    mixed = {"FFMA": 32.0, "LOP3.LUT": 32.0, **CONTROL}
    rows.append(made_row("mix_k8_u32", mixed, {"fma.rn.f32": 32.0, "xor.b32": 32.0}, blocks=864.0, lanes=32.0, speed=0.8))
    rows.append(made_row("empty_loop", dict(CONTROL), {"mov.b32": 1.0}, blocks=864.0, lanes=32.0, speed=0.5))
    return InstructionRows(rows=tuple(rows))


MADE = made_rows()


def bundle(section):
    return replace(prior_bundle(GPU), idle=BOARD.idle_w, instruction_energies=FrozenMapping(section))


def test_without_noise_the_truth_comes_back_in_terms_and_in_ptx_rows():
    energies = fit_instructions(MADE, BOARD)
    for name, joule in TRUTH.items():
        value, _ = energies.term(name if name in (CONSTANT, STALL, ISSUE, LOOP) else INSTRUCTION + name)
        assert value == pytest.approx(joule, rel=2e-3), name
    assert all(known for term, known in zip(energies.terms, energies.identified, strict=True) if "rare" not in term)
    assert np.allclose(energies.covariance, energies.covariance.T)
    assert np.linalg.eigvalsh(energies.covariance / np.outer(*[np.sqrt(np.diag(energies.covariance))] * 2)).min() > -1e-9
    mix, ffma = energies.ptx["mix"], energies.ptx["ffma"]  # companions are taken out of a PTX row at their own price
    assert (dict(mix.classes), mix.companions) == (pytest.approx({"FFMA": 1.0}), False)
    assert mix.energy_j == pytest.approx(ffma.energy_j)
    row, empty = (next(row for row in reversed(MADE.rows) if row.kernel == name) for name in ("ffma_k8_u64", "empty_loop"))
    expected = (row.power_w * row.latency_s / row.threads - empty.power_w * empty.latency_s / empty.threads) / row.turns / 64.0
    assert published_differences(MADE)["ffma_k8_u64"]["full.mtsm"] == pytest.approx(expected)
    found, remarks = predict_instructions(bundle(section_of(energies)), MADE)
    (errors,) = error_rows(found)
    assert (errors["operator"], errors["n"], remarks) == ("full", len(MADE), ())
    assert errors["power"]["p95"] < 1.0


def test_stated_errors_grow_with_those_of_the_readings_and_hold_the_sensors_gain():
    blurred = InstructionRows(rows=tuple(replace(row, power_std_w=5.0) for row in MADE.rows))
    sharp, vague, unsure = fit_instructions(MADE, BOARD), fit_instructions(blurred, BOARD), fit_instructions(MADE, BOARD, gain_std=0.05)
    assert vague.term(STALL)[1] > 3.0 * sharp.term(STALL)[1]
    assert np.array_equal(sharp.values, unsure.values)
    for name in (INSTRUCTION + "FFMA", STALL):
        value, std = unsure.term(name)
        assert std == pytest.approx(np.hypot(sharp.term(name)[1], 0.05 * value))


ASSEMBLED = "ptxas 12.9.86 -{} sm_80"


def with_levels():
    """Runs at O3, and ffma and the empty loop at O0 too, where a copy stands beside each multiply-add; both on one thread as well."""
    o3 = [replace(row, assembler=ASSEMBLED.format("O3")) for row in MADE.rows]
    o0 = [
        replace(
            row,
            assembler=ASSEMBLED.format("O0"),
            body=row.body | ({"LOP3.LUT": row.body["FFMA"]} if "FFMA" in row.body else {}),
            latency_s=2 * row.latency_s,
            published={name: 2.2 * joule for name, joule in row.published.items()},
        )
        for row in o3
        if row.mode == "full" and row.kernel in ("ffma_k8_u64", "empty_loop")
    ]
    single = [
        replace(row, mode="single", threads=1.0) for row in (*o3, *o0) if row.mode == "full" and row.kernel in ("ffma_k8_u64", "empty_loop")
    ]
    return InstructionRows(rows=(*o3, *o0, *single))


def test_one_level_of_the_assembler_never_replaces_the_other():
    rows = with_levels()
    for order in (rows, InstructionRows(rows=rows.rows[::-1])):
        ptx = fit_instructions(order, BOARD).ptx
        assert {name: one.level for name, one in ptx.items() if name.startswith("ffma")} == {"ffma.O0": "O0", "ffma.O3": "O3"}
        assert ptx["ffma.O3"].classes == pytest.approx({"FFMA": 1.0})
        assert ptx["ffma.O0"].classes == pytest.approx({"FFMA": 1.0, "LOP3": 1.0})
        assert ptx["ffma.O0"].energy_j > ptx["ffma.O3"].energy_j
        assert ptx["ffma.O0"].published_j["full.mtsm"] > 1.5 * ptx["ffma.O3"].published_j["full.mtsm"]
    (host,) = [replace(row, link="host", link_bytes=1e9) for row in rows.rows if row.kernel == "empty_loop"][:1]
    both = InstructionRows(rows=(host, replace(host, assembler=ASSEMBLED.format("O0"))))
    assert set(link_energies(both)) == {"empty_loop.O3", "empty_loop.O0"}


def test_the_published_table_stands_beside_both_levels_with_errors_as_the_paper_states_them():
    energies = fit_instructions(with_levels(), BOARD)
    title, rows = compared_with_table(energies, "volta")
    assert "TITAN V" in title
    (o3, o0) = rows[rows["name"].str.startswith("f32 mul")].itertuples(index=False)
    assert (o3.published_j, o0.published_j) == pytest.approx((0.0014e-6, 0.4797e-6))
    for row in (o3, o0):
        one = energies.ptx[f"ffma.{row.level}"]
        assert (row.own_j, row.energy_j) == pytest.approx((one.published_j["single.mtsm"], one.energy_j))
    for errors, row in zip(table_errors(rows).itertuples(), (o3, o0), strict=True):
        off = row.own_j - row.published_j
        assert (errors.n, errors.mape, errors.rmse_j) == pytest.approx((1, 100 * abs(off) / row.published_j, abs(off)))
    document = table_document(title, rows)
    assert [len(document[name]) for name in ("rows", "levels", "errors")] == [2 * 32, 32, 2]
    (levels,) = [one for one in document["levels"] if one["name"].startswith("f32 mul")]
    ratios = [getattr(o0, name) / getattr(o3, name) for name in ("published_j", "own_j", "energy_j")]
    assert [levels[f"{name}_o0_over_o3"] for name in ("published", "own", "energy")] == pytest.approx(ratios)
    assert level_ratio(energies, "ffma") == pytest.approx(ratios[-1])
    with pytest.raises(CountsError, match="has no 'vlta'; it has"):
        compared_with_table(energies, "vlta")
    assert (compared_with_table(energies, "maxwell")[1]["published_j"] > 0).all()  # which has no half precision


@pytest.mark.parametrize("volt", [0.0, None])
def test_a_throttled_run_at_a_voltage_that_was_not_read_is_left_out(volt):
    rows = tuple(replace(row, voltage_v=read_one(voltage_v=volt).voltage_v) for row in MADE.rows)
    slowed = replace(rows[0], throttled=True, power_w=3.0 * rows[0].power_w)
    assert fit_instructions(InstructionRows(rows=(slowed, *rows)), BLIND).rows == len(rows)


@pytest.mark.parametrize(
    "change, count, complaint",
    [
        ({}, FEWEST_ROWS - 1, r"11 runs of generated kernels .* need 12 .*--campaign instructions"),
        ({"mode": "single"}, 99, "0 runs"),
        ({"power_w": IDLE_W}, 99, "no run of generated kernels draws more than the board at rest; check power_w and .* idle_w"),
    ],
)
def test_runs_without_an_answer_are_refused_in_one_line(change, count, complaint):
    rows = InstructionRows(rows=tuple(replace(row, **change) for row in MADE.rows[:count]))
    with pytest.raises(CalibrationError, match=complaint):
        fit_instructions(rows, BOARD)


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"loop_opcodes": None}, "BAD_HISTOGRAM"),
        ({"power_w": None}, "BAD_POWER"),
        ({"latency_s": None}, "BAD_LATENCY"),
        ({"sm_clock_measured_mhz": None}, "BAD_CLOCK"),
        ({"iterations": None}, "BAD_ITERATIONS"),
        ({"flags": ["result_wrong"]}, "RESULT_WRONG"),
        ({"link": "host", "link_bytes": 0.0}, "BAD_COUNT"),
        *[({"loop_opcodes": text}, "BAD_HISTOGRAM") for text in ("[" * 4000, "{}", '{"FFMA": -1}', '{"FFMA": true}', "7")],
        ({"loop_operations": json.dumps({"x": 10**400})}, "BAD_HISTOGRAM"),
        ({"loop_opcodes": json.dumps({"x" * 70_000: 1})}, "BAD_TEXT"),
        ({"dram_transactions": -1.0}, "BAD_COUNT"),
        ({"gpu": "abacus"}, "UNKNOWN_GPU"),
    ],
)
def test_a_row_that_cannot_be_is_rejected_with_its_reason(change, reason):
    good, row = read_one(), read_one(**change)
    assert good.body == {"FFMA": 64.0, "UIADD3": 1.0, "ISETP.NE.AND": 1.0, "BRA": 1.0}
    assert (good.threads, good.turns, good.blocks, good.random) == (27648.0, 1000.0, 108.0, True)
    assert (row.reason, row.source, row.row) == (reason, "x.parquet", 1)
    assert "\n" not in row.detail


OF_KERNELS = ("loop_", "active_", "grid_", "iterations", "launch_mode", "unroll")
COPY = {
    **{name: value for name, value in ROW.items() if not name.startswith(OF_KERNELS)},
    "operator": "copy_host_to_device", "precision": "none", "instruction": "copy engine", "chains": None, "assembler": None,
    "link": "host", "link_bytes": 1e9, "latency_s": 0.04, "power_w": 70.0, "idle_before_w": 45.0,
}  # fmt: skip


def rows_of(*given_rows):
    rows, rejected = read_rows(*({**row, "row_id": str(number)} for number, row in enumerate(given_rows)))
    assert rejected == []
    return rows.rows


def copied(*given_rows, gain_std=0.0):
    """What rows tell of copies to the device."""
    return link_energies(InstructionRows(rows=rows_of(*given_rows)), gain_std)["copy_host_to_device"]


def test_a_byte_costs_what_the_board_draws_beyond_rest_while_it_crosses():
    size, latency_s, power_w = 3e8, 0.02, 110.0
    known = {**COPY, "link_bytes": size, "latency_s": latency_s}
    one = copied({**known, "power_w": power_w})
    assert one.bytes_per_s == pytest.approx(size / latency_s)
    assert one.j_per_byte == pytest.approx((power_w - 45.0) * latency_s / size)
    assert one.std_j == pytest.approx(0.2 * latency_s / size)
    assert copied({**known, "power_w": power_w}, gain_std=0.05).std_j >= 0.05 * one.j_per_byte
    mean = copied(*({**known, "power_w": power_w + watt} for watt in (0.0, 2.0, 4.0)))
    assert (mean.runs, mean.j_per_byte) == (3, pytest.approx((power_w - 43.0) * latency_s / size))
    assert mean.std_j == pytest.approx(2.0 * latency_s / size / math.sqrt(3))


PLAIN = MADE.rows[:12]
"""As few runs as suffice for a regression."""


def selected(*rows):
    return Selection(instructions=InstructionRows(rows=rows))


def test_the_section_has_the_links_and_the_regression_has_not():
    copies = rows_of(COPY, {**ROW, "operator": "host_read", "link": "host", "link_bytes": 1e8, "power_w": 90.0})
    single = replace(PLAIN[0], mode="single")
    unrested = replace(PLAIN[1], idle_w=math.nan)
    rows = InstructionRows(rows=(*PLAIN, *copies, single, unrested))
    assert np.flatnonzero(~fitted_rows(rows, GPU)).tolist() == [12, 13, 14]
    section, warnings = instruction_section(selected(*rows.rows), BOARD)
    assert warnings == ()
    assert set(section["links"]) == {"copy_host_to_device", "host_read"}
    without, _ = instruction_section(selected(*PLAIN, single, unrested), BOARD)
    assert "links" not in without
    assert without["values"] == section["values"]
    links = instruction_tables(bundle(section))[-1]
    shown = {row[0]: row[2:5] for row in links.rows}
    assert shown["copy_host_to_device"] == pytest.approx((25.0, 1000.0, 51.0), rel=0.01)


@pytest.mark.parametrize("beside", [0, 1, 11])
def test_links_need_no_regression(beside):
    copies = rows_of(COPY, {**COPY, "operator": "copy_device_to_host"})
    section, remarks = instruction_section(selected(*PLAIN[:beside], *copies), BOARD)
    whole, _ = instruction_section(selected(*PLAIN, *copies), BOARD)
    assert section == {"links": whole["links"]}
    assert [remark.partition(" runs")[0] for remark in remarks] == [f"no instruction energies: {beside}"] * bool(beside)
    assert bundle_energies(bundle(section)) is None
    (links,) = instruction_tables(bundle(section))
    assert [row[0] for row in links.rows] == ["copy_device_to_host", "copy_host_to_device"]
    with pytest.raises(CalibrationError, match="instruction energies need 12"):
        instruction_section(selected(*PLAIN[:11]), BOARD)


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
    return fit_instructions(InstructionRows(rows=(*MADE.rows, *more)), BOARD)


def line_of(name, energies):
    return next(line for table in instruction_tables(bundle(section_of(energies))) for line in table.lines() if line.split()[0] == name)


def ffma_with(*opcodes, speed=0.7, **change):
    """A run of FFMA with some other instructions in it."""
    row = made_row("c_k8_u64", {"FFMA": 64.0, **CONTROL}, {"x": 64.0}, blocks=864.0, lanes=32.0, speed=speed)
    return replace(row, body={"FFMA": 64.0 - sum(count for _, count in opcodes), **dict(opcodes), **CONTROL}, **change)


MOVES = [ffma_with(("IMAD.MOV.U32", 10.0), speed=speed, power_std_w=20.0) for speed in (0.8, 0.6)]
"""A copy in two bodies: its energy can be divided between them in any way, so its error is larger than its value."""


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
    known = (*MADE.rows, *rows, left_out)
    return fit_instructions(InstructionRows(rows=tuple(replace(row, voltage_v=math.nan) for row in known)), BLIND)


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
    unrested = {**COPY, "idle_before_w": None}
    alone = copied(unrested)
    assert math.isnan(alone.j_per_byte)
    assert alone.why_unknown.startswith("no power at rest (idle_before_w)")
    (table,) = instruction_tables(bundle({"links": plain({"copy_host_to_device": alone})}))
    assert table.lines()[-1].endswith(alone.why_unknown)
    known = copied(unrested, {**ROW, "idle_before_w": 44.0}, {**ROW, "idle_before_w": 46.0})
    assert known.j_per_byte == pytest.approx((70.0 - 45.0) * 0.04 / 1e9)
    assert known.std_j >= np.std([44.0, 46.0]) * 0.04 / 1e9
    assert known.why_unknown == ""
    assert copied({**unrested, "sm_clock_mhz": 510.0}, {**ROW, "sm_clock_mhz": 900.0}).why_unknown

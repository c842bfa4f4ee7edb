"""Rows of generated kernels: read and screened, fitted on known truth, PTX rows derived."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from estimator import load_gpu
from estimator.counts.energies import (
    CONSTANT,
    INSTRUCTION,
    ISSUE,
    LOOP,
    STALL,
    section_of,
    stall_slots,
)
from estimator.counts.opcodes import loop_classes, sass_class
from estimator.vocabulary.errors import CountsError
from fitter.bundle.sections import prior_bundle
from fitter.errors import CalibrationError
from fitter.instructions.ptx import published_differences
from fitter.instructions.published import (
    compared_with_table,
    level_ratio,
    table_document,
    table_errors,
)
from fitter.instructions.section import FEWEST_ROWS, fit_instructions, instruction_errors, link_energies
from fitter.rows.columns import InstructionRows
from fitter.rows.instruction_dataset import read_instruction_rows
from fitter.rows.tables import Table
from tests.collector.dataset_rows import rows_to_table

GPU = load_gpu("a100-pcie-40gb")
TRUTH = {CONSTANT: 60.0, STALL: 45e-12, ISSUE: 65e-12, LOOP: 2e-12, "FFMA": 4.5e-12, "LOP3": 2.1e-12, "FADD": 3.2e-12}
IDLE_W = 45.0
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
        idle_c=45.0,
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


def test_without_noise_the_truth_comes_back_in_terms_and_in_ptx_rows():
    energies = fit_instructions(made_rows(), GPU)
    for name, joule in TRUTH.items():
        value, _ = energies.term(name if name in (CONSTANT, STALL, ISSUE, LOOP) else INSTRUCTION + name)
        assert value == pytest.approx(joule, rel=2e-3), name
    assert all(known for term, known in zip(energies.terms, energies.identified, strict=True) if "rare" not in term)
    assert np.allclose(energies.covariance, energies.covariance.T)
    assert np.linalg.eigvalsh(energies.covariance / np.outer(*[np.sqrt(np.diag(energies.covariance))] * 2)).min() > -1e-9
    mix, ffma = energies.ptx["mix"], energies.ptx["ffma"]  # companions are taken out of a PTX row at their own price
    assert (dict(mix.classes), mix.companions) == (pytest.approx({"FFMA": 1.0}), False)
    assert mix.energy_j == pytest.approx(ffma.energy_j)
    row, empty = (next(row for row in reversed(made_rows().rows) if row.kernel == name) for name in ("ffma_k8_u64", "empty_loop"))
    expected = (row.power_w * row.latency_s / row.threads - empty.power_w * empty.latency_s / empty.threads) / row.turns / 64.0
    assert published_differences(made_rows())["ffma_k8_u64"]["full.mtsm"] == pytest.approx(expected)
    bundle = replace(prior_bundle(GPU), instruction_energies=section_of(energies))
    (errors,), remarks = instruction_errors(bundle, made_rows())
    assert (errors["operator"], errors["n"], remarks) == ("full", len(made_rows()), ())
    assert errors["power"]["p95"] < 1.0


def test_stated_errors_grow_with_those_of_the_readings_and_hold_the_sensors_gain():
    rows = made_rows()
    blurred = InstructionRows(rows=tuple(replace(row, power_std_w=5.0) for row in rows.rows))
    sharp, vague, unsure = fit_instructions(rows, GPU), fit_instructions(blurred, GPU), fit_instructions(rows, GPU, gain_std=0.05)
    assert vague.term(STALL)[1] > 3.0 * sharp.term(STALL)[1]
    assert np.array_equal(sharp.values, unsure.values)
    for name in (INSTRUCTION + "FFMA", STALL):
        value, std = unsure.term(name)
        assert std == pytest.approx(np.hypot(sharp.term(name)[1], 0.05 * value))


ASSEMBLED = "ptxas 12.9.86 -{} sm_80"


def with_levels():
    """Runs at O3, and ffma and the empty loop at O0 too, where a copy stands beside each multiply-add; both on one thread as well."""
    o3 = [replace(row, assembler=ASSEMBLED.format("O3")) for row in made_rows().rows]
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
        ptx = fit_instructions(order, GPU).ptx
        assert {name: one.level for name, one in ptx.items() if name.startswith("ffma")} == {"ffma.O0": "O0", "ffma.O3": "O3"}
        assert ptx["ffma.O3"].classes == pytest.approx({"FFMA": 1.0})
        assert ptx["ffma.O0"].classes == pytest.approx({"FFMA": 1.0, "LOP3": 1.0})
        assert ptx["ffma.O0"].energy_j > ptx["ffma.O3"].energy_j
        assert ptx["ffma.O0"].published_j["full.mtsm"] > 1.5 * ptx["ffma.O3"].published_j["full.mtsm"]
    (host,) = [replace(row, link="host", link_bytes=1e9) for row in rows.rows if row.kernel == "empty_loop"][:1]
    both = InstructionRows(rows=(host, replace(host, assembler=ASSEMBLED.format("O0"))))
    assert set(link_energies(both)) == {"empty_loop.O3", "empty_loop.O0"}


def test_the_published_table_stands_beside_both_levels_with_errors_as_the_paper_states_them():
    energies = fit_instructions(with_levels(), GPU)
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
    rows = tuple(replace(row, voltage_v=read_one(voltage_v=volt).voltage_v) for row in made_rows().rows)
    slowed = replace(rows[0], throttled=True, power_w=3.0 * rows[0].power_w)
    assert fit_instructions(InstructionRows(rows=(slowed, *rows)), replace(GPU, voltage_v=None)).rows == len(rows)


@pytest.mark.parametrize(
    "change, count, complaint",
    [
        ({}, FEWEST_ROWS - 1, r"11 runs of generated kernels .* need 12 .*--campaign instructions"),
        ({"mode": "single"}, 99, "0 runs"),
        ({"idle_w": math.nan}, 99, "power at rest"),
        ({"idle_w": 1e9}, 99, "no run of generated kernels draws more than the board at rest; check power_w and idle_before_w"),
    ],
)
def test_runs_without_an_answer_are_refused_in_one_line(change, count, complaint):
    rows = InstructionRows(rows=tuple(replace(row, **change) for row in made_rows().rows[:count]))
    with pytest.raises(CalibrationError, match=complaint):
        fit_instructions(rows, GPU)


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

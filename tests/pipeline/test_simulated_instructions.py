"""A campaign of generated kernels on the simulated A100: what the fit says of instructions, against what was planted.

Simulated figures show plumbing and statistics, not physics.
"""

import json

import numpy as np
import pytest

from collector.cli import main as collect
from collector.dataset.reader import read_kernel_dataset
from collector.simulated.generated import (
    CHANGE_PJ,
    ISSUE_PJ,
    STALL_PJ,
    changes_of_unit,
    planted_body_energy_j,
    planted_transaction_energy_j,
)
from collector.simulated.profile import load_board
from collector.simulated.silicon import JOULE_PER_PICOJOULE
from estimator import load_bundle, load_gpu
from estimator.cli import main as estimate
from estimator.counts.energies import (
    ISSUE,
    STALL,
    TRANSACTION,
    Activity,
    energies_from_section,
    section_of,
)
from estimator.counts.opcodes import loop_classes
from estimator.model.power import BoardTables
from estimator.vocabulary.quantities import HZ_PER_MHZ
from estimator.vocabulary.reader import plain
from fitter.bundle.data_facts import board_knowledge
from fitter.cli import main as fit
from fitter.instructions.section import fit_instructions, row_activity
from fitter.rows.selection import read_selection
from microbench.kernel import WARP_LANES
from microbench.loads.generated import LoadGroup, generated_loads
from microbench.sizing import SUB_PARTITIONS
from tests.collector.dataset_rows import write_kernel_dataset

BOARD = "a100-pcie-40gb"
GPU = load_gpu(BOARD)
TABLES = BoardTables(gpu=GPU, voltage_v=GPU.voltage_v, idle_w=GPU.idle_w, reference_clock_mhz=GPU.sm_clock_max_mhz)
CAMPAIGN = """
description = "some instructions, and a few kernels of a library beside them"
warmup_s = 10.0
idle_settle_s = 2.0
idle_window_s = 2.0
kernels_per_block = 100
anchor_every = 0

[measurement]
updates = 16
window_s = 1.6
settle_s = 3.0
idle_s = 2.0

[[instructions]]
kernels = ["empty_loop", "ffma_k8_*", "iadd3_k8_*", "imad_k8_*", "lop3_xor_k8_*", "fadd_k8_u64", "dfma_k8_*", "fminmax_k8_u64",
           "ex2_k8_u64", "ex2_k8_u256", "popc_k8_u32", "idiv_s32_k8_u16", "lds_chase", "lds_stream", "l1_chase", "l1_stream",
           "l2_chase", "l2_stream", "dram_read", "dram_write", "stall_mix_20", "stall_mix_80"]

[[instructions]]
kernels = ["empty_loop", "imad_k8_u64", "ffma_k8_u64", "iadd_k8_u64", "fsub_k8_u64", "fdiv_rn_k8_u16", "irem_u32_k8_u16",
           "iabs_k8_u32", "mov_k32_u32"]
level = "O0"

[[instructions]]
kernels = ["empty_loop", "ffma_k8_u64", "lop3_xor_k8_u64", "dfma_k8_u64"]
modes = ["sm_sweep", "lane_sweep"]

[[instructions]]
kernels = ["ffma_k1_u64", "dfma_k1_u64", "l2_chase"]
modes = ["sm_sweep"]

[[instructions]]
kernels = ["empty_loop", "ffma_k8_u64", "iadd3_k8_u64", "dfma_k8_u64"]
modes = ["single"]

[[instructions]]
kernels = ["empty_loop", "ffma_k8_u64", "imad_k8_u64"]
modes = ["single"]
level = "O0"

[[kernels]]
family = "elementwise"
operator = "add"
precision = "fp16"
count = 10
[kernels.shape]
elements = { low = 65536, high = 1.0e9, multiple = 256 }
reads = { of = "elements", times = [2] }
"""
TRANSACTIONS_Z = 3.0
"""Energies of transactions lie within so many stated standard deviations: what is planted there is what is fitted."""

BOARD_ERROR = 0.08
"""Stalls and issue come back to this share: changes of unit are in no term, and go into both."""


@pytest.fixture(scope="module")
def measured(toolchain, tmp_path_factory):
    """The dataset of the campaign."""
    folder = tmp_path_factory.mktemp("instructions")
    campaign, path = folder / "campaign.toml", folder / "d.parquet"
    campaign.write_text(CAMPAIGN)
    words = f"--campaign {campaign} --gpu sim:{BOARD} --freqs current --pmd sim --seed 1".split()
    assert collect([*words, "--out", str(path), "--quiet"]) == 0
    return path


@pytest.fixture(scope="module")
def rows(measured):
    found = read_selection([measured]).instructions
    return found


@pytest.fixture(scope="module")
def fitted(measured, rows):
    return fit_instructions(rows, board_knowledge(read_selection([measured]), GPU))


@pytest.fixture(scope="module")
def loads(rows):
    """The measured kernels on registers as they were assembled, one launch of each at each level."""
    names = {(row.kernel, row.level) for row in rows.rows}
    groups = [LoadGroup(kernels=tuple(sorted(name for name, own in names if own == level)), level=level) for level in ("O3", "O0")]
    found, _ = generated_loads(groups, load_gpu(BOARD))
    return tuple(load for load in found if not any(load.transactions().values()))


def planted_slot_energy_j(profile, own_pj):
    """Energy of an issue slot of a working SM's scheduler, ISSUE_PJ or STALL_PJ its own, at the reference voltage [J]."""
    power = profile.power
    slots_per_s = SUB_PARTITIONS * profile.spec.num_sms * power.reference_clock_mhz * HZ_PER_MHZ
    return own_pj * JOULE_PER_PICOJOULE + power.sm_clock_w * (1.0 - power.ungated_share) / slots_per_s


def planted_turn_j(load, reference_voltage_v):
    """What one turn of a loop costs a thread of a full warp, as planted [J]."""
    profile = load_board(BOARD)
    issued = sum(load.entry.body.values()) * planted_slot_energy_j(profile, ISSUE_PJ)
    issued += changes_of_unit(load.entry) * CHANGE_PJ * JOULE_PER_PICOJOULE
    lanes = sum(planted_body_energy_j(profile, load.entry).values())
    return (lanes + issued / WARP_LANES) * (reference_voltage_v / profile.energy.reference_voltage_v) ** 2


def errors_of_turns(energies, loads):
    """Relative error and distance in stated standard deviations of a turn's energy, shape (n, 2)."""
    found = []
    for load in loads:
        classes, issued = loop_classes(load.entry.body)
        activity = Activity(instructions=classes, issued=issued / WARP_LANES, transactions={}, stalls=0.0, time_s=0.0, loops=1.0)
        (joule, std), planted = energies.energy_j(activity), planted_turn_j(load, energies.reference_voltage_v)
        found.append((joule / planted - 1.0, (joule - planted) / std))
    return np.array(found)


def test_energies_of_whole_loops_come_back_to_what_classes_can_say(fitted, loads):
    """What is planted depends on operands and neighbours, which no class knows: errors are small, and most within what is stated."""
    errors = errors_of_turns(fitted, loads)
    assert {load.module.level for load in loads} == {"O0", "O3"}
    assert np.abs(errors[:, 0]).mean() < 0.025
    assert np.mean(np.abs(errors[:, 1]) < 2.0) > 0.8


def test_energies_of_loops_that_the_fit_has_not_seen_come_near(rows, loads):
    """Each kernel in turn is left out of the fit, all its launches of that level."""
    errors = {}
    for load in loads:
        others = np.array([(row.kernel, row.level) != (load.kernel.name, load.module.level) for row in rows.rows])
        error = errors_of_turns(fit_instructions(rows.select(others), TABLES), (load,))[0, 0]
        errors[load.kernel.name, load.module.level] = abs(error)
    assert np.median(list(errors.values())) < 0.02
    assert np.mean(list(errors.values())) < 0.08
    assert errors["imad_k8_u64", "O0"] < 0.05  # IMAD.U32 of three registers, told by the IMAD of O3


def test_what_is_no_class_comes_back(fitted):
    profile = load_board(BOARD)
    volt = (fitted.reference_voltage_v / profile.energy.reference_voltage_v) ** 2
    for level, joule in planted_transaction_energy_j(profile).items():
        value, std = fitted.term(TRANSACTION + level)
        assert abs(value - joule * (1.0 if level == "dram" else volt)) < TRANSACTIONS_Z * std
        assert std < 0.05 * value
    for term, own_pj in ((STALL, STALL_PJ), (ISSUE, ISSUE_PJ)):
        assert fitted.term(term)[0] == pytest.approx(volt * planted_slot_energy_j(profile, own_pj), rel=BOARD_ERROR)


def test_counts_of_a_run_give_the_power_that_it_drew(measured, rows, tmp_path, capsys):
    """At an unlocked clock, at which the board rests at a lower one; of long loops, whose control is little of the work."""
    counts, path = tmp_path / "counts.json", tmp_path / "b.json"
    long = [row for row in rows.rows if row.mode == "full" and row.unroll >= 64 and row.random and not row.throttled]
    kernels = [
        {
            "name": row.kernel,
            "time_s": row.latency_s,
            "opcodes": {name: count * row.warps * row.turns for name, count in row.body.items()},
            "transactions": row.transactions,
            "stalls": row_activity(row, GPU, 0.0).stalls,
        }
        for row in long
    ]
    counts.write_text(json.dumps({"format": "wattprint-activity", "format_version": 1, "kernels": kernels}), encoding="utf-8")
    assert fit(f"{measured} -o {path} --holdout 0 --quiet".split()) in (0, 3)
    capsys.readouterr()
    assert estimate(f"counts {counts} --bundle {path} --json".split()) == 0
    found = [one["power_w"] for one in json.loads(capsys.readouterr().out)["kernels"]]
    assert np.median(np.abs(found / np.array([row.power_w for row in long]) - 1.0)) < 0.02


def test_a_bundle_keeps_the_energies_to_the_last_digit(measured, tmp_path, capsys, fitted):
    """Alone, generated kernels make a bundle with energies and priors; beside a library's kernels, with both."""
    alone, both, content = tmp_path / "alone.json", tmp_path / "both.json", read_kernel_dataset(measured)
    generated = [row for row in content.table.to_pylist() if row["family"] == "instruction"]
    write_kernel_dataset(generated, content.metadata, tmp_path / "generated.parquet")
    assert fit(f"{tmp_path / 'generated.parquet'} -o {alone} --quiet".split()) == 0
    assert fit(f"{measured} -o {both} --report {tmp_path / 'report.html'} --holdout 0 --quiet".split()) in (0, 3)
    assert "beside them the published difference formula" in (tmp_path / "report.html").read_text()
    sections = [load_bundle(path).instruction_energies for path in (alone, both)]
    assert load_bundle(both).groups["elementwise"].rows > 0
    assert load_bundle(alone).groups["elementwise"].rows == 0
    for section in sections:
        energies = energies_from_section(section)
        assert json.loads(json.dumps(section_of(energies))) == json.loads(json.dumps(plain(section)))
    again = energies_from_section(sections[1])
    assert np.array_equal(again.values, fitted.values)
    capsys.readouterr()
    assert fit(f"check {alone} {measured} --json".split()) in (0, 3)
    errors = {row["operator"]: row["power"] for row in json.loads(capsys.readouterr().out)["errors"] if row["family"] == "instruction"}
    assert set(errors) == {"full.O3", "sm_sweep.O3", "lane_sweep.O3", "single.O3", "full.O0", "single.O0"}
    assert all(error["mape"] < 1.0 for error in errors.values())
    assert fit(["show", str(alone)]) == 0
    shown = capsys.readouterr().out
    assert "FFMA" in shown
    assert "static power left in" in shown

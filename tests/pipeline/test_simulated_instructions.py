"""A campaign of generated kernels on the simulated A100: what the fit says of instructions, against what was planted.

Simulated figures show plumbing and statistics, not physics.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from collector.cli import main as collect
from collector.dataset import read_kernel_dataset
from collector.simulated.generated import (
    planted_issue_energy_j,
    planted_lane_energy_j,
    planted_stall_energy_j,
    planted_transaction_energy_j,
)
from collector.simulated.profile import load_board
from estimator.bundles.files import load_bundle
from estimator.frozen import thaw
from estimator.instructions.energies import INSTRUCTION, ISSUE, STALL, TRANSACTION, InstructionEnergies, energies_from_section, section_of
from estimator.quantities import Array
from estimator.specifications import load_gpu
from fitter.cli import main as fit
from fitter.instructions.data import InstructionRows
from fitter.instructions.display import bias_svg, sampling_svg
from fitter.instructions.energies import excess_power_w, fit_instructions, row_activity
from fitter.selection import read_selection
from microbench.compile import find_toolchain
from microbench.errors import CompileError

BOARD = "a100-pcie-40gb"
SEEDS = (1, 2)
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
kernels = ["empty_loop", "imad_k8_u64", "ffma_k8_u64", "iadd_k8_u64", "fsub_k8_u64", "fdiv_rn_k8_u16", "irem_u32_k8_u16", "iabs_k8_u32", "mov_k32_u32"]
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
PLAIN = {
    "FFMA": "FFMA", "FADD": "FADD", "IADD3": "IADD3", "IMAD": "IMAD", "LOP3": "LOP3.LUT", "DFMA": "DFMA", "FMNMX": "FMNMX",
    "MUFU.EX2": "MUFU.EX2", "POPC": "POPC",
}  # fmt: skip
"""Classes of one opcode each, whose planted energy is that of the opcode."""

LARGEST_Z = 4.0
LARGEST_RMS_Z = 1.6
"""Root mean square of 1 within its own scatter over thirty figures of two runs, which share what the model lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Datasets of one campaign by seed; the first holds kernels of a library too."""

    files: tuple[Path, ...]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    try:
        find_toolchain()
    except CompileError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("instructions")
    campaign = folder / "campaign.toml"
    campaign.write_text(CAMPAIGN, encoding="utf-8")
    sensor = folder / "sensor.json"
    files: list[Path] = []
    for seed in SEEDS:
        path = folder / f"{seed}.parquet"
        words = ["--campaign", str(campaign), "--gpu", f"sim:{BOARD}", "--freqs", "current", "--pmd", "sim"]
        if files:
            words += ["--families", "instruction", "--sensor", str(sensor)]
        assert collect([*words, "--seed", str(seed), "--out", str(path), "--quiet"]) == 0
        files.append(path)
        sensor.write_text(json.dumps(read_kernel_dataset(path).metadata["sensor"]), encoding="utf-8")
    return Measured(files=tuple(files))


def rows_of(path: Path) -> InstructionRows:
    rows = read_selection([path]).instructions
    assert rows is not None
    return rows


@pytest.fixture(scope="module")
def fitted(measured: Measured) -> tuple[InstructionEnergies, ...]:
    return tuple(fit_instructions(rows_of(path), load_gpu(BOARD)) for path in measured.files)


def planted_j(reference_voltage_v: float) -> dict[str, float]:
    """Planted energy of terms at a voltage [J]."""
    profile, gpu = load_board(BOARD), load_gpu(BOARD)
    volt = (reference_voltage_v / profile.energy.reference_voltage_v) ** 2
    core = {STALL: planted_stall_energy_j(profile, gpu), ISSUE: planted_issue_energy_j(profile, gpu)}
    core |= {INSTRUCTION + name: planted_lane_energy_j(profile, opcode) for name, opcode in PLAIN.items()}
    memory = {TRANSACTION + level: joule for level, joule in planted_transaction_energy_j(profile).items()}
    return {name: joule * (1.0 if name.endswith("dram") else volt) for name, joule in (core | memory).items()}


def z_scores(energies: InstructionEnergies) -> dict[str, float]:
    """Distance of every fitted term from what was planted, in its stated standard deviations."""
    planted = planted_j(energies.reference_voltage_v)
    return {name: (energies.term(name)[0] - joule) / energies.term(name)[1] for name, joule in planted.items()}


def test_planted_energies_come_back_within_their_stated_errors(fitted: tuple[InstructionEnergies, ...]) -> None:
    scores = [z for energies in fitted for z in z_scores(energies).values()]
    assert len(scores) == len(SEEDS) * (len(PLAIN) + 6)
    assert np.abs(scores).max() < LARGEST_Z, [z_scores(energies) for energies in fitted]
    assert np.sqrt(np.mean(np.square(scores))) < LARGEST_RMS_Z


def test_stated_errors_are_small_enough_to_be_of_use(fitted: tuple[InstructionEnergies, ...]) -> None:
    for energies in fitted:
        for name in planted_j(energies.reference_voltage_v):
            value, std = energies.term(name)
            assert std < 0.05 * value, name
            assert energies.identified[energies.terms.index(name)]


def test_an_unknown_gain_of_the_sensor_is_in_every_stated_error(measured: Measured) -> None:
    known = fit_instructions(rows_of(measured.files[0]), load_gpu(BOARD))
    unknown = fit_instructions(rows_of(measured.files[0]), load_gpu(BOARD), gain_std=0.05)
    assert np.array_equal(known.values, unknown.values)
    for name in (INSTRUCTION + "FFMA", STALL, TRANSACTION + "dram"):
        value, std = unknown.term(name)
        assert std == pytest.approx(np.hypot(known.term(name)[1], 0.05 * value))


def test_the_published_formula_leaves_static_power_in(measured: Measured, fitted: tuple[InstructionEnergies, ...]) -> None:
    """What it gives for one thread is the power of the awake board times the time of an instruction: thousands of times too much."""
    energies = fitted[0]
    rows = {row.kernel: row for row in rows_of(measured.files[0]).rows if row.mode == "single"}
    for name, kernel in (("ffma", "ffma_k8_u64"), ("dfma", "dfma_k8_u64"), ("iadd3", "iadd3_k8_u64")):
        one, row, empty = energies.ptx[name], rows[kernel], rows["empty_loop"]
        operations = sum(row.operations.values())
        longer_s = (row.latency_s / row.turns - empty.latency_s / empty.turns) / operations
        assert one.published_j["single.mtsm"] == pytest.approx(row.power_w * longer_s, rel=0.1)
        assert one.published_j["single.mtsm"] > 1e3 * one.energy_j
        assert one.published_j["full.mtsm"] > 1.5 * one.energy_j


def test_the_ways_of_sampling_err_in_their_own_direction(measured: Measured) -> None:
    """Of steady kernels the highest of many polls is above their mean, and none of the three knows of the sensor's gain."""
    rows = rows_of(measured.files[0]).rows
    gain = load_board(BOARD).sensor.gain
    for row in rows:
        truth = row.power_w * row.latency_s
        assert row.published["sma"] >= row.published["mtsm"]
        assert row.published["mtsm"] / truth == pytest.approx(gain, abs=0.04)
        assert row.published["papi"] / truth == pytest.approx(gain, abs=0.06)


def test_the_charts_show_every_row_that_has_both_figures(fitted: tuple[InstructionEnergies, ...]) -> None:
    rows = fitted[0].ptx.values()
    legend = 2
    bias, sampling = bias_svg(fitted[0]), sampling_svg(fitted[0])
    assert bias.count("h0") == sum(f"{mode}.mtsm" in one.published_j for one in rows for mode in ("full", "single")) + legend
    assert sampling.count("h0") == 3 * sum("full.mtsm" in one.published_j for one in rows) + legend + 1
    assert "one thread, published" in bias
    assert 'class="diagonal"' in bias
    assert "PAPI" in sampling


def test_energy_of_a_measured_run_is_the_sum_of_its_terms(measured: Measured, fitted: tuple[InstructionEnergies, ...]) -> None:
    """The energies of one run, applied to what the kernels of another did, give what these drew beyond the board at rest."""
    energies = fitted[1]
    rows = rows_of(measured.files[0])
    excess, _ = excess_power_w(rows)
    errors = []
    for row, watt in zip(rows.rows, excess, strict=True):
        activity = row_activity(row, load_gpu(BOARD), row.temperature_c - energies.temperature_c)
        own = replace(activity, voltage_v=row.voltage_v, sm_clock_mhz=row.sm_clock_mhz)
        errors.append(energies.energy_j(own)[0] / (watt * row.latency_s) - 1.0)
    assert np.abs(errors).max() < 0.02
    assert abs(float(np.mean(errors))) < 0.005


def test_a_bundle_keeps_the_energies_to_the_last_digit(
    measured: Measured, tmp_path: Path, capsys: pytest.CaptureFixture[str], fitted: tuple[InstructionEnergies, ...]
) -> None:
    """Alone, generated kernels make a bundle with energies and priors; beside a library's kernels, with both."""
    alone, both = tmp_path / "alone.json", tmp_path / "both.json"
    assert fit([str(measured.files[1]), "-o", str(alone), "--quiet"]) == 0
    assert fit([str(measured.files[0]), "-o", str(both), "--report", str(tmp_path / "report.html"), "--holdout", "0", "--quiet"]) in (0, 3)
    assert "Bias of the published formula" in (tmp_path / "report.html").read_text(encoding="utf-8")
    sections = [load_bundle(path).instruction_energies for path in (alone, both)]
    assert load_bundle(both).groups["elementwise"].rows > 0
    assert load_bundle(alone).groups["elementwise"].rows == 0
    for section in sections:
        energies = energies_from_section(section)
        assert energies is not None
        assert json.loads(json.dumps(section_of(energies))) == json.loads(json.dumps(thaw(section)))
    again = energies_from_section(sections[1])
    assert again is not None
    assert np.array_equal(again.values, fitted[0].values)
    capsys.readouterr()
    assert fit(["check", str(alone), str(measured.files[0]), "--json"]) in (0, 3)
    errors = {row["operator"]: row["power"] for row in json.loads(capsys.readouterr().out)["errors"] if row["family"] == "instruction"}
    assert set(errors) == {"full", "sm_sweep", "lane_sweep", "single"}
    assert all(error["mape"] < 1.0 for error in errors.values())
    assert fit(["show", str(alone)]) == 0
    shown = capsys.readouterr().out
    assert "FFMA" in shown
    assert "static power left in" in shown


def test_two_boards_with_one_seed_are_one(measured: Measured, fitted: tuple[InstructionEnergies, ...]) -> None:
    """The fit has no chance in it, and another seed is another run."""
    again = fit_instructions(rows_of(measured.files[0]), load_gpu(BOARD))
    assert np.array_equal(again.values, fitted[0].values)
    values: list[Array] = [energies.values for energies in fitted]
    assert not np.array_equal(values[0], values[1])

"""A whole campaign on the simulated A100: how kernels left out are predicted, and what the fit says of power, against what was planted.

Simulated figures show plumbing and statistics, not physics.
"""

import numpy as np

from collector.cli import main
from collector.simulated.profile import load_board
from collector.simulated.silicon import planted_event_energy_j
from estimator import load_gpu
from estimator.vocabulary.resources import resource_folder
from fitter.bundle.calibration import calibrate
from fitter.rows.selection import read_selection
from tests.collector.campaigns import SHORT_HEAD
from tests.pipeline.test_simulated_blocks import PRODUCT_CAMPAIGN

BOARD = "a100-pcie-40gb"
POWER_LIMIT_PERCENT = 3.0
"""Mean error of kernels left out, at their predicted latency, with the tiles that kernel names tell."""

TIMED_POWER_LIMIT_PERCENT = 1.8
"""The same of kernels whose latency is predicted within 5 %."""

WELL_TIMED = 0.05
TYPICAL_POWER_W = 120.0
"""Of the campaign's kernels."""

HIDDEN = "\n[faults]\nhidden_pj_per_byte = 40.0\nhidden_pitch_bytes = 512.0\n"
SLOW = "\n[faults]\nhidden_slowdown = 1.5\nhidden_pitch_bytes = 32.0\n"
"""Effects that the equations lack: a module that no table names; about every second row length takes two and a half times as long."""

LARGEST_MAPE = 7.5
"""Mean held-out error of latency over all kernels [percent]."""

FAMILY_LIMITS = {"gemm": 9.5, "attention": 7.5, "softmax": 6.0, "norm": 6.6, "reduction": 4.7, "elementwise": 3.7, "copy": 4.4}
"""The same by family [percent]."""


def campaign(gpu, clocks, folder, *words):
    """All rows of a campaign on a simulated board, the quick one unless another is named, and its fit."""
    path = folder / f"{clocks.replace(',', '-')}.parquet"
    status = main([*f"--gpu sim:{gpu} --freqs {clocks} --out {path} --seed 1 --budget 9h --quiet".split(), *words])
    assert status == 0
    return calibrate(read_selection([path]), load_gpu(BOARD))


def faulty(fault, folder, *words):
    """The campaign at one clock on a board with a fault."""
    profile = folder / "faulty.toml"
    profile.write_text((resource_folder("simulated-boards") / f"{BOARD}.toml").read_text() + fault)
    return campaign(str(profile), "900", folder, *words)


def latency_mape(calibration, family=""):
    """Mean held-out error of latency, weighted by rows, of one family or of all [percent]."""
    rows = [row["latency"] for row in calibration.errors if row["latency"] is not None and family in ("", row["family"])]
    return sum(errors["mape"] * errors["n"] for errors in rows) / sum(errors["n"] for errors in rows)


def power_errors(calibration):
    """Relative errors of power and of latency of kernels left out, shape (n,) each."""
    rows = calibration.held_out["kernels"]
    errors = [(rows[f"predicted_{name}"] / rows[f"measured_{name}"] - 1.0).to_numpy() for name in ("power", "latency")]
    known = np.isfinite(errors[0])
    return errors[0][known], errors[1][known]


def power_of(calibration):
    return calibration.bundle.power


def latency_of_kernels_left_out_is_predicted(honest, _folder):
    assert latency_mape(honest) <= LARGEST_MAPE
    found = {family: latency_mape(honest, family) for family in FAMILY_LIMITS}
    assert not {family: error for family, error in found.items() if error > FAMILY_LIMITS[family]}


def an_effect_that_the_equations_lack_raises_the_error_and_a_warning(honest, folder):
    found = faulty(SLOW, folder, "--families", "norm,elementwise")
    assert latency_mape(found, "norm") > 2.0 * latency_mape(honest, "norm")
    assert any("latency of rows left out" in warning and "norm" in warning for warning in found.warnings)


def power_of_kernels_left_out_is_predicted(honest, _folder):
    power, latency = power_errors(honest)
    assert 100 * np.mean(np.abs(power)) <= POWER_LIMIT_PERCENT
    assert 100 * np.mean(np.abs(power[np.abs(latency) < WELL_TIMED])) <= TIMED_POWER_LIMIT_PERCENT
    assert not [warning for warning in honest.warnings if warning.startswith("power")]


def a_module_that_the_model_lacks_raises_the_reported_error(honest, folder):
    products = folder / "products.toml"
    products.write_text(SHORT_HEAD + PRODUCT_CAMPAIGN)
    hidden = faulty(HIDDEN, folder, "--campaign", str(products))
    usual, surprised = (100 * float(np.mean(np.abs(power_errors(one)[0]))) for one in (honest, hidden))
    assert surprised > 2.0 * usual


def planted_energies_come_back_within_three_stated_deviations(honest, _folder):
    power, profile = power_of(honest), load_board(BOARD)
    planted = planted_event_energy_j(profile)
    over_voltage = (power.reference_voltage_v / profile.energy.reference_voltage_v) ** 2
    covariance = 1e-24 * np.array(power.covariance)
    for module in ("l2", "shared", "tensor", "cuda", "sfu"):
        number = power.terms.index(module)
        std_j = float(np.sqrt(covariance[number, number]))
        assert abs(power.event_energy_j[module] - planted[module] * over_voltage) < 3.0 * std_j, module
    # only the sum of DRAM's two parts is planted: in the simulated board nothing of a byte's way follows the core's voltage
    both = [power.terms.index(term) for term in ("dram", "dram_path")]
    found_j = power.event_energy_j["dram"] + power.event_energy_j["dram_path"]
    std_j = float(np.sqrt(covariance[np.ix_(both, both)].sum()))
    assert abs(found_j - planted["dram"]) < 3.0 * std_j
    # Seen: 0.06, 0.25, 0.32, 0.16.  The simulated board's multiply-adds cost more of its other instructions than the model's.
    largest = {"dram": 0.1, "l2": 0.3, "shared": 0.4, "tensor": 0.2, "cuda": 0.2}
    stated = {module: power.capacitance_std_f[module] / power.capacitance_f[module] for module in largest}
    assert all(stated[module] < most for module, most in largest.items()), stated


def planted_static_power_comes_back(honest, _folder):
    power, profile = power_of(honest), load_board(BOARD)
    scale = (power.reference_voltage_v / profile.energy.reference_voltage_v) ** 2
    scale *= power.reference_clock_mhz / profile.power.reference_clock_mhz
    assert abs(power.busy_w - profile.power.sm_clock_w * scale) < 3.0 * power.busy_std_w
    assert abs(power.active_w - profile.power.active_w) < 3.0 * power.active_std_w
    assert honest.bundle.idle is not None


LAWS = (
    latency_of_kernels_left_out_is_predicted,
    an_effect_that_the_equations_lack_raises_the_error_and_a_warning,
    power_of_kernels_left_out_is_predicted,
    a_module_that_the_model_lacks_raises_the_reported_error,
    planted_energies_come_back_within_three_stated_deviations,
    planted_static_power_comes_back,
)


def test_laws_of_a_whole_campaign(tmp_path, subtests):
    """One test: its campaign is then measured by one process only."""
    honest = campaign(BOARD, "510,1410", tmp_path)
    for law in LAWS:
        with subtests.test(law.__name__):
            folder = tmp_path / law.__name__
            folder.mkdir()
            law(honest, folder)

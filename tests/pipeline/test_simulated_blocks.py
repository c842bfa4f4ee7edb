"""A sweep over grids on the simulated A100, fitted and asked: every form predicts grids of many rounds that it has not seen.

Simulated figures show plumbing and statistics, not physics.
"""

import json

import pytest

from collector.cli import main as collect
from estimator.blocks.model import models_from_section
from estimator.bundle.files import load_bundle
from estimator.cli import main as estimate
from fitter.cli import main as fit

CAMPAIGN = """
description = "two kernels over their number of blocks"
warmup_s = 5.0
idle_settle_s = 2.0
idle_window_s = 2.0
kernels_per_block = 100
anchor_every = 0

[measurement]
updates = 10
window_s = 1.0
settle_s = 2.0
idle_s = 2.0

[[instructions]]
kernels = ["matrix_mul_16", "hotspot_16"]
modes = ["block_sweep"]
"""


def test_grids_that_were_measured_predict_others(toolchain, tmp_path, capsys):
    campaign, data, bundle = tmp_path / "grids.toml", tmp_path / "grids.parquet", tmp_path / "grids.json"
    campaign.write_text(CAMPAIGN)
    words = ["--gpu", "sim:a100-pcie-40gb", "--freqs", "900", "--campaign", str(campaign), "--seed", "1", "--quiet"]
    assert collect([*words, "--pmd", "sim", "--out", str(data)]) in (0, 3)
    assert fit([str(data), "-o", str(bundle), "--quiet"]) in (0, 3)
    models = models_from_section(load_bundle(str(bundle)).block_models)
    assert {model.kernel for model in models.values()} == {"matrix_mul_16", "hotspot_16"}
    for model in models.values():
        assert model.has_power
        assert model.scatter["occupancy"]["time"] < 0.02
        assert model.scatter["occupancy"]["energy"] < 0.03
        for form, most in (("rounds", 0.1), ("linear", 0.2)):
            assert max(model.scatter[form].values()) < most, "the published forms, where they are made for"
        assert model.blocks[1] == pytest.approx(40 * model.resident_blocks, rel=1e-3)
    capsys.readouterr()
    assert estimate(["blocks", "hotspot_16", "--bundle", str(bundle), "--blocks", "1000", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["inside"]
    assert 0 < row["latency_std_s"] < 0.05 * row["latency_s"]
    assert row["power_w"] == pytest.approx(row["energy_j"] / row["latency_s"])
    platform = tmp_path / "platform.xml"
    assert estimate(["blocks", "--bundle", str(bundle), "--simgrid", str(platform), "--quiet"]) == 0
    assert platform.read_text().count("<host ") == 2

"""From a campaign to an estimate on the simulated A100: the usual path, and grids of many rounds that were not measured."""

import json

import pytest

from collector.cli import main as collect
from estimator import load_bundle
from estimator.blocks.model import models_from_section
from estimator.cli import main as estimate
from fitter.cli import main as fit
from tests.collector.campaigns import SHORT_HEAD

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
    words = f"--gpu sim:a100-pcie-40gb --freqs 900 --campaign {campaign} --seed 1 --quiet".split()
    assert collect([*words, *f"--pmd sim --out {data}".split()]) in (0, 3)
    assert fit(f"{data} -o {bundle} --quiet".split()) in (0, 3)
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
    assert estimate(f"blocks hotspot_16 --bundle {bundle} --blocks 1000 --json".split()) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["inside"]
    assert 0 < row["latency_std_s"] < 0.05 * row["latency_s"]
    assert row["power_w"] == pytest.approx(row["energy_j"] / row["latency_s"])
    platform = tmp_path / "platform.xml"
    assert estimate(f"blocks --bundle {bundle} --simgrid {platform} --quiet".split()) == 0
    assert platform.read_text().count("<host ") == 2


PRODUCT_CAMPAIGN = """
[[kernels]]
family = "gemm"
operator = "linear"
precision = "fp16"
count = 8
[kernels.shape]
batch = 1
m = { low = 64, high = 8192, multiple = 8 }
n = { low = 256, high = 8192, multiple = 64 }
k = { low = 256, high = 8192, multiple = 64 }
"""


def test_collect_fit_and_estimate_follow_each_other(tmp_path, repository, capsys):
    few, data, bundle = tmp_path / "few.toml", tmp_path / "d.parquet", tmp_path / "b.json"
    few.write_text(SHORT_HEAD + PRODUCT_CAMPAIGN)
    assert collect(f"--gpu sim:a100-pcie-40gb --freqs 900,1410 --pmd sim --campaign {few} --out {data}".split()) == 0
    capsys.readouterr()
    assert fit(f"{data} -o {bundle}".split()) == 0
    verdict = capsys.readouterr().out.splitlines()
    assert verdict[0].endswith("the simulated a100-pcie-40gb at 900 to 1410 MHz")
    assert verdict[1].startswith("held-out kernels err by ")
    assert " in energy on average (16 rows)" in verdict[1]
    assert estimate([str(repository / "examples" / "gpt2-prefill.json"), *f"--bundle {bundle} --freq 900".split()]) == 0

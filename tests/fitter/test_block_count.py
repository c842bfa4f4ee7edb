"""Block-count models from grids: three suffice, errors are honest, tables are screened."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from estimator import load_bundle, load_gpu
from estimator.blocks.model import FORMS, models_from_section, occupancy_times, section_of
from fitter.blocks.section import block_section, fit_block_model, fit_block_models, left_out_errors
from fitter.cli import main as fit
from fitter.errors import CalibrationError
from fitter.rows import block_table
from fitter.rows.block_table import read_block_table
from fitter.rows.columns import BlockRows, join_rows
from fitter.rows.tables import Table, open_table
from tests.collector.dataset_rows import rows_to_table
from tests.estimator.estimating import printed, run
from tests.fitter.measured import places
from tests.fitter.test_instruction_rows import ROW

GPU = load_gpu("a100-pcie-40gb")
TIMES = np.array([5e-6, 1.2e-3, 0.9e-3])
"""Launch, latency and share of a round, planted [s]."""

OVERLAP = 5.0


REST_W, ROUND_W = 29.4, 153.65
"""Power at rest and of a round of vectorAdd with 1024 threads on a M2075 (Boughzala, Lefèvre, Orgerie, section V): [W]."""
ROUND_S = 14336 / 3413
"""A round of its figure 3: additions of 14 blocks of 1024 threads over the speed [s]."""


def planted_s(grids):
    return occupancy_times(grids.astype(np.float64), GPU.num_sms, 2, np.log([*TIMES, OVERLAP]))[0]


BLOCK_J, AWAKE_W, IDLE_W = 2e-3, 14.0, 40.0
GRIDS = np.array([54, 108, 216, 300, 432, 1000, 2160, 5000])


def planted(grids=GRIDS, noise=0.0, seed=0, kernel="vector_add"):
    random = np.random.default_rng(seed)
    latency = planted_s(grids)
    power = BLOCK_J * grids / latency + IDLE_W + AWAKE_W
    count = len(grids)
    constant = {"block_threads": 1024.0, "blocks_per_sm": 2, "idle_w": IDLE_W, "sm_clock_mhz": 900.0, "flop_per_block": np.nan}
    return BlockRows(
        kernel=np.array([kernel] * count, dtype=object),
        **places(GPU, "grids.csv", count),
        blocks=grids.astype(np.float64),
        latency_s=latency * (1 + noise * random.standard_normal(count)),
        power_w=power * (1 + noise * random.standard_normal(count)),
        power_std_w=max(noise, 1e-3) * power,
        **{name: np.full(count, float(value)) for name, value in constant.items()},
    )


def test_planted_coefficients_come_back():
    rows = planted()
    model = fit_block_model(rows, GPU.num_sms)
    whole, half = (float(planted_s(np.array(grid))) - TIMES[0] for grid in (216, 108))
    assert (model.round_s(), model.rest_s(108)) == pytest.approx((whole, half), rel=2e-3)
    assert model.times_s[1:] == pytest.approx(TIMES[1:], rel=0.05), "two kinds of rounds leave the norm to its prior"
    assert model.energies == pytest.approx([BLOCK_J, AWAKE_W], rel=0.02)
    assert model.static_w == IDLE_W
    alone = fit_block_model(replace(rows, power_w=np.full(len(GRIDS), np.nan)), GPU.num_sms)
    assert not alone.has_power
    assert alone.latency_s(500) == pytest.approx(model.latency_s(500))
    assert math.isnan(float(alone.energy_j(500)))
    rows.idle_w[2] = np.nan  # takes the power at rest of the others
    (same,), _ = fit_block_models(rows, GPU.num_sms)
    assert same.energies == pytest.approx(model.energies)


def test_a_kernel_with_two_grids_leaves_the_model_of_another_as_it_is():
    both = join_rows([planted(), planted(np.array([54, 108]), kernel="short")])
    models, refused = fit_block_models(both, GPU.num_sms)
    assert [model.kernel for model in models] == ["vector_add"]
    assert len(refused) == 1
    assert "short" in refused[0]


@pytest.mark.parametrize("factor", [0.01, 100.0])
@pytest.mark.parametrize("place", range(len(GRIDS)))
def test_a_launch_that_failed_is_named_and_in_no_model(place, factor):
    rows = planted(noise=0.003)
    rows.latency_s[place] *= factor
    models, refused = fit_block_models(join_rows([rows, planted(kernel="other")]), GPU.num_sms)
    assert [model.kernel for model in models] == ["other"]
    assert f"{GRIDS[place]} blocks took" in refused[0]


@pytest.mark.parametrize(
    "grids, judged", [(GRIDS, [432, 1000, 2160]), (np.array([54, 108, 216, 300, 432]), [108, 216, 300])], ids=["many rounds", "few"]
)
def test_forms_are_judged_on_grids_of_two_rounds_or_more_where_there_are_some(grids, judged):
    rows = planted(grids, noise=0.003)
    model, errors = fit_block_model(rows, GPU.num_sms), left_out_errors(rows, GPU.num_sms)
    for form in FORMS:
        for quantity, values in errors[form].items():
            own = values[np.isin(rows.blocks, judged)]
            assert model.scatter[form][quantity] == pytest.approx(float(np.sqrt(np.mean(own**2))))
            found = model.relative_errors[form][quantity]
            assert (found.wre, found.bre, found.are) == pytest.approx((max(abs(own)), min(abs(own)), float(np.mean(abs(own)))))
    again = models_from_section(json.loads(json.dumps(section_of([model]))))
    assert [one.relative_errors for one in again.values()] == [model.relative_errors]


HEAD = "kernel,gpu,block_threads,blocks_per_sm,blocks,latency_s,power_w,idle_w,sm_clock_mhz"


def grid_table(path, slower=1.0, **columns):
    """The planted grids in a user's table, with other texts in some cells of a column."""
    own = planted()
    own.power_w[:] = IDLE_W + AWAKE_W + 0.2 * BLOCK_J * own.blocks / own.latency_s  # below the limit
    texts = {name: [f"{value:.12g}" for value in getattr(own, name)] for name in HEAD.split(",")[2:]}
    texts |= {"kernel": own.kernel.tolist(), "gpu": [GPU.name] * len(own), "latency_s": [f"{slower * one:.12g}" for one in own.latency_s]}
    for name, cells in columns.items():
        texts[name][: len(cells)] = cells
    path.write_text("\n".join([HEAD, *(",".join(texts[name][i] for name in HEAD.split(",")) for i in range(len(own)))]), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "columns, complaint",
    [
        ({"power_w": [""]}, "no energy in the block-count model vector_add/1024@900: 1 of 8 rows lack power_w (or energy_j) or idle_w"),
        ({"idle_w": [""] * 8}, "no energy in the block-count model vector_add/1024@900: 8 of 8 rows lack"),
        ({"blocks_per_sm": ["1"] * 4}, "blocks_per_sm of 1 and of 2; give each its own kernel name"),
        ({"power_w": [""] * 8}, ""),
        ({}, ""),
    ],
)
def test_what_a_table_lacks_for_a_model_or_its_energy_is_said(columns, complaint, tmp_path):
    found = run(grid_table(tmp_path / "grids.csv", **columns), "--strict -o", tmp_path / "b.json", program=fit)
    assert complaint in found.err
    assert found.status == (0 if not complaint else 1 if "blocks_per_sm" in complaint else 3)


@pytest.mark.parametrize(
    "slower, require, status", [(1.0, "", 0), (1.05, "", 3), (1.0, "--require latency=1%", 0), (1.003, "--require latency=0.1%", 3)]
)
def test_a_check_of_grids_counts_what_its_intervals_hold_and_what_is_required(slower, require, status, tmp_path):
    bundle, table = tmp_path / "b.json", grid_table(tmp_path / "other.csv", slower)
    assert run(own := grid_table(tmp_path / "grids.csv"), "-o", bundle, program=fit).status == 0
    assert "grids and instructions: by `fit check`" in run(own, "-q --require latency=5% -o", tmp_path / "c.json", program=fit).err
    assert run(f"check {require}", bundle, table, program=fit).status == status
    assert "no block-count model of vector_add of this GPU" in run("check h100-sxm", table, program=fit).err


def test_what_grids_leave_open_is_named():
    whole_rounds = planted(np.array([216, 432, 2160, 4320]))
    model = fit_block_model(whole_rounds, GPU.num_sms)
    assert "overlap" in model.tied
    assert {"lone_s", "share_s"} & set(model.tied)
    assert model.latency_s(8640) == pytest.approx(float(planted_s(np.array(8640))), rel=2e-3)


def test_stated_errors_hold():
    """68 and 95 % of simulated runs within one and two standard deviations (24 draws of 5 unseen grids)."""
    unseen = np.array([80, 200, 500, 1500, 4000])
    scores = []
    for seed in range(24):
        model = fit_block_model(planted(noise=0.005, seed=seed), GPU.num_sms)
        measured = planted(unseen, noise=0.005, seed=1000 + seed).latency_s
        scores.append((model.latency_s(unseen) - measured) / model.latency_std_s(unseen))
    z = np.abs(np.concatenate(scores))
    assert 0.55 < np.mean(z < 1) < 0.85
    assert np.mean(z < 2) > 0.88


HEADER = "kernel,gpu,block_threads,blocks_per_sm,blocks,latency_s,power_w,idle_w,sm_clock_mhz"


@pytest.mark.parametrize(
    "line, reason",
    [
        ("add,GPU,1024,2,0,1e-3,80,40,900", "BAD_SHAPE"),
        ("add,GPU,1024,99,54,1e-3,80,40,900", "BAD_SHAPE"),
        ("add,GPU,1024,2,54,nan,80,40,900", "BAD_LATENCY"),
        ("add,GPU,1024,2,54,1e308,80,40,900", "BAD_LATENCY"),
        ("add,GPU,1024,2,54,1e-3,1e308,40,900", "BAD_POWER"),
        ("add,GPU,1024,2,54,1e-3,30,40,900", "BAD_POWER"),
        ("add,GPU,1024,2,54,1e-3,80,40,-5", "BAD_CLOCK"),
        ("add,GPU,1024,2,54,1e-3,80,40,900000", "BAD_CLOCK"),
        ("add,GPU,1024,2,54,1e-3,0.08,0.04,900", "BAD_POWER"),
        ("add,GPU,1024,2,54,1e-3,245,40,900", "ABOVE_LIMIT"),
        ("add,GPU,1024,2,54,1e-3,80000,40,900", "ABOVE_LIMIT"),
        ("add,nvidia-9000,1024,2,54,1e-3,80,40,900", "UNKNOWN_GPU"),
        (",GPU,1024,2,54,1e-3,80,40,900", "UNKNOWN_OPERATOR"),
        (f"{'x' * 5000},GPU,1024,2,54,1e-3,80,40,900", "BAD_TEXT"),
    ],
)
def test_a_row_that_cannot_be_is_rejected_with_its_reason(line, reason, tmp_path):
    path = tmp_path / "grids.csv"
    path.write_text("\n".join([HEADER, line, "add,GPU,1024,,108,1e-3,90,40,"]).replace("GPU", GPU.name) + "\n")
    found = read_block_table(open_table(path, block_table.COLUMNS), None)
    assert found.blocks.blocks_per_sm.tolist() == [2.0], "64 warps of an SM hold two blocks of 1,024 threads"
    assert [row.reason for row in found.rejected] == [reason]


@pytest.mark.parametrize("name", [",Tesla M2075", ""])
def test_a_gpu_of_ones_own_is_fitted_from_its_file_and_checked(name, repository, tmp_path):
    """The published M2075: rounds of 14 blocks, one an SM, at the published powers, with the GPU named in the table or not."""
    spec, out = tmp_path / "own.toml", tmp_path / "m2075.json"
    spec.write_text((repository / "examples" / "m2075.toml").read_text())
    lines = [f"vectorAdd,1024,1,{14 * n},{n * ROUND_S},{ROUND_W},{REST_W}{name}" for n in (1, 2, 3, 10)]
    header = "kernel,block_threads,blocks_per_sm,blocks,latency_s,power_w,idle_w" + (",gpu" if name else "")
    (tmp_path / "grids.csv").write_text("\n".join([header, *lines]))
    assert run(tmp_path / "grids.csv", "--gpu", spec, "-o", out, "--quiet", program=fit).status == 0
    bundle = load_bundle(out)
    assert (bundle.gpu.name, bundle.gpu.num_sms) == ("m2075", 14)
    other = f"sgemm,1024,1,14,{ROUND_S},{ROUND_W},{REST_W}{name}"
    (tmp_path / "again.csv").write_text("\n".join([header, *lines, other]))
    found = run("check", out, tmp_path / "again.csv", "--gpu", spec, "--json --quiet --strict", program=fit)
    assert found.status == 3
    checked = json.loads(found.out)
    assert [(row["operator"], row["n"]) for row in checked["errors"]] == [("vectorAdd/1024", 4)]
    assert max(checked["errors"][0][quantity]["p95"] for quantity in ("latency", "power")) < 1.0
    assert any("no block-count model of sgemm" in line for line in checked["warnings"])
    spec.unlink()  # the bundle holds it
    (tmp_path / "named.csv").write_text((tmp_path / "again.csv").read_text().replace("Tesla M2075", "m2075"))
    again = run("check", out, tmp_path / "named.csv", "--json --quiet", program=fit)
    assert json.loads(again.out)["errors"] == checked["errors"], again
    found = printed("blocks vectorAdd --bundle", out, "--blocks 14,15,140 --form rounds")
    assert [row["latency_s"] / ROUND_S for row in found] == pytest.approx([1.0, 2.0, 10.0])
    assert [row["energy_j"] / row["latency_s"] for row in found] == pytest.approx([ROUND_W] * 3)


def test_grids_of_a_sweep_that_were_slowed_are_in_no_model():
    rows = [
        {
            **ROW, "row_id": str(grid), "operator": "hotspot_16", "launch_mode": "block_sweep", "grid_x": grid, "block_x": 256,
            "block_y": 1, "block_z": 1, "blocks_per_sm": 2, "latency_s": float(planted_s(np.array([grid]))[0]), "sm_clock_mhz": 1410.0,
            "sm_clock_measured_mhz": 1410.0 - 45.0 * slowed, "flags": ["throttled", "clock_off_target"] * slowed,
        }
        for grid, slowed in ((108, False), (432, False), (864, True), (2160, True))
    ]  # fmt: skip
    selection = read_block_table(Table.of(rows_to_table(rows, {}), Path("x.parquet")))
    assert [row.reason for row in selection.rejected] == ["THROTTLED"] * 2
    with pytest.raises(
        CalibrationError, match="hotspot_16 with 256 threads a block at 1410 MHz: 2 grids measured; a block-count model needs 3"
    ):
        block_section(selection, GPU)

"""Datasets of `collect`: columns as measured, flags by their policy, trials that weigh together."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from collector.dataset.schema import FLAGS
from collector.dataset.writer import export_dataset
from collector.errors import DatasetError
from estimator import load_bundle, load_gpu
from estimator.vocabulary.gpu import simulated_uuid
from fitter.errors import InputError, SelectionError
from fitter.rows.columns import files_of
from fitter.rows.kernel_table import FLAGGED_WEIGHT, LOWERS_WEIGHT, REJECTS_POWER, REJECTS_ROW
from fitter.rows.selection import read_selection, require_one_world
from fitter.scale.streamed import read_streamed
from tests.collector.dataset_rows import a_row, write_kernel_dataset
from tests.estimator.synthetic import matmul

GEMM = matmul(1024, 1024, 1024)
GOOD = {
    "sm_clock_mhz": 900.0, "sm_clock_measured_mhz": 900.0, "latency_s": 2e-5, "power_w": 150.0, "power_std_w": 0.5, "l2_state": "warm",
    "tile_m": 128, "tile_n": 256, "split_k": 1,
}  # fmt: skip
AT_1200 = {"sm_clock_mhz": 1200.0, "sm_clock_measured_mhz": 1200.0}


@pytest.fixture
def write(tmp_path):
    """Writes a kernel dataset; each row is given by the columns that differ from a good one."""

    def writer(*changes, name="dataset.parquet", **metadata):
        rows = [a_row(f"{name}{i}", GEMM, **GOOD | {"trial": i} | change) for i, change in enumerate(changes)]
        path = tmp_path / name
        write_kernel_dataset(rows, {"simulated": True} | metadata, path)
        return path

    return writer


def read(path):
    selection = read_selection([path])
    return selection.kernels, list(selection.rejected)


def test_data_in_pieces_have_every_files_sensor(write, tmp_path):
    for name, std in (("a", 0.01), ("b", 0.03)):
        write({}, name=f"{name}.parquet", sensor={"gain": 1.0, "gain_std": std})
    streamed = read_streamed([str(tmp_path)], None, 0, None, str)
    assert streamed.gain_std == read_selection([tmp_path]).gain_std == 0.03
    assert list(streamed.files) == list(read_selection([tmp_path]).files)


def test_measurements_and_a_simulated_board_do_not_become_one_bundle(write, tmp_path):
    table = tmp_path / "measured.csv"
    table.write_text("family,operator,gpu,precision,rows,dim,latency_s\nsoftmax,softmax,a100-pcie-40gb,fp32,4096,512,2e-5\n")
    require_one_world(read_selection([write({}), write({}, name="other.parquet")]))
    assert {one.kind for one in read_selection([tmp_path]).datasets} == {"kernel dataset", "kernel table"}
    require_one_world(read_selection([table]))
    with pytest.raises(SelectionError, match="was fitted on a simulated board and these rows were not"):
        require_one_world(read_selection([table]), [replace(load_bundle("a10-eager"), environment={"simulated": "true"})])
    with pytest.raises(SelectionError, match=r"dataset\.parquet comes from a simulated board and measured\.csv does not"):
        require_one_world(read_selection([table, write({})]))
    real = load_bundle("a10-eager")
    invented = replace(real, environment={"simulated": "true"})
    for rows, other, own in ((table, invented, real), (write({}), real, invented)):
        require_one_world(read_selection([rows]), judged=own)
        with pytest.raises(SelectionError, match="neither says anything of the other"):
            require_one_world(read_selection([rows]), judged=other)


def test_rows_keep_the_facts_of_their_files_under_a_specification_of_another_name():
    files = ({"gpu": {"specification": "a100-pcie-40gb"}, "simulated": True}, {"gpu": {"specification": "v100-pcie-32gb"}}, {})
    a100 = load_gpu("a100-pcie-40gb")
    assert files_of(replace(a100, name="my-a100"), files) == files_of(a100, files) == (files[0], files[2])
    assert files_of(None, files) == files


def test_a_folder_brings_what_its_files_say_of_the_wanted_gpu_alone(write, tmp_path):
    """As `collect --gpu 0,1` writes it: not what the first file says of its own board, such as its power at rest."""
    for uuid, name in {"GPU-1": "a100-pcie-40gb", "GPU-2": "h200-sxm", "GPU-3": "h200-sxm"}.items():
        write({"gpu": name}, name=f"{uuid}.parquet", gpu={"uuid": uuid, "specification": name}, simulated=uuid == "GPU-3")
    for paths in ([tmp_path], sorted(tmp_path.iterdir())):
        assert [file["gpu"]["uuid"] for file in read_selection(paths, "h200-sxm").files] == ["GPU-2", "GPU-3"]
    with pytest.raises(SelectionError, match="does not"):
        require_one_world(read_selection([tmp_path], "h200-sxm"))
    with pytest.raises(DatasetError, match="is of 3 boards"):
        export_dataset(tmp_path, "parquet", tmp_path / "one.parquet")
    joined = write({}, {"gpu": "h200-sxm"}, gpu={"specification": "a100-pcie-40gb"})
    assert len(read_selection([joined], "a100-pcie-40gb").files) == 1
    with pytest.raises(InputError, match="metadata are of another GPU"):
        read_selection([joined], "h200-sxm")


def test_columns_arrive_as_measured_under_the_drivers_name_of_a_board(write):
    other = {"gpu": "sim:a100-pcie-40gb", "sm_clock_mhz": None, "power_w": None, "power_std_w": None, "l2_state": "cold"}
    rows, rejected = read(write({"gpu": "NVIDIA A100-PCIE-40GB"}, other))
    assert rejected == []
    assert set(rows.row_gpus) == {"a100-pcie-40gb"}
    assert rows.operators == (GEMM,)
    assert rows.tile_m.tolist() == [128, 128]
    assert rows.l2_warm.tolist() == [True, False]
    np.testing.assert_array_equal(rows.power_w, [150.0, np.nan])
    np.testing.assert_array_equal(rows.sm_clock_asked_mhz, [900.0, np.nan])


@pytest.mark.parametrize("flag", sorted(FLAGS))
def test_flags_reject_lower_the_weight_or_pass(write, flag):
    rows, rejected = read(write({}, {"flags": [flag], **AT_1200}))
    assert sum(flag in group for group in (REJECTS_ROW, REJECTS_POWER, LOWERS_WEIGHT)) <= 1
    if flag in REJECTS_ROW:
        assert (len(rows), [(r.reason, r.power_only) for r in rejected]) == (1, [(flag.upper(), False)])
    elif flag in REJECTS_POWER:
        assert (len(rows), [(r.reason, r.power_only) for r in rejected]) == (2, [(flag.upper(), True)])
        assert np.isnan(rows.power_w[1])
    else:
        assert rejected == []
        assert rows.weight[1] == (FLAGGED_WEIGHT if flag in LOWERS_WEIGHT else 1.0)


def test_a_kernel_that_was_only_timed_is_no_rejected_row(write):
    rows, rejected = read(write({}, {"flags": ["short_window"], "power_w": None, "power_std_w": None, "m": 512}))
    assert rejected == []
    assert np.isnan(rows.power_w[1])
    assert rows.weight[1] == 1.0


def test_trials_and_layouts_of_a_kernel_weigh_together_as_the_best_of_them_alone(write):
    rows, _ = read(write({}, {}, {"flags": ["unsettled"]}, AT_1200, {"flags": ["shared_board"]}))
    assert rows.weight[:3].sum() == pytest.approx(1.0)
    assert rows.weight[2] == pytest.approx(FLAGGED_WEIGHT * rows.weight[0])
    assert rows.weight[3] == 1.0
    layouts = [{"transpose": layout, "latency_s": 2e-5 * (1.0 + 0.1 * i), "trial": 0} for i, layout in enumerate(("tn", "nn", "nt", "tt"))]
    rows, _ = read(write(*layouts, {"sm_clock_mhz": 1200.0, "trial": 0}))
    assert rows.weight.tolist() == [0.25] * 4 + [1.0]
    assert len(rows.operators) == 1


@pytest.mark.parametrize("word", [".", "../data", "inner/.."])
def test_a_folder_of_files_is_one_data_set_with_a_name(write, tmp_path, monkeypatch, word):
    folder = tmp_path / "data"
    (folder / "inner").mkdir(parents=True)
    for name, count in (("one.parquet", 1), ("two.parquet", 2)):
        write(*[{}] * count, name=name).rename(folder / name)
    monkeypatch.chdir(folder)
    selection = read_selection([word])
    assert selection.datasets[0].name == "data"
    assert selection.files[0]["simulated"] is True
    assert len(selection.kernels) == 3


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("uuid, simulated", [(simulated_uuid("a100-pcie-40gb"), True), ("GPU-7d3a1f20-9c4e-11ee-b9d1-0242ac120002", False)])
def test_a_simulated_board_and_flags_are_known_in_other_formats(write, tmp_path, kind, uuid, simulated):
    dataset = write({"gpu_uuid": uuid}, {"flags": ["shared_board"]}, {"gpu_uuid": uuid, "flags": ["hot", "unsettled"], **AT_1200})
    frame = pd.read_parquet(dataset)
    copy = tmp_path / f"copy.{kind}"
    if kind == "csv":
        frame.assign(flags=frame["flags"].map(";".join)).to_csv(copy, index=False)
    else:
        frame.to_parquet(copy)
    selection = read_selection([copy])
    assert selection.files[0].get("simulated", False) is simulated
    assert selection.kernels.weight.tolist() == [1.0, FLAGGED_WEIGHT]
    assert [row.reason for row in selection.rejected] == ["SHARED_BOARD"]


def test_a_dataset_without_rows_is_refused(write):
    with pytest.raises(SelectionError, match=r"dataset\.parquet: no rows"):
        read_selection([write()])


def test_fp8_products_of_a_campaign_have_given_scales(write):
    rows, _ = read(write({"precision": "fp8", "gpu": "h100-sxm"}))
    assert [operator.precision for operator in rows.operators] == ["fp8_static"]

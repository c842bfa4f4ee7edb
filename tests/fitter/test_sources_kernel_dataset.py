from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from collector.dataset import FLAGS, operator_columns, write_kernel_dataset
from estimator.vocabulary.gpu import simulated_uuid
from estimator.vocabulary.workload import make_operator
from fitter.errors import SelectionError
from fitter.rows.columns import KernelRows
from fitter.rows.kernel_table import FLAGGED_WEIGHT, LOWERS_WEIGHT, REJECTS_POWER, REJECTS_ROW
from fitter.rows.rejected import RejectedRow
from fitter.rows.selection import read_selection, require_one_world

Write = Callable[..., Path]
GEMM = make_operator("gemm", "linear", "bf16", batch=1, m=1024, n=1024, k=1024)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a kernel dataset; each row is given by the columns that differ from a good one."""

    def writer(*changes: dict[str, Any], name: str = "dataset.parquet") -> Path:
        rows = []
        for i, change in enumerate(changes):
            good = {
                "row_id": f"{name}{i}",
                **operator_columns(GEMM),
                "gpu": "a100-pcie-40gb",
                "gpu_uuid": "GPU-0",
                "sm_clock_mhz": 900.0,
                "sm_clock_measured_mhz": 900.0,
                "throttle_reasons": 0,
                "launches": 1000,
                "latency_s": 2e-5,
                "latency_std_s": 1e-8,
                "power_w": 150.0,
                "power_std_w": 0.5,
                "samples": 50,
                "flags": [],
                "l2_state": "warm",
                "tile_m": 128,
                "tile_n": 256,
                "split_k": 1,
                "trial": i,
                "seed": 0,
            }
            rows.append({**good, **change})
        path = tmp_path / name
        write_kernel_dataset(rows, {"simulated": True}, path)
        return path

    return writer


def test_measurements_and_a_simulated_board_do_not_become_one_bundle(write: Write, tmp_path: Path) -> None:
    table = tmp_path / "measured.csv"
    table.write_text("family,operator,gpu,precision,rows,dim,latency_s\nsoftmax,softmax,a100-pcie-40gb,fp32,4096,512,2e-5\n")
    other = write({}, name="other.parquet")
    require_one_world(read_selection([write({}), other]))
    require_one_world(read_selection([table]))
    with pytest.raises(SelectionError, match=r"dataset\.parquet comes from a simulated board and measured\.csv does not"):
        require_one_world(read_selection([table, write({})]))


def test_layouts_of_a_product_weigh_together_as_one_row(write: Write) -> None:
    layouts = [{"transpose": layout, "latency_s": 2e-5 * (1.0 + 0.1 * i), "trial": 0} for i, layout in enumerate(("tn", "nn", "nt", "tt"))]
    rows, _ = read(write(*layouts, {"sm_clock_mhz": 1200.0, "trial": 0}))
    assert rows.weight.tolist() == [0.25] * 4 + [1.0]
    assert rows.latency_s.tolist() == pytest.approx([2e-5, 2.2e-5, 2.4e-5, 2.6e-5, 2e-5])
    assert len(rows.operators) == 1


def read(path: Path) -> tuple[KernelRows, list[RejectedRow]]:
    selection = read_selection([path])
    assert selection.kernels is not None
    return selection.kernels, list(selection.rejected)


def test_every_flag_has_a_policy_or_changes_nothing() -> None:
    for group in (REJECTS_ROW, REJECTS_POWER, LOWERS_WEIGHT):
        assert group <= FLAGS.keys()
    assert not REJECTS_ROW & REJECTS_POWER
    assert not (REJECTS_ROW | REJECTS_POWER) & LOWERS_WEIGHT


def test_columns_arrive_as_measured(write: Write) -> None:
    rows, rejected = read(write({}, {"sm_clock_mhz": None, "power_w": None, "power_std_w": None, "l2_state": "cold"}))
    assert rejected == []
    assert rows.operators == (GEMM,)
    assert rows.tile_m.tolist() == [128, 128]
    assert rows.l2_warm.tolist() == [True, False]
    np.testing.assert_array_equal(rows.power_w, [150.0, np.nan])
    np.testing.assert_array_equal(rows.sm_clock_asked_mhz, [900.0, np.nan])
    assert rows.trial.tolist() == [0, 1]


@pytest.mark.parametrize("flag", sorted(FLAGS))
def test_flags_reject_lower_the_weight_or_pass(write: Write, flag: str) -> None:
    rows, rejected = read(write({}, {"flags": [flag], "sm_clock_mhz": 1200.0, "sm_clock_measured_mhz": 1200.0}))
    if flag in REJECTS_ROW:
        assert (len(rows), [(r.reason, r.power_only) for r in rejected]) == (1, [(flag.upper(), False)])
    elif flag in REJECTS_POWER:
        assert (len(rows), [(r.reason, r.power_only) for r in rejected]) == (2, [(flag.upper(), True)])
        assert np.isnan(rows.power_w[1])
    else:
        assert rejected == []
        assert rows.weight[1] == (FLAGGED_WEIGHT if flag in LOWERS_WEIGHT else 1.0)


@pytest.mark.parametrize(
    ("change", "reason", "power_only"),
    [
        ({"latency_s": None}, "BAD_LATENCY", False),
        ({"power_w": 4000.0}, "ABOVE_LIMIT", True),
        ({"sm_clock_measured_mhz": 9e8}, "BAD_CLOCK", False),
    ],
)
def test_a_bad_row_is_left_out_with_its_reason(write: Write, change: dict[str, Any], reason: str, power_only: bool) -> None:
    rows, rejected = read(write({}, change))
    assert [(r.row, r.reason, r.power_only) for r in rejected] == [(2, reason, power_only)]
    assert len(rows) == (2 if power_only else 1)


def test_the_driver_s_name_of_a_board_is_understood(write: Write) -> None:
    rows, _ = read(write({"gpu": "NVIDIA A100-PCIE-40GB"}, {"gpu": "sim:a100-pcie-40gb"}))
    assert rows.gpus == ("a100-pcie-40gb",)


def test_a_folder_of_files_is_one_data_set(write: Write, tmp_path: Path) -> None:
    write({}, name="one.parquet")
    write({}, {}, name="two.parquet")
    selection = read_selection([tmp_path])
    assert selection.kernels is not None
    assert len(selection.kernels) == 3
    assert selection.datasets[0].metadata["simulated"] is True


def test_trials_of_a_kernel_weigh_together_as_the_best_of_them_alone(write: Write) -> None:
    doubtful = {"flags": ["unsettled"]}
    rows, _ = read(write({}, {}, doubtful, {"sm_clock_mhz": 1200.0, "sm_clock_measured_mhz": 1200.0}, {"flags": ["shared_board"]}))
    assert rows.weight[:3].sum() == pytest.approx(1.0)
    assert rows.weight[2] == pytest.approx(FLAGGED_WEIGHT * rows.weight[0])
    assert rows.weight[3] == 1.0


def test_a_kernel_that_was_only_timed_is_no_rejected_row(write: Write) -> None:
    rows, rejected = read(write({}, {"flags": ["short_window"], "power_w": None, "power_std_w": None, "m": 512}))
    assert rejected == []
    assert np.isnan(rows.power_w[1])
    assert rows.weight[1] == 1.0


@pytest.mark.parametrize("word", [".", "../data", "inner/.."])
def test_a_folder_has_a_name_however_it_is_called(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    folder = tmp_path / "data"
    (folder / "inner").mkdir(parents=True)
    write({}).rename(folder / "kernels.parquet")
    monkeypatch.chdir(folder)
    assert read_selection([word]).datasets[0].name == "data"


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("uuid", "simulated"),
    [(simulated_uuid("a100-pcie-40gb"), True), (simulated_uuid("h200-sxm"), True), ("GPU-7d3a1f20-9c4e-11ee-b9d1-0242ac120002", False)],
)
def test_a_simulated_board_is_known_in_other_formats(write: Write, tmp_path: Path, kind: str, uuid: str, simulated: bool) -> None:
    frame = pd.read_parquet(write({"gpu_uuid": uuid})).drop(columns="flags")
    copy = tmp_path / f"copy.{kind}"
    if kind == "csv":
        frame.to_csv(copy, index=False)
    else:
        frame.to_parquet(copy)
    assert read_selection([copy]).datasets[0].metadata.get("simulated", False) is simulated


def test_a_dataset_without_rows_is_called_that(write: Write) -> None:
    with pytest.raises(SelectionError, match=r"dataset\.parquet: no rows"):
        read_selection([write()])


def test_flags_of_a_dataset_in_csv_count_as_in_parquet(write: Write, tmp_path: Path) -> None:
    dataset = write({}, {"flags": ["shared_board"]}, {"flags": ["hot", "unsettled"], "sm_clock_mhz": 1200.0})
    frame = pd.read_parquet(dataset)
    frame["flags"] = frame["flags"].map(";".join)
    frame.to_csv(tmp_path / "copy.csv", index=False)
    (rows, rejected), (copied, also) = read(dataset), read(tmp_path / "copy.csv")
    assert rows.weight.tolist() == copied.weight.tolist() == [1.0, FLAGGED_WEIGHT]
    assert [row.reason for row in rejected] == [row.reason for row in also] == ["SHARED_BOARD"]

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from collector.dataset import DatasetError
from estimator.vocabulary.errors import SpecificationError
from fitter.errors import InputError, SelectionError
from fitter.rows.columns import join_rows, with_rejected
from fitter.rows.rejected import RejectedRow
from fitter.rows.selection import joined, read_selection, require_one_gpu
from tests.fitter.measured import kernel_rows, planted_bundle, selection_of, various_operators


def test_kinds_are_told_by_content(shared_data: Path) -> None:
    selection = read_selection([shared_data / "energaizer" / "a100_900mhz.csv", shared_data / "neusight" / "linear_larger_shapes.csv"])
    assert [dataset.kind for dataset in selection.datasets] == ["workload dataset", "kernel table"]
    assert require_one_gpu(selection) == "a100-pcie-40gb"
    assert selection.workloads is not None
    assert selection.kernels is not None
    assert (len(selection.workloads), len(selection.kernels)) == (57, 1040)


def test_several_gpus_are_refused_and_one_can_be_chosen(shared_data: Path) -> None:
    path = shared_data / "neusight" / "bmm_train.csv"
    with pytest.raises(SelectionError, match=r"a100-pcie-40gb \(3332 rows\), v100-pcie-32gb \(3539 rows\).*--gpu"):
        require_one_gpu(read_selection([path]))
    selection = read_selection([path], gpu="v100-pcie-32gb")
    assert require_one_gpu(selection) == "v100-pcie-32gb"
    assert selection.datasets[0].rejected == {"OTHER_GPU": 3332}
    assert selection.datasets[0].used == 3539


def test_a_gpu_without_rows_or_without_a_name_is_refused(shared_data: Path) -> None:
    path = shared_data / "neusight" / "linear_larger_shapes.csv"
    with pytest.raises(SelectionError, match="no usable row for t4"):
        read_selection([path], gpu="t4")
    with pytest.raises(SpecificationError, match="known: a10, .*or give a TOML file"):
        read_selection([path], gpu="a1o")


def test_the_gpu_of_a_table_without_that_column_is_given(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("operator,precision,m,n,k,latency_s\nlinear,bf16,512,512,512,2e-5\n")
    with pytest.raises(InputError, match="--gpu"):
        read_selection([path])
    assert read_selection([path], gpu="NVIDIA A10").gpus == ("a10",)


def test_joined_rows_keep_their_operators_and_origins(shared_data: Path) -> None:
    folder = shared_data / "neusight"
    both = read_selection([folder / "linear_larger_shapes.csv", folder / "vector_train.csv"]).kernels
    one = read_selection([folder / "vector_train.csv"]).kernels
    assert both is not None
    assert one is not None
    tail = both.select(np.arange(len(both) - len(one), len(both)))
    assert tail.row_operators() == one.row_operators()
    assert [both.sources[i] for i in np.unique(both.source_index)] == ["linear_larger_shapes.csv", "vector_train.csv"]
    assert join_rows([one]) is one


def test_the_same_data_twice_is_refused(shared_data: Path, tmp_path: Path) -> None:
    path = shared_data / "neusight" / "linear_larger_shapes.csv"
    copy = tmp_path / "copy.csv"
    copy.write_bytes(path.read_bytes())
    with pytest.raises(InputError, match="same data"):
        read_selection([path, copy])


def test_a_table_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("time,volts\n1,2\n")
    with pytest.raises(InputError, match="columns time, volts: neither"):
        read_selection([path])


def test_no_data_set_and_missing_or_empty_ones_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least one"):
        read_selection([])
    with pytest.raises(InputError, match="no such file"):
        read_selection([tmp_path / "none.parquet"])
    with pytest.raises(DatasetError, match="no Parquet file"):
        read_selection([tmp_path])


def test_power_with_and_without_a_meter_is_not_mixed_in_silence() -> None:
    plain = selection_of(kernel_rows(planted_bundle(), various_operators(6)))
    record = plain.datasets[0]
    metered = replace(plain, datasets=(replace(record, name="metered", metadata={"sensor": {"gain": 1.02, "gain_std": 0.004}}),))
    other = replace(metered, datasets=(replace(metered.datasets[0], sha256="3" * 64),))
    metered = replace(metered, datasets=(replace(metered.datasets[0], sha256="4" * 64),))
    assert joined([plain]).notes == joined([metered, other]).notes == ()
    (note,) = joined([plain, metered]).notes
    assert "metered was compared with an external meter" in note
    assert record.name in note


def test_rows_that_the_fit_rejects_are_in_use_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = [f"softmax,softmax,a100-pcie-40gb,fp32,{1000 + i},512,1e-4,{'' if i < 4 else 150}" for i in range(10)]
    path.write_text("family,operator,gpu,precision,rows,dim,latency_s,power_w\n" + "\n".join(rows) + "\n")
    selection = read_selection([path])
    assert selection.latency_only == 4
    outliers = tuple(RejectedRow(source="t.csv", row=row, reason="OUTLIER") for row in (1, 2, 9))
    bad_power = RejectedRow(source="t.csv", row=3, reason="HISTORY", power_only=True)
    found = with_rejected(selection, (*outliers, bad_power))
    assert found.datasets[0].used == 7
    assert found.latency_only == 2


def test_a_column_that_stands_twice_in_parquet_is_named(tmp_path: Path) -> None:
    column = pa.array([1e-4])
    names = ["operator", "precision", "gpu", "rows", "dim", "latency_s", "latency_s"]
    table = pa.table([pa.array(["softmax"]), pa.array(["fp32"]), pa.array(["a10"]), pa.array([64]), pa.array([64]), column, column], names)
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(DatasetError, match="column 'latency_s' stands twice in the header"):
        read_selection([tmp_path / "t.parquet"])

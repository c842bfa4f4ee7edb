"""Tables of labs: any CSV or Parquet file is read for what it is, or refused in one line."""

import gzip
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from collector.errors import DatasetError
from estimator import SpecificationError
from fitter.errors import InputError, SelectionError
from fitter.rows.columns import join_rows
from fitter.rows.kernel_table import COLUMNS
from fitter.rows.rejected import count_reasons
from fitter.rows.selection import read_selection, require_one_gpu
from fitter.rows.tables import LONGEST_TEXT, open_table
from tests.words import one_line

GEMM = "gemm,linear,a100-sxm-80gb,bf16,1,1024,1024,1024"
HEADER = "family,operator,gpu,precision,batch,m,n,k,latency_s,power_w,power_limit_w,reason"


@pytest.fixture
def read(read_table):
    """Kernels and rejected rows of a table given as lines."""

    def reader(*lines, header=HEADER):
        found = read_table(header, *lines)
        return found.kernels, list(found.rejected)

    return reader


def recorded(path):
    found = read_selection([path])
    return found.kernels, list(found.rejected)


def test_a_packed_table_and_a_folder_of_tables_are_read_like_plain_ones(tmp_path):
    text = "\n".join([HEADER, *(f"{GEMM}{n},1e-4,,," for n in range(3))]).encode() + b"\n"
    plain, packed, folder = tmp_path / "plain.csv", tmp_path / "packed.csv.gz", tmp_path / "folder"
    folder.mkdir()
    plain.write_bytes(text)
    packed.write_bytes(gzip.compress(text[:90]) + gzip.compress(text[90:]))  # gzip joins files by appending them
    (folder / "one.csv.gz").write_bytes(gzip.compress(text.replace(b"1e-4", b"3e-4")))
    (folder / "two.csv").write_bytes(text.replace(b"1e-4", b"2e-4"))
    (folder / "systems.csv").write_text("gpu,sms\na,1\n")
    pq.write_table(csv.read_csv(plain), folder / "packed.parquet")
    rows = [read_selection([path]).kernels for path in (plain, packed, folder)]
    assert [len(found) for found in rows] == [3, 3, 9]
    assert rows[1].latency_s.tolist() == rows[0].latency_s.tolist()
    assert read_selection([folder]).notes[-1] == "systems.csv: no table of kernels, runs or blocks; left out"


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-20], lambda b: b[:90], lambda b: b[:20] + bytes(20) + b[40:], lambda b: b[:-8] + bytes(8), lambda b: b + b"x"]
)
def test_a_damaged_packed_table_is_refused_in_one_line(tmp_path, damage):
    path = tmp_path / "table.csv.gz"
    lines = [HEADER, *(f"{GEMM},{n}e-6,,," for n in range(20_000))]
    path.write_bytes(damage(gzip.compress("\n".join(lines).encode())))
    with pytest.raises(InputError, match="gzip cannot unpack it"):
        read_selection([path])


@pytest.mark.parametrize("label", ["ampere_sgemm", '"gemm<128, 64>"'])
def test_a_table_cut_anywhere_in_its_last_row_loses_no_other_row_and_takes_no_row_without_its_last_fields(tmp_path, label):
    path = tmp_path / "t.csv"
    line = f"{GEMM},1e-4,{label},3,warm"
    text = f"{HEADER.partition(',power_w')[0]},kernel_name,trial,l2_state\n{line}\n{line.replace('3,warm', '4,cold')}"
    for end in range(text.rindex("\n") + 2, text.rindex(",") + 1):
        path.write_text(text[:end])
        rows, rejected = recorded(path)
        assert (len(rows), [(one.row, one.reason) for one in rejected]) == (1, [(2, "BAD_TEXT")]), text[:end]


def test_what_launches_use_in_turn_is_known_from_copies_of_weights_or_from_the_stated_l2_state(read):
    rows, rejected = read(
        *(f"{GEMM},1e-4,{rest}" for rest in ("4,", ",cold", ",warm", "1,cold", ",")),
        header="family,operator,gpu,precision,batch,m,n,k,latency_s,weight_copies,l2_state",
    )
    assert rejected == []
    # Weights are a third of the operands of a square product.
    assert rows.l2_warm.tolist() == pytest.approx([2.0, 0.0, 1.0, 1.0, 1.0])


@pytest.mark.parametrize(
    "folder, name, warm",
    [
        *(("neusight", name, True) for name in ("bmm_train", "linear_train", "linear_larger_shapes", "vector_train")),
        *(("aiconfigurator", name, False) for name in ("gemm_latency", "attention_latency", "repeatability_pairs")),
    ],
)
def test_rows_of_published_tables_are_warm_or_cold_and_accepted_but_for_heads_that_no_fused_kernel_takes(shared_data, folder, name, warm):
    path = shared_data / folder / f"{name}.csv"
    rows, rejected = recorded(path)
    heads = open_table(path, COLUMNS).numbers("head_dim")
    assert {(row.reason, heads[row.row - 1]) for row in rejected} <= {("OTHER_KERNEL", 512.0)}
    assert len(rejected) < 0.005 * len(rows)
    assert (rows.l2_warm == warm).all()
    assert np.isfinite(rows.tile_m).all() == name.startswith(("bmm", "linear"))


def test_experts_of_serving_tables_find_weights_in_l2(shared_data):
    rows, _ = recorded(shared_data / "aiconfigurator-2" / "moe_a100-sxm-80gb.csv")
    assert rows.l2_warm.all()


def test_marks_of_the_power_table_reject_power_or_row_as_they_say(shared_data):
    rows, rejected = recorded(shared_data / "aiconfigurator" / "power.csv")
    counts = count_reasons(rejected)
    stated = {"SINGLE_SAMPLE": 1424, "SHORT_WINDOW": 1503, "HISTORY": 193, "UNSET_OPERANDS": 190, "SEQUENCE": 162, "COLD_START": 13}
    assert all(0.95 * count <= counts[reason] <= count for reason, count in stated.items()), "but for rows that are rejected as wholes"
    assert {row.reason for row in rejected if not row.power_only} == {"UNSET_OPERANDS", "HOST_BOUND", "ABOVE_ROOF", "OTHER_KERNEL"}
    assert len(rows) == 10716 - sum(not row.power_only for row in rejected)
    assert 0.3 < rows.at_limit.sum() / np.isfinite(rows.power_w).sum() < 0.5


@pytest.mark.parametrize(
    "row, reason",
    [
        (f"{GEMM},nan,,,", "BAD_LATENCY"),
        (f"{GEMM},1e308,,,", "BAD_LATENCY"),
        (f"{GEMM},0,,,", "BAD_LATENCY"),
        (f"{GEMM},soon,,,", "BAD_LATENCY"),
        ("gemm,linear,a100-sxm-80gb,bf16,1,2.5,1024,1024,1e-4,,,", "BAD_SHAPE"),
        ("gemm,linear,voodoo2,bf16,1,8,8,8,1e-5,,,", "UNKNOWN_GPU"),
        ("gemm,teleport,a100-sxm-80gb,bf16,1,8,8,8,1e-5,,,", "UNKNOWN_OPERATOR"),
        ("gemm,linear,a100-sxm-80gb,int3,1,8,8,8,1e-5,,,", "UNKNOWN_PRECISION"),
        ("gemm,linear,a100-sxm-80gb,fp8,1,8,8,8,1e-5,,,", "NO_RATE"),
        ("gemm,linear,a100-sxm-80gb,bf16,1,,8,8,1e-5,,,", "BAD_SHAPE"),
        ("gemm,linear,a100-sxm-80gb,bf16,1,1e300,8,8,1e-5,,,", "BAD_SHAPE"),
        ("gemm,linear,a100-sxm-80gb,bf16,8x,8,8,8,1e-5,,,", "BAD_SHAPE"),
        (f"{GEMM},1e-4,,400 W,", "BAD_NUMBER"),
        (f"{GEMM},100,,,", "ABSURDLY_SLOW"),
        (f"{GEMM},1e-6,,,", "ABOVE_ROOF"),
        ("gemm,linear,a100-sxm-80gb,bf16,1,1,65536,4096,1e-4,,,", "ABOVE_ROOF"),  # 537 MB of weights, an L2 of 40 MB
        (f"{GEMM},1e-4,,,", "DUPLICATE"),
        (f"{GEMM},1e-4,,,MADE_UP_MARK", "MADE_UP_MARK"),
        (f"{GEMM},1e-4,,,=cmd|' /C calc'!A0", "MARKED"),
        ("x" * 5000 + ",linear,a100-sxm-80gb,bf16,1,8,8,8,1e-5,,,", "BAD_TEXT"),
        (f"{GEMM},1e-4,inf,400,", "BAD_POWER (power)"),
        (f"{GEMM},1e-4,word,400,", "BAD_POWER (power)"),
        (f"{GEMM},1e-4,2,400,", "BAD_POWER (power)"),
        (f"{GEMM},1e-4,480,400,", "ABOVE_LIMIT (power)"),
        (f"{GEMM},1e-4,300,0,", "BAD_POWER (power)"),
        (f"{GEMM},1e-4,300,inf,", "BAD_NUMBER"),
    ],
)
def test_a_bad_row_or_its_power_is_rejected_with_its_reason(read, row, reason):
    rows, rejected = read(f"{GEMM},1e-4,,,", f"{GEMM},1.01e-4,440,400,OK", row)
    assert [(r.row, f"{r.reason}{' (power)' * r.power_only}") for r in rejected] == [(3, reason)]
    assert len(rejected[0].detail) < 500
    assert len(rows) == 2 + rejected[0].power_only
    assert rows.at_limit.tolist()[:2] == [False, True]
    np.testing.assert_array_equal(rows.power_w, [np.nan, 440.0, np.nan][: len(rows)])


def test_milliseconds_in_a_column_of_seconds_and_a_table_without_a_gpu_are_refused(read):
    with pytest.raises(InputError, match="seconds"):
        read(*(f"gemm,linear,a100-sxm-80gb,bf16,1,{128 * i},4096,4096,{0.05 * i},,," for i in range(1, 12)))
    with pytest.raises(InputError, match="--gpu"):
        read("linear,bf16,1e-3,8,8,8", header="operator,precision,latency_s,m,n,k")
    with pytest.raises(InputError, match="--gpu"):
        read("linear,bf16,1e-3,8,8,8,", header="operator,precision,latency_s,m,n,k,gpu")


@pytest.mark.parametrize("unit", [1e3, 1e-3])
def test_powers_that_are_all_in_another_unit_are_refused(read, unit):
    with pytest.raises(InputError, match="must be in watts"):
        read(*(f"gemm,linear,a100-sxm-80gb,bf16,1,{128 * i},4096,4096,{1e-3 * i},{unit * (150 + i)},," for i in range(1, 9)))


def test_text_in_a_column_of_numbers_is_shown(read):
    _, rejected = read(f"{GEMM},1e-4,,,", f"{GEMM},1e-4 s,,,")
    assert [row.detail for row in rejected] == ["latency_s = '1e-4 s' is no plain number"]


def test_attention_rows_become_prefill_and_decode(read):
    rows, rejected = read(
        "attention,prefill,h200-sxm,bfloat16,fp8,4,128,32,8,64,0,0,1e-3",
        "attention,attention,h200-sxm,bfloat16,,4,128,32,,64,,1,1e-3",
        header="family,operator,gpu,precision,kv_precision,batch,sequence,heads,kv_heads,head_dim,window,is_decode,latency_s",
    )
    assert rejected == []
    prefill, decode = rows.row_operators()
    assert (prefill["queries"], prefill["context"], prefill["causal"], prefill.precision_kv) == (128, 128, 1, "fp8")
    assert (decode.operator, decode["queries"], decode["context"], decode["kv_heads"]) == ("decode", 1, 128, 32)
    assert decode.precision_kv == "bf16"


@pytest.mark.parametrize("name, split", [("execute_kernel", 1.0), ("execute_split_k_kernel", math.nan)])
def test_a_split_that_a_name_says_and_the_grid_hides_is_unknown(read, name, split):
    columns = "tile_m,tile_n,split_k,kernel_name"
    rows, _ = read(f"{GEMM},1e-4,,,,32,32,1,sm80_xmma_gemm_tilesize32x32x8_{name}", header=f"{HEADER},{columns}")
    np.testing.assert_array_equal((rows.tile_m[0], rows.split_k[0]), (32.0, split))


# Selections -----------------------------------------------------------------------------------------------------------


def test_kinds_of_files_are_found_by_content_and_join_in_order(shared_data, tmp_path):
    large, vector = shared_data / "neusight" / "linear_larger_shapes.csv", shared_data / "neusight" / "vector_train.csv"
    selection = read_selection([shared_data / "energaizer" / "a100_900mhz.csv", large])
    assert [dataset.kind for dataset in selection.datasets] == ["workload dataset", "kernel table"]
    assert require_one_gpu(selection) == "a100-pcie-40gb"
    assert [len(rows) for rows in selection.tables] == [1040, 57]
    both, one = read_selection([large, vector]).kernels, read_selection([vector]).kernels
    assert both.select(np.arange(len(both) - len(one), len(both))).row_operators() == one.row_operators()
    assert both.sources == ("linear_larger_shapes.csv", "vector_train.csv")
    assert join_rows([one, None]) is one
    whole = large.read_bytes()
    for again in (whole, b"\n".join(whole.splitlines()[:20])):
        (tmp_path / "copy.csv.gz").write_bytes(gzip.compress(again))
        with pytest.raises(InputError, match="same data"):
            read_selection([large, tmp_path / "copy.csv.gz"])


def test_one_gpu_is_chosen_among_several_or_given_to_a_table_without_one(shared_data, tmp_path):
    path = shared_data / "neusight" / "bmm_train.csv"
    with pytest.raises(SelectionError, match=r"a100-pcie-40gb \(3332 rows\), v100-pcie-32gb \(3539 rows\).*--gpu"):
        require_one_gpu(read_selection([path]))
    selection = read_selection([path], gpu="v100-pcie-32gb")
    assert require_one_gpu(selection) == "v100-pcie-32gb"
    assert (selection.datasets[0].rejected, selection.datasets[0].used) == ({"OTHER_GPU": 3332}, 3539)
    with pytest.raises(SelectionError, match="no usable row for t4"):
        read_selection([path], gpu="t4")
    with pytest.raises(SpecificationError, match="nearest: .*a10; .*TOML file"):
        read_selection([path], gpu="a1o")
    (tmp_path / "t.csv").write_text("operator,precision,m,n,k,latency_s\nlinear,bf16,512,512,512,2e-5\n")
    assert read_selection([tmp_path / "t.csv"], gpu="NVIDIA A10").rows_by_gpu.keys() == {"a10"}


@pytest.mark.parametrize("kernel, reason", [("teleport,bf16", "UNKNOWN_OPERATOR"), ("linear,fp9", "UNKNOWN_PRECISION")])
def test_a_table_without_one_known_kernel_is_refused_with_the_reason(kernel, reason, tmp_path):
    (tmp_path / "t.csv").write_text(f"operator,precision,m,n,k,latency_s\n{kernel},512,512,512,2e-5\n")
    with pytest.raises(SelectionError, match=f"no usable row for a10 among 1 .1 {reason}.; first: t.csv row 1"):
        read_selection([tmp_path / "t.csv"], gpu="a10")


# Files ----------------------------------------------------------------------------------------------------------------

ABC = frozenset({"a", "b", "name"})


def test_csv_in_any_spelling_and_parquet_read_alike(tmp_path):
    plain = "a,b,name\n1,2.5,x\n3,,y\n"
    pq.write_table(pa.table({"a": [1, 3], "b": [2.5, None], "name": ["x", "y"]}), tmp_path / "t.parquet")
    tables = [open_table(tmp_path / "t.parquet", ABC)]
    for content in (plain, "\ufeff" + plain, plain.replace("\n", "\r\n"), plain.replace("\n", "\r")):
        (tmp_path / "t.csv").write_bytes(content.encode())
        tables.append(open_table(tmp_path / "t.csv", ABC))
    for table in tables:
        np.testing.assert_array_equal(table.numbers("a"), [1.0, 3.0])
        np.testing.assert_array_equal(table.numbers("b"), [2.5, np.nan])
        assert table.texts("name") == ["x", "y"]
        assert math.isnan(table.numbers("c")[0])
        assert table.texts("c") == ["", ""]


def test_a_blank_number_is_missing_and_a_word_or_a_giant_is_garbled(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1, \n2,word\n3,nan\n4,inf\n5,1e400\n6,0x10\n7,1_000\n8," + "9" * 10_000_000 + "\n")
    table = open_table(path, ABC)
    assert table.garbled("b").tolist()[:7] == [False, True, False, True, True, True, True]
    assert not np.isfinite(table.numbers("b")).any()
    assert table.damaged.tolist() == [False] * 7 + [True]
    assert len("9" * 10_000_000) > LONGEST_TEXT


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "empty"),
        (b"\n\n  \n", "empty"),
        (b"a,b\n", "no rows"),
        (b"\x00\x01\x02\x03" * 100, "binary"),
        (b"\xff\xfe\xfd a,b\n1,2\n", "UTF-8"),
        (b"a,b,a\n1,2,3\n", "twice"),
        (b"a,b\n1,2\n3,4,5,6\n", "CSV"),
        (b"PAR1" + b"\x00" * 64, "Parquet"),
        ("a,b,name\n1,2,x\n".encode("utf-16"), "UTF-8"),
        (b"a,b\n1,2,3\n4,5,6\n", "another number of fields"),
    ],
)
def test_a_file_that_is_no_table_is_refused_in_one_line(tmp_path, content, message):
    path = tmp_path / "bad"
    path.write_bytes(content)
    with one_line((InputError, DatasetError), match=message) as caught:
        open_table(path, ABC)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "table, message",
    [
        (pa.table({"a": [[1.0], [2.0]]}), "plain numbers or text"),
        (pa.table({"a": [{"x": 1.0}]}), "plain numbers or text"),
        (pa.table([pa.array([1.0]), pa.array([1.0])], ["a", "a"]), "column 'a' stands twice in the header"),
    ],
)
def test_columns_of_lists_and_doubled_columns_are_refused(tmp_path, table, message):
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises((InputError, DatasetError), match=message):
        open_table(tmp_path / "t.parquet", ABC)


@pytest.mark.parametrize(
    "column, cell, reason",
    [
        ("sm_clock_mhz", "900 MHz", "BAD_NUMBER"),  # as nvidia-smi writes it
        ("sm_clock_mhz", "900", None),
        ("sm_clock_mhz", "", None),
        ("weight_copies", "two", "BAD_NUMBER"),
        ("weight_copies", "0", "BAD_COUNT"),
        ("l2_state", "Cold", None),
        ("l2_state", "icy", "BAD_L2_STATE"),
        ("load", "long", "BAD_LOAD"),
    ],
)
def test_what_a_cell_says_otherwise_than_its_column_does_not_count_as_missing(read, column, cell, reason):
    rejected = read(f"{GEMM},1e-4,,,,{cell}", f"{GEMM},2e-4,,,,", header=f"{HEADER},{column}")[1]
    assert [one.reason for one in rejected] == ([reason] if reason else [])


def test_an_energy_without_power_is_the_power_of_its_time(read):
    header = HEADER.partition("power_w")[0] + "energy_j,power_w"
    given = (f"{GEMM},1e-4,0.02,", f"{GEMM},2e-4,0.02,150", f"{GEMM},3e-4,0.03,210", f"{GEMM},0,0.02,")
    rows, rejected = read(*given, header=header)
    assert rows.power_w.tolist() == pytest.approx([200.0, 150.0, np.nan], nan_ok=True)
    assert sorted((one.row, one.reason, one.power_only) for one in rejected) == [(3, "BAD_POWER", True), (4, "BAD_LATENCY", False)]

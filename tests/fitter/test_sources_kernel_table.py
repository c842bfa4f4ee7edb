from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from estimator.model.kernel_names import tile_from_name
from estimator.vocabulary.specifications import load_gpu
from fitter.errors import InputError
from fitter.rows.columns import KernelRows
from fitter.rows.kernel_table import COLUMNS, read_kernel_table
from fitter.rows.rejected import RejectedRow, count_reasons
from fitter.rows.roofline import minimal_work, roof_seconds
from fitter.rows.tables import open_table

GEMM = "gemm,linear,a100-sxm-80gb,bf16,1,1024,1024,1024"
HEADER = "family,operator,gpu,precision,batch,m,n,k,latency_s,power_w,power_limit_w,reason"

Reader = Callable[[str], tuple[KernelRows | None, list[RejectedRow]]]


@pytest.fixture
def read(tmp_path: Path) -> Reader:
    """Reads a table given as text."""

    def reader(content: str) -> tuple[KernelRows | None, list[RejectedRow]]:
        path = tmp_path / "table.csv"
        path.write_text(content)
        return read_kernel_table(open_table(path, COLUMNS))

    return reader


def read_file(path: Path) -> tuple[KernelRows, list[RejectedRow]]:
    rows, rejected = read_kernel_table(open_table(path, COLUMNS))
    assert rows is not None
    return rows, rejected


@pytest.mark.parametrize("name", ["bmm_train", "linear_train", "linear_larger_shapes", "vector_train"])
def test_every_row_of_the_fp32_tables_is_accepted(shared_data: Path, name: str) -> None:
    rows, rejected = read_file(shared_data / "neusight" / f"{name}.csv")
    assert rejected == []
    assert rows.l2_warm.all()
    if "train" in name and name != "vector_train":
        assert np.isfinite(rows.tile_m).all()


def test_rows_of_the_burst_tables_are_cold_and_accepted_but_for_heads_that_no_fused_kernel_takes(shared_data: Path) -> None:
    for name in ("gemm_latency", "attention_latency", "repeatability_pairs"):
        path = shared_data / "aiconfigurator" / f"{name}.csv"
        rows, rejected = read_file(path)
        heads = open_table(path, COLUMNS).numbers("head_dim")
        assert {(row.reason, heads[row.row - 1]) for row in rejected} <= {("OTHER_KERNEL", 512.0)}
        assert len(rejected) < 0.005 * len(rows)
        assert not rows.l2_warm.any()


def test_marks_of_the_power_table_reject_power_or_row_as_they_say(shared_data: Path) -> None:
    rows, rejected = read_file(shared_data / "aiconfigurator" / "power.csv")
    counts = count_reasons(rejected)
    stated = {"SINGLE_SAMPLE": 1424, "SHORT_WINDOW": 1503, "HISTORY": 193, "UNSET_OPERANDS": 190, "SEQUENCE": 162, "COLD_START": 13}
    assert all(0.95 * count <= counts[reason] <= count for reason, count in stated.items()), "but for rows that are rejected as wholes"
    assert {row.reason for row in rejected if not row.power_only} == {"UNSET_OPERANDS", "HOST_BOUND", "ABOVE_ROOF", "OTHER_KERNEL"}
    powered = int(np.isfinite(rows.power_w).sum())
    assert len(rows) == 10716 - sum(not row.power_only for row in rejected)
    assert 0.3 < rows.at_limit.sum() / powered < 0.5


@pytest.mark.parametrize(
    ("row", "reason"),
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
        (f"{GEMM},1e-6,,,", "ABOVE_ROOF"),
        (f"{GEMM},1e-4,,,MADE_UP_MARK", "MADE_UP_MARK"),
        (f"{GEMM},1e-4,,,=cmd|' /C calc'!A0", "MARKED"),
        ("x" * 5000 + ",linear,a100-sxm-80gb,bf16,1,8,8,8,1e-5,,,", "BAD_TEXT"),
    ],
)
def test_a_bad_row_is_left_out_with_its_reason(read: Reader, row: str, reason: str) -> None:
    good = f"{GEMM},1e-4,,,"
    rows, rejected = read(f"{HEADER}\n{good}\n{row}\n")
    assert rows is not None
    assert len(rows) == 1
    assert [(r.row, r.reason, r.power_only) for r in rejected] == [(2, reason, False)]
    assert len(rejected[0].detail) < 500


@pytest.mark.parametrize(
    ("power", "reason"),
    [
        ("-5", "BAD_POWER"),
        ("inf", "BAD_POWER"),
        ("word", "BAD_POWER"),
        ("300000", "ABOVE_LIMIT"),
        ("2", "BAD_POWER"),
    ],
)
def test_a_bad_power_is_left_out_and_the_latency_kept(read: Reader, power: str, reason: str) -> None:
    rows, rejected = read(f"{HEADER}\n{GEMM},1e-4,{power},400,\n")
    assert rows is not None
    assert np.isnan(rows.power_w[0])
    assert [(r.reason, r.power_only) for r in rejected] == [(reason, True)]


def test_power_at_the_limit_is_kept_as_a_lower_bound(read: Reader) -> None:
    rows, rejected = read(f"{HEADER}\n{GEMM},1e-4,390,400,OK\n{GEMM},1.1e-4,300,400,OK\n")
    assert rows is not None
    assert rejected == []
    assert rows.at_limit.tolist() == [True, False]


def test_equal_rows_count_once_and_repeated_measurements_stay(read: Reader) -> None:
    rows, rejected = read(f"{HEADER}\n{GEMM},1e-4,,,\n{GEMM},1e-4,,,\n{GEMM},1.01e-4,,,\n")
    assert rows is not None
    assert len(rows) == 2
    assert count_reasons(rejected) == {"DUPLICATE": 1}


def test_milliseconds_in_a_column_of_seconds_are_refused(read: Reader) -> None:
    lines = "\n".join(f"gemm,linear,a100-sxm-80gb,bf16,1,{128 * i},4096,4096,{0.05 * i},,," for i in range(1, 12))
    with pytest.raises(InputError, match="seconds"):
        read(f"{HEADER}\n{lines}\n")


def test_a_table_without_a_needed_column_is_refused(read: Reader) -> None:
    with pytest.raises(InputError, match="'latency_s'"):
        read("family,operator,gpu,precision\ngemm,linear,a10,bf16\n")
    with pytest.raises(InputError, match="--gpu"):
        read("operator,precision,latency_s,m,n,k\nlinear,bf16,1e-3,8,8,8\n")


def test_attention_rows_become_prefill_and_decode(read: Reader) -> None:
    header = "family,operator,gpu,precision,kv_precision,batch,sequence,heads,kv_heads,head_dim,window,is_decode,latency_s"
    prefill_line = "attention,prefill,h200-sxm,bfloat16,fp8,4,128,32,8,64,0,0,1e-3"
    decode_line = "attention,attention,h200-sxm,bfloat16,,4,128,32,,64,,1,1e-3"
    rows, rejected = read(f"{header}\n{prefill_line}\n{decode_line}\n")
    assert rows is not None
    assert rejected == []
    prefill, decode = rows.row_operators()
    assert (prefill["queries"], prefill["context"], prefill["causal"], prefill.precision_kv) == (128, 128, 1, "fp8")
    assert (decode.operator, decode["queries"], decode["context"], decode["kv_heads"]) == ("decode", 1, 128, 32)
    assert decode.precision_kv == "bf16"


def test_vector_rows_count_the_tensors_they_read(read: Reader) -> None:
    header = "family,operator,gpu,precision,rows,dim,latency_s"
    kinds = ("elementwise,add", "elementwise,gelu", "layernorm,ln")
    rows, _ = read("\n".join([header, *(f"{kind},a10,fp32,10,20,1e-3" for kind in kinds)]) + "\n")
    assert rows is not None
    add, gelu, norm = rows.row_operators()
    assert (add["elements"], add["reads"], gelu["reads"]) == (200, 400, 200)
    assert (norm.family, norm.operator, norm["rows"], norm["dim"]) == ("norm", "layernorm", 10, 20)


@pytest.mark.parametrize(
    ("name", "shape", "grid", "expected"),
    [
        ("ampere_sgemm_32x128_tn", (1, 58, 141), (5, 1, 1), (128, 32, 1)),  # 5 blocks along the 141 outputs
        ("ampere_sgemm_32x32_sliced1x4_tn", (1, 126, 72), (3, 4, 1), (32, 32, 1)),
        ("volta_sgemm_128x64_tn", (1, 64, 128), (1, 1, 5), (64, 128, 5)),
        ("ampere_sgemm_128x128_nn", (154, 391, 340), (3, 4, 154), (128, 128, 1)),
        ("sm90_xmma_gemm_f32f32_128x64x8_stage3", (1, 1024, 1024), (8, 16, 1), (128, 64, 1)),
    ],
)
def test_tiles_come_from_kernel_names_and_agree_with_the_grid(
    name: str, shape: tuple[float, float, float], grid: tuple[float, float, float], expected: tuple[float, float, float]
) -> None:
    tile = tile_from_name(name, *shape, grid)
    assert (tile.tile_m, tile.tile_n, tile.split_k) == expected


def test_names_without_a_tile_say_nothing() -> None:
    assert np.isnan(tile_from_name("void gemv2T_kernel_val<int>", 1, 8, 8, (1, 1, 1)).tile_m)


def test_the_roof_counts_only_what_binds_whatever_the_cache_holds(read: Reader) -> None:
    rows, _ = read(f"{HEADER}\ngemm,linear,a100-sxm-80gb,bf16,1,1,4096,4096,1e-4,,,\n")
    assert rows is not None
    gpu = load_gpu("a100-sxm-80gb")
    work = minimal_work(rows.operators, gpu)
    weights_s = 4096 * 4096 * 2 / gpu.dram_bytes_per_s
    cold, warm = (float(roof_seconds(work, gpu, np.array([np.nan]), np.array([state]))[0]) for state in (True, False))
    assert cold == pytest.approx(weights_s)
    assert warm < cold / 2

"""Decode rows of a kernel that is no fused one are told from slow rows of a fused one."""

from pathlib import Path

import numpy as np

from estimator.specifications import load_gpu
from estimator.workload import Operator, make_operator
from fitter.rows.rejected import count_reasons
from fitter.rows.screening import other_kernel_rows
from fitter.rows.selection import read_selection

GPU = load_gpu("h200-sxm")


def decode(batch: float, context: float) -> Operator:
    return make_operator(
        "attention", "decode", "bf16", batch=batch, queries=1, context=context, heads=32, kv_heads=4, head_dim=128, window=0, causal=0
    )


def test_a_row_ten_times_slower_than_its_collection_is_another_kernel() -> None:
    operators = [decode(16.0 * (1 + i % 8), 1024.0 * (1 + i % 5)) for i in range(40)]
    unknown = np.full(40, np.nan)
    latency = np.full(40, 60e-6)
    latency[7] = 5e-3
    assert np.flatnonzero(other_kernel_rows(operators, GPU, latency, unknown)).tolist() == [7]


def test_where_all_rows_are_slow_none_stands_out() -> None:
    operators = [decode(16.0 * (1 + i % 8), 1024.0) for i in range(40)]
    assert not other_kernel_rows(operators, GPU, np.full(40, 5e-3), np.full(40, np.nan)).any()


def test_other_operators_are_left_alone() -> None:
    products = [make_operator("gemm", "linear", "bf16", batch=1, m=64, n=64, k=64)] * 10
    assert not other_kernel_rows(products, GPU, np.full(10, 1.0), np.full(10, np.nan)).any()


def test_decode_rows_of_many_query_heads_a_key_head_are_named_on_gb200(shared_data: Path) -> None:
    selection = read_selection([shared_data / "aiconfigurator" / "power.csv"], "gb200")
    assert selection.kernels is not None
    left = [o for o in selection.kernels.row_operators() if o.operator == "decode" and o.family == "attention"]
    wide = [o for o in left if o["heads"] / o["kv_heads"] > 32]
    assert count_reasons(selection.rejected)["OTHER_KERNEL"] > 400
    assert len(wide) < 0.2 * len(left)

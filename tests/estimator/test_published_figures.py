"""The tables of published figures can be read, and every row makes a kernel or a load."""

import pytest

from benchmarks.published import Compared, kernel_of, kernels, lines, near, rows_of, scored, seconds_of
from estimator import estimate, load_gpu


@pytest.mark.parametrize("table", ["kernels", "served"])
def test_every_row_has_a_value_a_gpu_and_a_source(table):
    rows = rows_of(table)
    assert len(rows) > 80
    for row in rows:
        assert None not in row
        assert float(row["value"]) > 0.0
        assert load_gpu(row["gpu"]).name == row["gpu"]
        assert row["source"].startswith(("github.com/", "arxiv.org/abs/", "docs.vultr.com/", "gist.github.com/", "buildkite.com/"))
    assert len({tuple(row.items()) for row in rows}) == len(rows)


def test_every_kernel_is_one_and_takes_less_than_a_second():
    for row in rows_of("kernels"):
        assert kernel_of(row).operators[0].family == row["family"]
        assert "W@" in row["unit"] or 1e-6 < seconds_of(row) < 1.0
        assert row["load"] in ("", "burst", "sustained")


def test_intervals_of_served_models_hold_in_other_laboratories():
    *_, all_rows = lines(("served",))
    assert all_rows["rows"] == 404
    assert all_rows["inside"] > 85.0  # 86 by the intervals of other laboratories
    assert all_rows["error"] < 13.0


@pytest.mark.parametrize(
    "family, shape, value, unit, seconds",
    [
        ("gemm", "batch=1 m=1000 n=1000 k=1000", "2", "TFLOP/s", 1e-3),
        ("attention", "batch=1 queries=1000 context=1000 heads=1 head_dim=500 causal=1", "1", "TFLOP/s", 1e-3),
        ("communication", "num_gpus=2 message_bytes=1e9", "1", "busGB/s", 1.0),
    ],
)
def test_rates_become_times(family, shape, value, unit, seconds):
    assert seconds_of({"family": family, "shape": shape, "value": value, "unit": unit}) == pytest.approx(seconds)


def test_a_line_has_the_mean_of_ratios_and_the_worst_row():
    line = scored("all", [Compared("a", "fast", 0.5, False), Compared("a", "even", 1.0, True), Compared("a", "slow", 2.5, True)])
    assert line["mean"] == pytest.approx(1.25 ** (1 / 3))
    assert line["error"] == pytest.approx(100.0 * 2.0 / 3.0)
    assert line["inside"] == pytest.approx(200.0 / 3.0)
    assert line["worst"] == "2.50 slow"


def test_long_products_of_boards_that_no_choice_has_seen_run_at_their_limit_as_published():
    blind = ("rtx-pro-6000", "rtx-6000-ada", "rtx-a6000")
    errors = [
        abs(one.ratio - 1.0)
        for row, one in zip(rows_of("kernels"), kernels(), strict=True)
        if row["gpu"] in blind and (row["load"], row["unit"], row["operator"]) == ("sustained", "TFLOP/s", "linear")
    ]
    assert len(errors) == 10
    assert sum(errors) / len(errors) < 0.12  # 0.093; 0.143 with the L40S at the voltage of an RTX 6000 Ada at rest


@pytest.mark.parametrize("precision, seconds", [("fp32", 205e-6), ("fp16", 174e-6), ("bf16", 174e-6)])
def test_a_group_norm_waits_for_one_block_a_group(precision, seconds):
    """FlagPerf, A100-SXM-40: 20 x 6 x 65536 in groups of two channels; as a plain mean the statistics would take a fifth."""
    bundle, gpu = near("a100-sxm-40gb", (precision,))
    kinds = {"moments": ("reduction", 60, 131072), "batchnorm": ("norm", 20 * 65536, 6)}
    parts = [
        kernel_of(
            {"kernel": name, "family": family, "operator": name, "precision": precision, "shape": f"rows={rows} dim={dim}", "library": ""}
        )
        for name, (family, rows, dim) in kinds.items()
    ]
    found = sum(estimate(part, bundle, gpu=gpu, host_launch_s=0.0)[0].latency_s for part in parts)
    assert found == pytest.approx(seconds, rel=0.2)

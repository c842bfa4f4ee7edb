"""From rows of kernels to groups, residual tiers and intervals."""

from dataclasses import replace

import numpy as np
import pytest

from estimator import load_gpu, make_operator
from estimator.engine.kernel_table import kernel_times
from estimator.model.coefficients import longest_prefix
from estimator.model.lowering import KnownTiles
from fitter.bundle.calibration import calibrate
from fitter.latency.groups import fit_kernel_groups
from fitter.latency.intervals import FOLDS, folds_of
from fitter.latency.residual_tier import shape_errors
from fitter.latency.section import MOST_FITTED
from fitter.rows.columns import Selection
from tests.estimator.synthetic import attention, matmul
from tests.fitter.measured import PLANTED, coefficients, kernel_rows, various_operators

COUNT = 240


@pytest.fixture(scope="module")
def rows():
    """Kernels of three families with an error that the equations lack: it drifts with the shape."""
    exact = kernel_rows(PLANTED, various_operators(COUNT), noise=0.01)
    drift = np.array([0.15 * np.sin(np.log2(operator.shape[-1])) for operator in exact.row_operators()])
    return replace(exact, latency_s=exact.latency_s * np.exp(drift))


def test_a_failed_measurement_is_named_and_kept_out_of_the_residuals(rows):
    spoilt = rows.latency_s.copy()
    spoilt[5] *= 40
    found = fit_kernel_groups(replace(rows, latency_s=spoilt), PLANTED.gpu, seed=0)
    assert [(item.row, item.reason) for item in found.rejected] == [(int(rows.row[5]), "OUTLIER")]


@pytest.mark.parametrize("fewer", ["vllm", ""])
def test_each_library_has_its_own_times_and_the_one_with_the_most_rows_answers_for_those_without(rows, fewer):
    some = rows.select(np.array([operator.family == "gemm" for operator in rows.row_operators()]))
    by = np.where(np.arange(len(some)) % 3 == 0, fewer, "trtllm")
    operators = tuple(replace(one, library=str(name)) for one, name in zip(some.row_operators(), by, strict=True))
    slower = some.latency_s * np.where(by == fewer, 2.0, 1.0)
    mixed = replace(some, operators=operators, operator_index=np.arange(len(some)), latency_s=slower)
    found = fit_kernel_groups(mixed, PLANTED.gpu, seed=0, refine=False)
    seconds = {}
    for library in ("trtllm", "vllm", "sglang", ""):
        asked = [replace(operator, library=library) for operator in operators]
        times = kernel_times(asked, PLANTED.gpu, coefficients(found), sm_clock_mhz=mixed.sm_clock_mhz, warm=mixed.l2_warm)
        seconds[library] = times.equations_s
    assert np.median(seconds[fewer] / seconds["trtllm"]) == pytest.approx(2.0, rel=0.1)
    for library in {"sglang", "vllm", ""} - {fewer}:
        np.testing.assert_array_equal(seconds[library], seconds["trtllm"])


@pytest.mark.parametrize(
    "gpu, libraries, own",
    [
        ("h100-sxm", ("trtllm",), {"pytorch", "flash-attention"}),  # kernels of serving libraries have other blocks there
        ("h100-sxm", ("trtllm", ""), {"flash-attention"}),
        ("h100-sxm", ("",), {"flash-attention"}),
        ("h100-sxm", ("flash-attention",), {"pytorch"}),
        ("a100-pcie-40gb", ("trtllm",), set()),
    ],
)
def test_attention_of_the_framework_has_its_priors_where_other_kernels_alone_were_measured(gpu, libraries, own):
    operators = [
        attention(1 if kind == "decode" else 2048, kind=kind, library=library, batch=2**i, context=2048, head_dim=128)
        for library in libraries
        for kind in ("prefill", "decode")
        for i in range(6)
    ]
    spec = load_gpu(gpu)
    rows = kernel_rows(replace(PLANTED, gpu=spec), operators)
    bundle = calibrate(Selection(kernels=rows), gpu=spec, holdout=0.0).bundle
    found = {name: group for name, group in bundle.groups.items() if name.startswith("attention") and "@" in name and not group.rows}
    assert set(found) == {f"attention.{kind}@{word}" for word in own for kind in ("prefill", "decode")}
    prefill = {word: bundle.groups[f"attention.prefill@{word}"].coefficients for word in own}
    assert len(prefill) < 2 or prefill["pytorch"]["exponent"] > prefill["flash-attention"]["exponent"]  # phases of cuDNN's overlap


@pytest.mark.parametrize(
    "key, known, found",
    [
        ("gemm.linear.fp8@vllm", ("gemm", "gemm.linear.fp8"), "gemm.linear.fp8"),
        ("gemm.linear.fp8@vllm", ("gemm@vllm", "gemm.linear.fp8"), "gemm@vllm"),
        ("attention.prefill.bf16.d64@vllm", ("attention.prefill.bf16@vllm", "attention.prefill.bf16.d64"), "attention.prefill.bf16@vllm"),
        ("gemm.linear.fp8", ("gemm.linear.fp8@vllm",), None),
        ("attention.decode.fp16.fp16.d64", ("attention", "attention.decode.bf16.bf16"), "attention.decode.bf16.bf16"),
        ("gemm.linear.bf16", ("gemm", "gemm.linear.fp16", "gemm.linear.bf16"), "gemm.linear.bf16"),
        ("gemm.linear.fp16@vllm", ("gemm.linear.fp16", "gemm.linear.bf16@vllm"), "gemm.linear.bf16@vllm"),
    ],
)
def test_a_library_without_its_own_group_has_the_one_of_all_and_16_bits_are_alike(key, known, found):
    assert longest_prefix(key, known) == found


@pytest.mark.parametrize("heads", [(8,), (8, 16), (4, 8, 16, 32, 64)], ids=len)
def test_rows_of_one_shape_and_of_one_site_are_left_out_together_however_few_sites(heads):
    operators = [
        make_operator("mla", "mla_decode", "bf16", batch=1, queries=1, context=64.0 * step, heads=count)
        for count in heads
        for step in range(1, 9)
    ]
    fold, again = np.split(folds_of(shape_errors(operators * 2), seed=0), 2)
    np.testing.assert_array_equal(fold, again)
    site = np.repeat(np.arange(len(heads)), 8)
    parts = [len(np.unique(fold[site == number])) for number in range(len(heads))]
    assert parts == [1] * len(heads) if len(heads) > 1 else parts[0] > 1
    assert len(np.unique(fold)) == min(FOLDS, len(heads)) or len(heads) == 1


def test_rows_left_out_of_a_large_table_do_not_tell_their_own_times():
    """Beside the fit of all rows only trees are fitted anew; those of all rows hold the rows that were left out."""
    elements = np.round(np.exp2(np.random.default_rng(0).uniform(22.0, 30.0, 5 * MOST_FITTED // 4)))
    rows = kernel_rows(PLANTED, [make_operator("elementwise", "gelu", "bf16", elements=size, reads=size) for size in elements])
    held = (elements > 2.0**25) & (elements < 2.0**26)
    found = {}
    for factor in (1.0, 1.3):
        whole = fit_kernel_groups(replace(rows, latency_s=rows.latency_s * np.where(held, factor, 1.0)), PLANTED.gpu, seed=0)
        rest = fit_kernel_groups(rows.select(~held), PLANTED.gpu, seed=0, whole=whole)
        asked, how = rows.select(held).row_operators(), {"sm_clock_mhz": rows.sm_clock_mhz[held], "warm": rows.l2_warm[held]}
        found[factor] = [
            kernel_times(asked, PLANTED.gpu, coefficients(one), residuals=one.residuals, **how).latency_s for one in (whole, rest)
        ]
    of_all, of_rest = np.log(np.array(found[1.3]) / found[1.0])
    assert of_all.mean() > 0.2
    assert np.abs(of_rest).mean() < 0.03


def test_a_large_class_at_one_site_has_a_tier_whichever_fold_that_is_in():
    """Heads are left out together: of two folds that tell the errors of thousands of rows a class may be in neither."""
    few = [attention(1, kind="decode", heads=heads, batch=2**i, context=1024, head_dim=64) for heads in (8, 16, 24) for i in range(6)]
    sizes = [(batch, 64 * step) for batch in range(1, 65) for step in range(65, 129)]
    many = [attention(1, kind="decode", heads=32, batch=batch, context=context, head_dim=128) for batch, context in sizes]
    rows = kernel_rows(PLANTED, [*few, *many])
    for seed in range(4):
        tiers = fit_kernel_groups(rows, PLANTED.gpu, seed=seed).residuals
        assert any(len(tier["left_out"]) > 500 for tier in tiers.values()), seed


def test_known_tiles_are_predicted_with_what_known_tiles_left_over():
    """Tiles that a tree cannot guess: the shape does not tell them, the kernel's name does."""
    rng = np.random.default_rng(0)
    operators = [matmul(m, n, k, "fp32") for m, n, k in 64.0 * rng.integers(4, 64, (300, 3))]
    tile = np.where(rng.random(300) < 0.5, 64.0, 128.0)
    known, exact = KnownTiles(tile_m=tile, tile_n=tile, split=np.ones(300)), kernel_rows(PLANTED, operators)

    def times(groups, **how):
        return kernel_times(operators, PLANTED.gpu, coefficients(groups), sm_clock_mhz=exact.sm_clock_mhz, warm=exact.l2_warm, **how)

    drift = np.array([0.1 * np.sin(np.log2(operator["k"])) for operator in operators])
    seconds = times(PLANTED, known=known).equations_s * np.exp(drift)
    found = fit_kernel_groups(replace(exact, latency_s=seconds, tile_m=tile, tile_n=tile, split_k=np.ones(300)), PLANTED.gpu, seed=0)
    learnt = {"tile_predictors": found.tile_predictors, "residuals": found.residuals}
    told, guessed = times(found, known=known, **learnt), times(found, **learnt)
    refined, bare, blind = (np.abs(np.log(one / seconds)).mean() for one in (told.latency_s, told.equations_s, guessed.latency_s))
    assert refined < min(0.5 * bare, blind)
    assert np.nanmedian(told.log_std) < np.nanmedian(guessed.log_std)

"""Operators that no board can hold are said to be so, and nothing else is."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator import (
    Asked,
    Footprint,
    Sizes,
    Variant,
    Workload,
    WorkloadError,
    best,
    estimate,
    load_bundle,
    sweep,
    with_precision,
    with_sizes,
)
from estimator.uncertainty.validity import GIB
from estimator.vocabulary.work import operator_work
from tests.estimator.synthetic import attention, matmul, workload_of

A100 = load_bundle("a100-pcie-40gb-eager")


def told(workload, **settings):
    return [line for line in estimate(workload, A100, **settings)[0].warnings if "GiB" in line]


@given(st.integers(1, 500_000))
def test_an_operator_is_warned_about_where_its_tensors_exceed_the_memory_and_nowhere_else(rows):
    """C of rows × 2^17 in bf16 takes a quarter of a MiB a row, and A 2 KiB a row."""
    product = matmul(rows, 2**17, 1024)
    work = operator_work(product)
    assert len(told(workload_of(product))) == (work.read_byte + work.write_byte > A100.gpu.dram_bytes)


LAYERS = 32.0
WEIGHT = matmul(16, 28672, 4096)


def decoding(batch, *, window=0):
    """A decoding step with a cache of `batch` · 2048 tokens in every layer."""
    cached = attention(1, kind="decode", batch=batch, context=2048, heads=32, head_dim=128, window=window)
    return Workload(name="decoding", operators=(WEIGHT, cached), counts=(LAYERS, LAYERS))


def test_what_does_not_fit_is_the_first_warning_of_many_workloads():
    points = sweep([workload_of(matmul(1, 2**20, 8), name="small"), decoding(4000)], A100, sm_clock_mhz=210.0)
    (workload, line), *others = points.warnings
    assert (workload, "does not fit" in line) == ("decoding", True)
    assert {workload for workload, _ in others} == {"small", "decoding"}


@given(st.integers(1, 4000), st.sampled_from([0, 128]))
def test_weights_and_caches_of_all_layers_must_fit_together(batch, window):
    kept = LAYERS * (28672 * 4096 * 2 + 2 * batch * (window or 2048) * 8 * 128 * 2)
    passing = max(16 * (28672 + 4096), batch * 2 * 32 * 128) * 2
    least = kept + passing
    lines = told(decoding(batch, window=window))
    assert len(lines) == (least > A100.gpu.dram_bytes)
    assert all(f"at least {least / GIB:.4g} GiB" in line and "does not fit" in line for line in lines)


def test_the_best_batch_is_one_that_fits_where_any_does():
    def least(*batches):
        asked = [Asked(variant=Variant(workload=decoding(batch), batch=batch), bundle=A100, sm_clock_mhz=(900.0,)) for batch in batches]
        answer = best(asked)
        return answer.points.cases[answer.points.case[answer.index]].batch, answer.fits.tolist()

    assert least(16, 64, 256, 1024) == (64, [True, True, False, False])
    assert least(256, 1024) == (1024, [True, True]), "where none fits, the warning says so"


GIVEN = Footprint(weights_byte=13e9, optimizer_byte=26e9, cache_byte=1e9, passing_byte=2e9)


def traced(footprint):
    return replace(decoding(1), footprint=footprint)


@given(*[st.floats(0.0, 1e11)] * 4)
def test_a_known_footprint_decides_alone_what_fits(weights, optimizer, cache, passing):
    known = Footprint(weights_byte=weights, optimizer_byte=optimizer, cache_byte=cache, passing_byte=passing)
    total = weights + optimizer + cache + passing
    lines = told(traced(known))
    assert len(lines) == (total > A100.gpu.dram_bytes)
    assert all(f"at least {total / GIB:.4g} GiB" in line for line in lines)


@pytest.mark.parametrize("new, ratio", [("fp32", 2.0), ("fp16", 1.0), ("tf32", 2.0), ("fp8", 0.5)])
def test_a_rewritten_workload_holds_at_least_what_its_new_precision_needs(new, ratio):
    optimizer_byte = 0.0 if new == "fp8" else 26e9
    held = with_precision(traced(replace(GIVEN, optimizer_byte=optimizer_byte)), new).footprint
    assert (held.weights_byte, held.optimizer_byte) == (13e9 * ratio, optimizer_byte * ratio)
    assert held.cache_byte == (1e9 if new == "fp8" else 1e9 * ratio)
    assert held.passing_byte == 2e9 * min(ratio, 1.0)
    with pytest.raises(WorkloadError, match="a training step in int8 is not modelled; choose one of fp64, fp32, tf32, bf16, fp16$"):
        with_precision(traced(GIVEN), "int8")


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 4096), st.sampled_from([0, 512]))
def test_a_rescaled_workload_keeps_its_weights_and_grows_its_caches(before, after, length, window):
    held = replace(GIVEN, optimizer_byte=0.0)
    workload = replace(
        decoding(before, window=window), footprint=held, operators=decoding(before, window=window).operators[1:], counts=(1.0,)
    )
    rescaled = with_sizes(workload, Sizes(batch=before, sequence=2048), Sizes(batch=after, sequence=length)).footprint
    assert rescaled.weights_byte == 13e9
    more, longer = after / before, (length - 1) / 2047
    assert rescaled.cache_byte == pytest.approx(1e9 * more * (min(longer, 1.0) if window else longer))
    assert rescaled.passing_byte <= 2e9

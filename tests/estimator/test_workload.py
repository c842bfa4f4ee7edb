"""Operators and workloads: what is checked when they are made, how they merge, what they move and compute."""

import pytest

from estimator import WorkloadError, make_operator
from estimator.vocabulary.work import operator_work
from tests.estimator.synthetic import attention, matmul
from tests.estimator.workload_files import MADE, sizes

IMAGE = {
    "batch": 2, "channels": 6, "height": 9, "width": 7, "filters": 4, "kernel_h": 3, "kernel_w": 3, "stride": 2, "padding": 1, "groups": 2,
}  # fmt: skip
HEADS = {"batch": 2, "queries": 64, "context": 64, "heads": 8, "kv_heads": 2, "head_dim": 32, "window": 0, "causal": 1}


def test_an_operator_of_every_kind_has_the_sizes_that_it_was_given():
    for operator in MADE:
        shape = sizes(operator.family)
        assert operator.named_shape() == shape
        assert [operator[name] for name in shape] == [*shape.values()]


@pytest.mark.parametrize("value", [-1, 0, float("nan"), float("inf"), 1e30, "4", True, None, [4]])
def test_a_dimension_that_is_no_size_is_refused(value):
    with pytest.raises(WorkloadError, match=r"^gemm.m (= |must be )"):
        matmul(value, 1, 1)


@pytest.mark.parametrize(
    "names, message",
    [
        ("gemn linear bf16", "family = 'gemn' is unknown; known: gemm"),
        ("gemm conv bf16", "gemm.operator = 'conv' is unknown; known: linear, bmm"),
        ("gemm linear fp17", "gemm.precision = 'fp17' is not a known precision"),
        ("norm layernorm bf16", "norm has an unknown field 'batch'; known: family"),
    ],
)
def test_names_that_do_not_exist_are_refused_with_those_that_do(names, message):
    with pytest.raises(WorkloadError, match=message):
        make_operator(*names.split(), batch=1, m=4, n=5, k=6)


@pytest.mark.parametrize(
    "family, name, shape, message",
    [
        ("conv", "conv2d", IMAGE | {"kernel_h": 12}, "kernel 12x3 is larger than the padded image"),
        ("conv", "conv2d", IMAGE | {"groups": 4}, "groups = 4 must divide channels = 6"),
        ("attention", "prefill", HEADS | {"library": "nccl"}, "library = 'nccl' has kernels of communication alone"),
        ("conv", "conv2d", IMAGE | {"library": "flash-attention"}, "has kernels of attention alone; leave it out"),
        ("attention", "prefill", HEADS | {"kv_heads": 3}, "kv_heads = 3 must divide heads = 8"),
        ("attention", "prefill", HEADS | {"causal": 2}, "causal = 2.0 must be 0 or 1"),
    ],
)
def test_a_geometry_that_cannot_be_is_refused(family, name, shape, message):
    with pytest.raises(WorkloadError, match=message):
        make_operator(family, name, "bf16", **shape)


def test_work_of_a_grouped_convolution_counts_only_its_own_channels():
    dense = make_operator("conv", "conv2d", "bf16", **IMAGE | {"groups": 1})
    grouped = make_operator("conv", "conv2d", "bf16", **IMAGE)
    assert operator_work(dense).flop == 2 * 2 * 4 * 5 * 4 * 6 * 9
    assert operator_work(grouped).flop == operator_work(dense).flop / 2


@pytest.mark.parametrize("queries, context", [(5, 5), (3, 8), (1, 7)])
def test_causal_attention_computes_the_pairs_that_a_triangle_leaves(queries, context):
    shape = HEADS | {"queries": queries, "context": context}
    full = operator_work(attention(**shape | {"causal": 0}))
    causal = operator_work(attention(**shape))
    pairs = sum(context - queries + i + 1 for i in range(queries))
    assert full.flop == 4 * 2 * 8 * 32 * queries * context
    assert causal.flop == 4 * 2 * 8 * 32 * pairs
    assert causal.read_byte == full.read_byte == 2 * (2 * queries * 8 * 32 + 2 * 2 * context * 2 * 32)


@pytest.mark.parametrize("queries, window", [(8, 3), (1, 3), (3, 2), (2, 8), (1, 20)])
def test_windowed_attention_reads_the_keys_that_some_query_sees(queries, window):
    shape = HEADS | {"queries": queries, "context": 8, "window": window}
    places = [8 - queries + i for i in range(queries)]
    seen = {key for place in places for key in range(max(0, place - window + 1), place + 1)}
    read = operator_work(attention(**shape)).read_byte
    assert read == 2 * (2 * queries * 8 * 32 + 2 * 2 * len(seen) * 2 * 32)

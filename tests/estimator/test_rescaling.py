"""A workload at other sizes: exact where its growth can be told, refused by name where it cannot."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator import Sizes, WorkloadError, read_workload, variants, with_attention, with_sizes
from estimator.transforms.rescaling import sizes_in_name
from examples.gpt2_prefill import gpt2_prefill
from tests.estimator.traced import counted
from tests.estimator.workload_files import recorded


def contents(workload):
    return dict(counted(workload))


def rescaled_or_none(workload, at, to):
    """The workload at other sizes, None where it is refused for operators whose growth cannot be told."""
    try:
        return with_sizes(workload, at, to)
    except WorkloadError as error:
        if "cannot be rescaled from" not in str(error):
            raise
        return None


@given(batch=st.integers(2, 16), length=st.integers(2, 2048), to_batch=st.integers(2, 16), to_length=st.integers(2, 2048))
def test_a_workload_is_rescaled_right_or_not_at_all(batch, length, to_batch, to_length):
    sizes = Sizes(batch=batch, sequence=length), Sizes(batch=to_batch, sequence=to_length)
    rescaled = rescaled_or_none(gpt2_prefill(batch, length), *sizes)
    assert rescaled is None or contents(rescaled) == contents(gpt2_prefill(to_batch, to_length))


@pytest.mark.parametrize(
    "source, target",
    [
        ("gpt2model_gpt2_pbf16_b8_s512_modeprefill", "gpt2model_gpt2_pbf16_b32_s1024_modeprefill"),
        ("gpt2model_gpt2_pbf16_b1_s128_modeprefill", "gpt2model_gpt2_pbf16_b1_s1024_modeprefill"),
        ("optmodel_opt-1p3b_pbf16_b16_s128_modeprefill", "optmodel_opt-1p3b_pbf16_b4_s512_modeprefill"),
        ("bertmodel_large_pbf16_b16_s512_modeprefill", "bertmodel_large_pbf16_b32_s128_modeprefill"),
        ("bertmodel_large_pbf16_b16_s128_modeprefill", "bertmodel_large_pbf16_b32_s128_modeprefill"),
        ("resnet101__pbf16_b8_freq900", "resnet101__pbf16_b64_freq900"),
        ("mobilevitmodel_small_pbf16_b64_freq900", "mobilevitmodel_small_pbf16_b8_freq900"),
    ],
)
def test_a_recorded_list_becomes_the_list_recorded_at_other_sizes_or_is_refused(source, target, shared_data):
    at, to = sizes_in_name(source), sizes_in_name(target)
    files = [recorded(shared_data, name) for name in (source, target)]
    rescaled = rescaled_or_none(files[0], at, to)
    assert (rescaled is None) == (source in REFUSED)
    assert rescaled is None or contents(rescaled) == contents(files[1])


REFUSED = {"bertmodel_large_pbf16_b16_s128_modeprefill", "optmodel_opt-1p3b_pbf16_b16_s128_modeprefill"}
"""2,048 = 16 · 128 and 16,384 = 128²: a tensor of these sizes may be one thing or another."""


def test_the_example_of_decoding_can_be_asked_for_other_batches_and_caches(repository):
    workload = read_workload(repository / "examples" / "llama-8b-decode.json")
    grown = with_sizes(workload, Sizes(batch=16, sequence=2048), Sizes(batch=4, sequence=1000))
    assert {operator["context"] for operator in grown.operators if operator.family == "attention"} == {1000}
    assert {operator["m"] for operator in grown.operators if operator.family == "gemm"} == {4}
    for before, after in zip(workload.operators, grown.operators, strict=True):
        if before.family in ("elementwise", "copy", "norm"):
            assert before.shape[0] == 4.0 * after.shape[0]


@pytest.mark.parametrize(
    "at, to, reason",
    [
        ((8, 333), (0, 333), "batch = 0 lies outside 1 to"),
        ((8, 333), (8, 10**9), "sequence = 1000000000 lies outside 0 to"),
        ((8, 333), (8, 0), "where the workload's own is known"),
        ((8, 333), (1, 333), "cannot be rescaled to 1"),
        ((7, 333), (9, 333), "copy.gather bf16 2045952x2045952 \\(2.04595e\\+06 elements fit no tensor"),
    ],
)
def test_sizes_that_cannot_be_are_refused_in_words(at, to, reason):
    with pytest.raises(WorkloadError, match=reason):
        with_sizes(gpt2_prefill(8, 333), *(Sizes(batch=batch, sequence=sequence) for batch, sequence in (at, to)))


def test_written_out_attention_of_several_sequences_becomes_fused_attention_of_one():
    several, one = (gpt2_prefill(batch, 333) for batch in (8, 1))
    (found,), (own,) = (variants(work, at=Sizes(batch=b, sequence=333), batch=1, attention="flash") for work, b in ((several, 8), (one, 1)))
    assert contents(found.workload) == contents(own.workload)


def test_fused_attention_grows_as_written_out_attention_does():
    few, many = (with_attention(gpt2_prefill(*sizes), "flash") for sizes in ((4, 333), (8, 500)))
    assert contents(with_sizes(few, Sizes(batch=4, sequence=333), Sizes(batch=8, sequence=500))) == contents(many)

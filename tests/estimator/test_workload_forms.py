"""The same model in another form: attention fused or written out, another precision."""

import pytest

from estimator.attention_forms import unfuse_attention
from estimator.errors import WorkloadError
from estimator.formats import read_workload
from estimator.recast import main_precision, with_precision
from estimator.reckoning import operator_work
from estimator.workload import Workload, make_operator

WORKLOADS = "energaizer/workloads"
BLOCKS = {"bertmodel_large": 24, "gpt2model_gpt2": 12, "optmodel_opt-1p3b": 24}


def work_of(workload: Workload, families: set[str]) -> float:
    """Multiply-add work of some families [flop]."""
    pairs = zip(workload.operators, workload.counts, strict=True)
    return sum(count * operator_work(operator).flop for operator, count in pairs if operator.family in families)


def recorded(shared_data, model: str):
    return sorted((shared_data / WORKLOADS).glob(f"{model}_*.json"))


@pytest.mark.parametrize("model", BLOCKS)
def test_fusing_attention_keeps_its_work_and_replaces_every_block(shared_data, model):
    for path in recorded(shared_data, model):
        eager, flash = read_workload(path), read_workload(path, attention="flash")
        fused = [(o, n) for o, n in zip(flash.operators, flash.counts, strict=True) if o.family == "attention"]
        assert [count for _, count in fused] == [BLOCKS[model]]
        assert not any(operator.family == "softmax" or operator.operator == "bmm" for operator in flash.operators)
        if not fused[0][0]["causal"]:
            assert work_of(flash, {"gemm", "attention"}) == pytest.approx(work_of(eager, {"gemm"}))


def test_model_without_attention_is_left_as_it_is(shared_data):
    path = shared_data / WORKLOADS / "resnet101__pbf16_b8_freq900.json"
    assert read_workload(path, attention="flash") == read_workload(path)


def test_causal_mask_is_known_where_the_list_shows_it_and_stated_where_not(shared_data):
    gpt2 = read_workload(recorded(shared_data, "gpt2model_gpt2")[0], attention="flash")
    bert = read_workload(recorded(shared_data, "bertmodel_large")[0], attention="flash")
    assert [o["causal"] for o in gpt2.operators if o.family == "attention"] == [1.0]
    assert [o["causal"] for o in bert.operators if o.family == "attention"] == [0.0]
    assert not any("causal" in warning for warning in gpt2.warnings)
    assert any("without a causal mask" in warning for warning in bert.warnings)


def workload(*operators) -> Workload:
    return Workload(name="w", operators=operators, counts=tuple(float(i + 1) for i in range(len(operators))))


def attention(**changes):
    shape = {"batch": 2, "queries": 128, "context": 512, "heads": 8, "kv_heads": 2, "head_dim": 64, "window": 0, "causal": 0}
    return make_operator("attention", "prefill", "bf16", **{**shape, **changes})


def test_writing_attention_out_keeps_its_work():
    fused = workload(attention())
    written = unfuse_attention(fused)
    assert [operator.operator for operator in written.operators] == ["bmm", "scalar_mul", "softmax", "bmm"]
    assert work_of(written, {"gemm"}) == work_of(fused, {"attention"})


def test_window_limits_the_context_of_attention_written_out():
    assert {o["dim"] for o in unfuse_attention(workload(attention(window=100))).operators if o.family == "softmax"} == {100.0}


def test_precision_changes_where_most_products_are_and_nowhere_else():
    original = workload(
        make_operator("gemm", "linear", "bf16", batch=1, m=8, n=8, k=8),
        make_operator("softmax", "softmax", "fp32", rows=8, dim=8),
        make_operator("elementwise", "typecast", "bf16", elements=64, reads=64, precision_out="fp32"),
        make_operator("elementwise", "typecast", "fp32", elements=64, reads=64, precision_out="bf16"),
    )
    half = with_precision(original, "float16")
    assert [(o.precision, o.precision_out) for o in half.operators] == [("fp16", ""), ("fp32", ""), ("fp16", "fp32"), ("fp32", "fp16")]
    assert half.notes == ("computed in fp16 instead of bf16",)
    single = with_precision(original, "fp32")
    assert [o.operator for o in single.operators] == ["linear", "softmax"]
    assert main_precision(single) == "fp32"
    assert with_precision(original, "bf16") is original


def test_products_leave_cuda_cores_when_their_precision_allows_it():
    single = workload(make_operator("gemm", "linear", "fp32", batch=1, m=8, n=8, k=8, cuda_cores=True))
    assert not with_precision(single, "bf16").operators[0].cuda_cores


def test_unknown_precision_is_refused():
    with pytest.raises(WorkloadError, match="unknown precision 'fp17'"):
        with_precision(workload(attention()), "fp17")

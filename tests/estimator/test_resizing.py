"""Growth told from two traces, stored in a file and followed when it is rescaled; traces are made up, so that nothing needs PyTorch."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.cli import main
from estimator.errors import WorkloadError
from estimator.formats import read_workload, workload_from_text
from estimator.formats.own import own_text
from estimator.forms.rescaling import Sizes, known_sizes, with_sizes
from estimator.forms.rewriting import with_attention, with_precision
from estimator.forms.stored_growth import without_growth
from estimator.forms.variation import variants
from estimator.serve.catalogue import Entry
from estimator.serve.choices import BATCHES, SEQUENCES, workload_document
from estimator.trace import Traced
from estimator.tracing.calls import Call, Tensor
from estimator.tracing.lowering import lower_calls
from estimator.tracing.request import SIZES, TraceRequest
from estimator.tracing.resizing import with_growth
from estimator.workload import Footprint, Growth, Operator, Workload

Calls = Callable[[int, int], list[Call]]
WIDTH, HEADS, DEPTH = 48, 3, 16


def contents(workload: Workload) -> dict[Operator, float]:
    plain = without_growth(workload)
    return dict(zip(plain.operators, plain.counts, strict=True))


def tensor(*shape: int, dtype: str = "bfloat16") -> Tensor:
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size
    return Tensor(shape=shape, strides=tuple(strides), dtype=dtype)


def pointwise(name: str, out: Tensor, *inputs: Tensor) -> Call:
    return Call(name=f"aten.{name}", inputs=tuple((f"x{i}", one) for i, one in enumerate(inputs)), outputs=(out,), pointwise=True)


def layer(batch: int, length: int) -> list[Call]:
    """A bias added to token rows, scores with their mask, softmax, a linear layer, labels moved by one place."""
    rows, scores = tensor(batch * length, WIDTH), tensor(batch, HEADS, length, length)
    return [
        Call(name="aten.mm", inputs=(("self", rows), ("mat2", tensor(WIDTH, WIDTH))), outputs=(rows,)),
        pointwise("add", rows, rows, tensor(WIDTH)),
        pointwise("add", scores, scores, tensor(length, length)),
        Call(name="aten._softmax", inputs=(("self", scores),), outputs=(scores,), numbers=(("dim", -1),)),
        pointwise("relu", tensor(batch, length + 1), tensor(batch, length + 1)),
        pointwise("relu", tensor(WIDTH), tensor(WIDTH)),
    ]


def tracer(calls: Calls, sizes: tuple[str, ...] = SIZES, longest: float = 10**9) -> Callable[[TraceRequest], Traced]:
    def trace(request: TraceRequest) -> Traced:
        if request.sequence > longest:
            raise WorkloadError(f"sequence = {request.sequence} is longer than {longest:g}")
        made = tuple(calls(request.batch, request.sequence))
        lowered = lower_calls(made)
        footprint = Footprint(weights_byte=1e6, passing_byte=2.0 * request.batch * request.sequence)
        kinds = {"operators": lowered.operators, "counts": lowered.counts, "unknown": lowered.unknown}
        workload = Workload(name="made-b1-s1", footprint=footprint, **kinds)  # type: ignore[arg-type]
        return Traced(workload=workload, calls=made, sizes=frozenset(sizes), longest=longest, attention="eager")

    return trace


def told(calls: Calls, batch: int = 4, length: int = 64, **changes: object) -> tuple[Workload, str]:
    trace, request = tracer(calls, **changes), TraceRequest(model="made", batch=batch, sequence=length)  # type: ignore[arg-type]
    return with_growth(request, trace(request), trace)


@given(batch=st.integers(1, 32), length=st.integers(2, 2048), to_batch=st.integers(1, 256), to_length=st.integers(2, 8192))
def test_a_model_whose_sizes_grow_by_laws_becomes_its_trace_at_any_sizes(batch: int, length: int, to_batch: int, to_length: int) -> None:
    workload, reason = told(layer, batch, length)
    assert reason == ""
    there = with_sizes(workload, Sizes(batch=batch, sequence=length), Sizes(batch=to_batch, sequence=to_length))
    seen = tracer(layer)(TraceRequest(model="made", batch=to_batch, sequence=to_length)).workload
    assert contents(there) == contents(seen)
    assert there.footprint is not None
    assert seen.footprint is not None
    assert there.footprint.passing_byte == pytest.approx(seen.footprint.passing_byte)
    assert known_sizes(there) == Sizes(batch=to_batch, sequence=to_length)
    back = with_sizes(there, Sizes(batch=to_batch, sequence=to_length), Sizes(batch=batch, sequence=length))
    assert (back.operators, back.counts, back.resizing) == (workload.operators, workload.counts, workload.resizing)


def test_equal_operators_that_grow_differently_stay_apart() -> None:
    def calls(batch: int, length: int) -> list[Call]:
        return [pointwise("relu", one, one) for one in (tensor(batch, 64), tensor(4, length), tensor(4, length))]

    workload, _ = told(calls)
    assert workload.counts == (1.0, 2.0)
    assert {operator.shape for operator in workload.operators} == {(256.0, 256.0)}
    larger = with_sizes(workload, Sizes(batch=4, sequence=64), Sizes(batch=8, sequence=64 * 3))
    assert [operator["elements"] for operator in larger.operators] == [512.0, 768.0]


def shared_out(batch: int, length: int) -> list[Call]:
    rows = tensor(batch * length, WIDTH)
    return [
        Call(name="aten._grouped_mm", inputs=(("self", rows), ("mat2", tensor(8, WIDTH, WIDTH))), outputs=(rows,)),
        pointwise("relu", rows, rows),
    ]


@given(batch=st.integers(1, 16), length=st.integers(2, 200), to_batch=st.integers(1, 16), to_length=st.integers(2, 200))
def test_rows_shared_out_over_experts_are_rescaled_right_or_not_at_all(batch: int, length: int, to_batch: int, to_length: int) -> None:
    workload, _ = told(shared_out, batch, length)
    if workload.resizing is None:
        return
    try:
        there = with_sizes(workload, Sizes(batch=batch, sequence=length), Sizes(batch=to_batch, sequence=to_length))
    except WorkloadError:
        return
    assert contents(there) == contents(tracer(shared_out)(TraceRequest(model="made", batch=to_batch, sequence=to_length)).workload)


def test_two_traces_that_agree_by_chance_are_no_law() -> None:
    """15 rows are 2 for each of 8 experts, 90 are 12: 6 times as many, as if 15 divided evenly."""
    workload, reason = told(shared_out, 1, 15)
    assert workload.resizing is None
    assert "it grows otherwise at the smallest and at the largest sizes that were tried" in reason


def fixed(_batch: int, _length: int) -> list[Call]:
    return [pointwise("relu", tensor(7), tensor(7))]


def turning(batch: int, length: int) -> list[Call]:
    return [pointwise("relu" if batch < 8 else "exp", tensor(batch, length), tensor(batch, length))]


def stepping(batch: int, length: int) -> list[Call]:
    return [pointwise("relu", tensor(batch, 8), tensor(batch, 8))] * length


def odd(batch: int, length: int) -> list[Call]:
    return [pointwise("relu", tensor(batch * batch, length), tensor(1))]


def foreign(batch: int, length: int) -> list[Call]:
    return [*layer(batch, length), Call(name="lab.fft", inputs=(("self", tensor(batch)),), outputs=(tensor(batch),))]


@pytest.mark.parametrize(
    ("calls", "changes", "expected"),
    [
        (fixed, {}, "nothing grows from batch 4, sequence 64 to batch 8, sequence 192"),
        (turning, {}, "elementwise.relu 256x256 ×1 becomes elementwise.exp 1536x1536 ×1"),
        (stepping, {}, "64 kernels at batch 4, sequence 64, 192 at batch 8, sequence 192"),
        (odd, {}, "elements of elementwise.relu 1024x1 becomes 12288, which is no product of powers"),
        (foreign, {}, "lab.fft is of no known kind"),
        (layer, {"sizes": ()}, "its inputs have no batch and no sequence"),
        (layer, {"length": 4, "longest": 7}, "takes 7 tokens at most, too few for a second trace"),
    ],
)  # fmt: skip
def test_a_model_without_a_law_is_written_as_it_is_and_the_reason_said(calls: Calls, changes: dict[str, object], expected: str) -> None:
    workload, reason = told(calls, **changes)  # type: ignore[arg-type]
    assert workload.resizing is None
    assert all(operator.growth == () for operator in workload.operators)
    assert reason.startswith("the file cannot be rescaled: ")
    assert expected in reason
    assert len(reason.splitlines()) == 1


def two_kinds(batch: int, length: int) -> list[Call]:
    """What one sequence needs is another list than what several need."""
    return layer(batch, length) if batch == 1 else [*layer(batch, length), pointwise("relu", tensor(batch), tensor(batch))]


def test_one_sequence_with_kernels_of_its_own_changes_its_length_alone() -> None:
    workload, reason = told(two_kinds, 1)
    assert reason.startswith("only the sequence of the file can be changed: 6 kernels at batch 1, sequence 64, 7 at batch 2")
    assert reason.endswith("; a --batch of 2 or more may help")
    assert contents(with_sizes(workload, Sizes(batch=1, sequence=64), Sizes(batch=1, sequence=500))) == contents(
        tracer(two_kinds)(TraceRequest(model="made", batch=1, sequence=500)).workload
    )
    with pytest.raises(WorkloadError, match="its growth was seen from batch 1 to 1, so that it is not rescaled to batch 2"):
        with_sizes(workload, Sizes(batch=1, sequence=64), Sizes(batch=2, sequence=64))
    several, reason = told(two_kinds, 4)
    assert reason == ""
    with pytest.raises(WorkloadError, match="seen from batch 2 to 256, so that it is not rescaled to batch 1"):
        with_sizes(several, Sizes(batch=4, sequence=64), Sizes(batch=1, sequence=64))


def test_a_model_of_few_positions_is_told_from_shorter_sequences_and_not_rescaled_beyond_them() -> None:
    workload, reason = told(layer, longest=100)
    assert (reason, workload.resizing and workload.resizing.sequence_most) == ("", 100)
    with pytest.raises(WorkloadError, match="sequence 2 to 100, so that it is not rescaled to sequence 101"):
        with_sizes(workload, Sizes(batch=4, sequence=64), Sizes(batch=4, sequence=101))


# Files ----------------------------------------------------------------------------------------------------------------


def test_growth_is_read_as_it_was_written(tmp_path: Path, repository: Path) -> None:
    workload, _ = told(layer)
    assert workload.resizing is not None
    assert workload.resizing.passing == Growth(1, 1)
    document = json.loads(own_text(workload))
    assert document["sizes"] == {
        "batch": 4, "batch_least": 1, "batch_most": 256, "sequence": 64, "sequence_least": 2, "sequence_most": 8192, "passing": [1, 1],
    }  # fmt: skip
    assert document["operators"][1]["growth"] == {"elements": [1, 1], "reads": [[48, 0, 0], [12288, 1, 1]]}
    assert workload_from_text(own_text(workload), tmp_path / "w.json") == workload
    schema = json.loads((repository / "estimator/schema/workload-1.json").read_text())
    assert jsonschema.Draft202012Validator(schema).is_valid(document)
    for wrong in ({"elements": [2, 0]}, {"elements": [1]}, {"reads": [[0, 1, 1]]}, {"reads": []}, {"reads": [[4, 1]]}):
        assert not jsonschema.Draft202012Validator(schema).is_valid(
            document | {"operators": [document["operators"][1] | {"growth": wrong}]}
        )


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("sizes",), [4], "sizes must be an object"),
        (("sizes", "batch"), 0, "sizes.batch = 0 must be a whole number from 1"),
        (("sizes", "batch"), True, "sizes.batch = true must be"),
        (("sizes", "batch_least"), 5, "sizes.batch = 4 must be from batch_least = 5 to batch_most = 256"),
        (("sizes", "sequence_least"), 0, "sizes.sequence = 64 must be from sequence_least = 0"),
        (("sizes", "tokens"), 4, "sizes: unknown field 'tokens'"),
        (("sizes", "passing"), [2, 0], r"sizes.passing = \[2, 0\] must be the exponents"),
        (("operators", 1, "growth"), [1, 1], "growth must be an object"),
        (("operators", 1, "growth"), {"rows": [1, 1]}, "growth of 'rows', which is no size of it; sizes: elements, reads"),
        (("operators", 1, "growth"), {"elements": [1, 3]}, "must be the exponents"),
        (("operators", 1, "growth"), {"elements": [True, 1]}, "must be the exponents"),
        (("operators", 1, "growth"), {"elements": [[5, 1, 1]]}, "its terms add up to 5, the size is 12288"),
        (("operators", 1, "growth"), {"elements": [[-1, 1, 1], [12289, 0, 0]]}, "must be a size above 0 and two exponents"),
        (("operators", 1, "growth"), {"elements": []}, "must be the exponents"),
    ],
)
def test_a_wrong_growth_is_one_line_that_names_the_fault(place: tuple[str | int, ...], value: object, message: str) -> None:
    document = json.loads(own_text(told(layer)[0]))
    target = document
    for part in place[:-1]:
        target = target[part]
    target[place[-1]] = value
    with pytest.raises(WorkloadError, match=message) as caught:
        workload_from_text(json.dumps(document), Path("w.json"))
    assert len(str(caught.value).splitlines()) == 1


def test_growth_without_sizes_is_refused() -> None:
    document = json.loads(own_text(told(layer)[0]))
    del document["sizes"]
    with pytest.raises(WorkloadError, match="operators state a growth, and the file has no 'sizes'"):
        workload_from_text(json.dumps(document), Path("w.json"))


# Rewriting and questions ----------------------------------------------------------------------------------------------


def test_another_precision_keeps_growth_and_another_form_of_attention_drops_it(repository: Path) -> None:
    workload, _ = told(layer)
    at, to = Sizes(batch=4, sequence=64), Sizes(batch=9, sequence=100)
    for precision in ("fp16", "fp32", "fp8"):
        changed = with_precision(workload, precision)
        assert contents(with_sizes(changed, at, to)) == contents(with_precision(with_sizes(workload, at, to), precision))
    example = read_workload(repository / "examples" / "llama-8b-decode.json")
    stated = replace(example, resizing=replace(told(layer, 16, 2048)[0].resizing, batch=16, sequence=2048))  # type: ignore[type-var]
    assert with_attention(stated, "flash") is stated
    assert with_attention(stated, "eager").resizing is None
    assert with_attention(stated, "eager").operators == with_attention(example, "eager").operators


def test_sweeps_take_the_sizes_that_the_file_states(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload, _ = told(layer)
    assert [(one.batch, one.sequence) for one in variants(workload, batch=(1, 8), sequence=(16,))] == [(1, 16), (8, 16)]
    with pytest.raises(WorkloadError, match="traced at batch 4, sequence 64, not at batch 1, sequence 1; leave --at out"):
        variants(workload, at=Sizes(batch=1, sequence=1), batch=8)
    path = tmp_path / "made.json"
    path.write_text(own_text(workload))
    words = ["--bundle", "a100-pcie-40gb-eager", "--batch", "1,8", "--freqs", "1410", "--json", "--quiet"]
    assert main(["sweep", str(path), *words]) in (0, 3)
    points = json.loads(capsys.readouterr().out)
    assert [(point["batch"], point["sequence"]) for point in points] == [(1, 64), (8, 64)]
    assert points[0]["latency_s"] < points[1]["latency_s"]


def test_the_page_moves_a_file_that_states_its_growth_and_says_why_another_stays() -> None:
    workload, _ = told(layer)
    offered = [
        workload_document(Entry(key="k", source="loaded", workload=one, at=known_sizes(one)), None)
        for one in (workload, without_growth(workload))
    ]
    assert offered[0]["at"] == {"batch": 4, "sequence": 64}
    assert offered[0]["batch"] == {"values": list(BATCHES), "value": 4, "reason": ""}
    assert offered[0]["sequence"] == {"values": list(SEQUENCES), "value": 64, "reason": ""}
    assert offered[1]["batch"]["values"] == [1]
    assert "trace it with --resizable" in offered[1]["batch"]["reason"]


def test_a_traced_file_without_growth_says_how_to_get_it() -> None:
    plain = without_growth(told(layer)[0])
    with pytest.raises(WorkloadError, match="trace it with --resizable, or at the sizes wanted$"):
        with_sizes(plain, Sizes(batch=5, sequence=64), Sizes(batch=8, sequence=64))

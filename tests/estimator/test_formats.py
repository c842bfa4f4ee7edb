"""Workload files, own and published lists: what is read is what was written, what entries mean, and what is wrong is named in one line."""

import contextlib
import json
import random
from dataclasses import replace

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator import Footprint, Workload, WorkloadError, make_operator, read_workload
from estimator.formats.own import own_text, read_own
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT
from estimator.vocabulary.work import workload_warnings, workload_work
from estimator.vocabulary.workload import CACHED, FAMILY_FIELDS, UnknownOperator, merge_counts
from tests.estimator import artifact_lists as artifact
from tests.estimator.workload_files import LINEAR, MADE, own, recorded, save
from tests.fuzz.mutate import mutated_value
from tests.words import one_line

PRECISIONS = st.sampled_from(sorted(BYTES_PER_ELEMENT))
OPERATORS = st.builds(
    replace,
    st.sampled_from(
        [
            *MADE,
            *[replace(one, precision_kv="fp8") for one in MADE if one.family in CACHED],
            make_operator("copy", "contiguous", "bf16", elements=2**40 - 1, reads=1e15 / 7),
        ]
    ),
    precision=PRECISIONS,
    precision_out=st.just("") | PRECISIONS,
    cuda_cores=st.booleans(),
    host_share=st.floats(0, 10),
    origin=st.sampled_from(["listed", "completed:batch_norm", "rewritten:attention"]),
)


@st.composite
def workloads(draw):
    chosen = draw(st.lists(OPERATORS, min_size=1, max_size=6))
    merged, counts = merge_counts(chosen, draw(st.lists(st.floats(1e-3, 1e6), min_size=len(chosen), max_size=len(chosen))))
    return Workload(
        name=draw(st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable())),
        operators=merged,
        counts=counts,
        model_family=draw(st.sampled_from(["", "bert", "großes Modell"])),
        unknown=draw(st.sampled_from([(), (UnknownOperator(name="nccl", count=3, elements=5.0),)])),
        completion=draw(st.sampled_from(["", "eager-pytorch-1"])),
        warnings=draw(st.sampled_from([(), ("taken as one",)])),
        notes=draw(st.sampled_from([(), ("a", "b")])),
        gpus=draw(st.integers(1, 8)),
        footprint=draw(st.one_of(st.none(), st.builds(Footprint, **dict.fromkeys(FOOTPRINT_FIELDS, st.floats(0.0, 1e15))))),
    )


FOOTPRINT_FIELDS = ("weights_byte", "optimizer_byte", "cache_byte", "passing_byte")


# Own format -----------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(workloads())
def test_the_own_format_gives_back_what_was_written(workload):
    assert read_own(json.loads(own_text(workload)), "here", "nameless") == workload


def test_files_written_fit_the_published_schema(repository, shared_data):
    validator = jsonschema.Draft202012Validator(json.loads((repository / "estimator/schema/workload-1.json").read_text()))
    validator.check_schema(validator.schema)
    for path in sorted((repository / "examples").glob("*.json")):
        validator.validate(json.loads(path.read_text()))
    for path in sorted((shared_data / "energaizer" / "workloads").glob("*_b8_*.json")):
        validator.validate(json.loads(own_text(read_workload(path))))
    wrong = [{"precision_kv": "fp8"}, {"host_share": 1e9}, {"m": -1}, {"extra": 1}]
    assert not any(validator.is_valid(own(LINEAR | change)) for change in wrong)
    assert not validator.is_valid(own(LINEAR, memory={"weights_byte": -1}))
    assert validator.is_valid(own(LINEAR | {"origin": "traced:layout"}, memory={"weights_byte": 5}))


def test_equal_entries_add_up_and_the_file_name_stands_in_for_a_name(tmp_path):
    document = own(LINEAR, LINEAR, LINEAR | {"m": 1, "count": 0.5}, name="")
    workload = read_workload(save(tmp_path, document, "small.json"))
    assert (workload.name, workload.counts) == ("small", (4.0, 0.5))


def test_operators_of_the_source_that_no_family_describes_are_counted_with_their_share(tmp_path):
    unknown = [{"name": "collective.allreduce", "count": 3, "elements": 512 * 768}, {"name": "gemm.sparse", "count": 2}]
    (warning,) = workload_warnings(read_workload(save(tmp_path, own(LINEAR, unknown=unknown))))
    assert "5 of 7 operators (71.4%, 60.0% of the elements written)" in warning
    assert "collective.allreduce ×3" in warning


# EnergAIzer lists -----------------------------------------------------------------------------------------------------


def first(folder, *entries):
    return read_workload(save(folder, list(entries)), completion=False).operators[0]


def test_linear_layers_have_their_tokens_in_m_however_they_are_written(tmp_path):
    tokens = artifact.layernorm(4096, 768)
    for entry in (artifact.gemm(1, 3072, 4096, 768), artifact.gemm(1, 4096, 3072, 768)):
        workload = read_workload(save(tmp_path, [tokens, entry]), completion=False)
        assert workload.operators[1].named_shape() == {"batch": 1, "m": 4096, "n": 3072, "k": 768}
        assert workload.operators[1].operator == "linear"


@pytest.mark.parametrize(
    "name, operator, reads, precision_out",
    [
        ("pointwise_add", "add", 200, ""),
        ("unspecified_tensor", "other", 200, ""),
        ("unspecified_scalar", "scalar_pow", 100, ""),
        ("scalar_add", "scalar_add", 100, ""),
        ("typecast_to_fp32", "typecast", 100, "fp32"),
        ("softsign", "other", 100, ""),
    ],
)
def test_elementwise_entries_read_what_their_name_says(tmp_path, name, operator, reads, precision_out):
    read = first(tmp_path, artifact.elementwise(name, 100))
    assert (read.operator, read.shape, read.precision_out) == (operator, (100, reads), precision_out)


def test_fused_attention_is_read_with_its_heads(tmp_path):
    operator = first(tmp_path, artifact.sdpa(4, 12, 256, 128, 6))
    assert operator.named_shape() == {
        "batch": 4, "queries": 256, "context": 256, "heads": 12, "kv_heads": 2, "head_dim": 128, "window": 0, "causal": 1,
    }  # fmt: skip
    stated = artifact.sdpa(4, 12, 256, 128)
    stated[0]["causal"] = False
    assert first(tmp_path, stated)["causal"] == 0
    image = read_workload(save(tmp_path, [artifact.sdpa(4, 12, 196, 64), artifact.conv(4, 3, 224, 768, 16, 16, 0)]))
    assert image.operators[0]["causal"] == 0
    assert image.notes == ("fused attention is taken as that of an encoder: every token sees every other",)


def test_unknown_entries_are_counted_with_their_share(tmp_path):
    collective = [{"op": "all_reduce", "size": 1 << 20}, ["nccl"]]
    workload = read_workload(save(tmp_path, [artifact.softmax(10, 10), collective, artifact.softmax(10, 10), collective, collective]))
    assert workload.counts == (2.0,)
    assert workload.unknown == (UnknownOperator(name="nccl", count=3),)
    assert workload_warnings(workload) == (
        "3 of 5 operators (60.0%, size unknown) are of kinds that cannot be modelled and are left out: nccl ×3",
    )


def test_an_unknown_elementwise_operator_is_taken_for_a_simple_one_and_said(tmp_path):
    workload = read_workload(save(tmp_path, [artifact.elementwise("softsign", 64)] * 2))
    assert workload.unknown == ()
    assert workload_warnings(workload)[0].startswith("element-wise operator 'softsign' ×2")


GEMM = artifact.gemm(1, 64, 32, 16)


MOE = {"family": "moe", "operator": "moe", "precision": "bf16", "count": 1, **dict.fromkeys(FAMILY_FIELDS["moe"], 1)}


def with_field(**fields):
    return [{**GEMM[0], **fields}, GEMM[1]]


@pytest.mark.parametrize(
    "document, message",
    [
        (own(LINEAR, format_version="1.1"), "format_version = '1.1' is unknown; known: 1.0"),
        (own(LINEAR, memory={"weights": 5}), "memory has an unknown field 'weights'; known: weights_byte, optimizer_byte,"),
        (own(LINEAR, memory={"weights_byte": -1}), "memory.weights_byte = -1 lies outside 0 to"),
        (own(LINEAR | {"precision_kv": "fp8"}), "unknown field 'precision_kv'"),
        (own(LINEAR, format="wattprint-bundle"), "format = 'wattprint-bundle'; a workload file has format"),
        ({"operators": [LINEAR]}, "format = None; a workload file has format 'wattprint-workload'"),
        ({"model_type": "qwen3", "hidden_size": 4096}, "the configuration of a model; estimate llm, or"),
        (own(), "'operators' must be a list of at least one"),
        (own("gemm"), r"operators\[0\] must be an object"),
        (own(LINEAR, LINEAR | {"m": -1}), r"operators\[1\].m = -1 lies outside 1 to"),
        (own(MOE | {"experts": 10**8}), "experts = 100000000 lies outside 1 to 65536"),
        (own(LINEAR | {"count": 0}), r"operators\[0\].count = 0 lies outside"),
        (own(LINEAR | {"family": 3}), "family must be a text"),
        ("5", "holds an object or a list of"),
        ([], "the list is empty"),
        ([GEMM, 5], "entry 1 must be a pair"),
        ([[GEMM[0], [7]]], "entry 0: the types must be a list of names"),
        ([GEMM, with_field(dimM=-5)], r"entry 1 \(gemm\): dimM = -5 lies outside 1 to 1e\+15; correct it"),
        ([[{key: value for key, value in GEMM[0].items() if key != "dimN"}, GEMM[1]]], "lacks the field 'dimN'"),
        ([with_field(precM="fp5")], "precM = 'fp5' is not a known precision"),
        ([artifact.sdpa(1, 12, 64, 64, 5)], "multi_query_ratio = 5 must be a divisor of num_heads = 12"),
        ([[{"x": 1}, ["nccl"]]], "no operator of a known kind, only nccl"),
        ('[[{"dim": 1e400, "op": "relu", "prec": "bf16"}, ["elementwise"]]]', "holds the number 1e400"),
        ('[[{"dim": 4, "op": "relu"}, ["elementw', "not valid JSON, or cut short: Unterminated string"),
        ("", "the file is empty"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_the_fault(tmp_path, document, message):
    with one_line(WorkloadError, match=message) as caught:
        read_workload(save(tmp_path, document))
    assert "model_x_b2.json" in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "binary").write_bytes(b"\x93\xff\x00\x01")
    for name, message in [("binary", "no text file"), ("missing", "or a model by --model"), (".", "cannot be read: Is a dir")]:
        with pytest.raises(WorkloadError, match=message):
            read_workload(tmp_path / name)
    with pytest.raises(WorkloadError, match="cannot be read"):
        read_workload("\0")


# Real models ----------------------------------------------------------------------------------------------------------


def test_every_recorded_list_is_read_without_a_warning(shared_data):
    paths = sorted((shared_data / "energaizer" / "workloads").glob("*.json"))
    assert len(paths) > 50
    for path in paths:
        workload = read_workload(path, completion=False)
        assert workload_warnings(workload) == ()
        assert sum(workload.counts) == len(json.loads(path.read_text()))
        assert workload.model_family in {"bert", "gpt2", "opt", "resnet101", "mobilevit"}


def test_resnet_101_computes_its_published_multiply_adds(shared_data):
    published = 7.80e9  # multiply-adds of one 224 × 224 image, convolutions and classifier (torchvision 0.20, model card)
    assert workload_work(recorded(shared_data, "resnet101__pbf16_b8_freq900")).flop / 2 / 8 == pytest.approx(published, rel=0.01)


# Anything at all ------------------------------------------------------------------------------------------------------

WHOLE = [
    own(LINEAR, {"family": "softmax", "operator": "softmax", "precision": "fp32", "count": 1, "rows": 4, "dim": 8}, notes=["x"]),
    [artifact.conv(2, 3, 224, 1024, 16, 16, 0), artifact.sdpa(2, 4, 64, 16, 2), *artifact.qwen2(1, 16, layers=1)],
]


@pytest.mark.parametrize("document", WHOLE, ids=["own", "list"])
def test_a_damaged_file_is_a_workload_or_a_named_fault(tmp_path, document):
    whole, chance = json.dumps(document), random.Random(0)
    for _ in range(100):
        path = save(tmp_path, mutated_value(json.loads(whole), chance))
        with contextlib.suppress(WorkloadError):
            workload = read_workload(path)
            assert workload.operators
            assert min(workload.counts) > 0
            assert all(0 <= size < float("inf") for operator in workload.operators for size in operator.shape)

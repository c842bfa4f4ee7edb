"""Workload files: what is read is what was written, and what is wrong is named in one line."""

import contextlib
import json
from dataclasses import asdict, replace
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.errors import WorkloadError
from estimator.formats import read_workload, write_workload
from estimator.formats.document import distinct_items
from estimator.formats.own import own_text, read_own
from estimator.quantities import BYTES_PER_ELEMENT
from estimator.reckoning import work_by_family, workload_warnings
from estimator.workload import (
    FAMILY_FIELDS,
    FAMILY_OPERATORS,
    Footprint,
    Operator,
    Resizing,
    UnknownOperator,
    Workload,
    make_operator,
    merge_counts,
)
from tests.estimator import artifact_lists as artifact

PRECISIONS = st.sampled_from(sorted(BYTES_PER_ELEMENT))
SIZES = st.integers(1, 2**40)


def save(folder: Path, document: object, name: str = "model_x_b2.json") -> Path:
    path = folder / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def own(*operators: dict[str, object], **top: object) -> dict[str, object]:
    return {"format": "wattprint-workload", "format_version": "1.0", "name": "x", "operators": list(operators)} | top


LINEAR = {"family": "gemm", "operator": "linear", "precision": "bf16", "count": 2, "batch": 1, "m": 512, "n": 768, "k": 256}


@st.composite
def operators(draw: st.DrawFn) -> Operator:
    family = draw(st.sampled_from(sorted(FAMILY_FIELDS)))
    shape = {name: float(draw(SIZES)) for name in FAMILY_FIELDS[family]}
    if family == "conv":
        shape |= {"kernel_h": 3.0, "kernel_w": 2.0, "padding": 1.0, "groups": 1.0, "height": 5.0}
    if family == "attention":
        shape |= {
            "heads": 12.0,
            "kv_heads": float(draw(st.sampled_from([1, 3, 12]))),
            "causal": float(draw(st.integers(0, 1))),
            "window": 0.0,
        }
    if family in ("elementwise", "copy"):
        shape["reads"] = draw(st.floats(1, 1e15))
    return Operator(
        family=family,
        operator=draw(st.sampled_from(FAMILY_OPERATORS[family])),
        precision=draw(PRECISIONS),
        shape=tuple(shape.values()),
        precision_out=draw(st.one_of(st.just(""), PRECISIONS)),
        precision_kv=draw(st.one_of(st.just(""), PRECISIONS)),
        cuda_cores=draw(st.booleans()),
        host_share=draw(st.floats(0, 10)),
        origin=draw(st.sampled_from(["listed", "completed:batch_norm", "rewritten:attention"])),
    )


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    chosen = draw(st.lists(operators(), min_size=1, max_size=6))
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
        footprint=draw(st.one_of(st.none(), st.builds(Footprint, **dict.fromkeys(FOOTPRINT_FIELDS, st.floats(0.0, 1e15))))),
    )


FOOTPRINT_FIELDS = ("weights_byte", "optimizer_byte", "cache_byte", "passing_byte")


# Own format -----------------------------------------------------------------------------------------------------------


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
    held = Footprint(weights_byte=5.0, optimizer_byte=0.5)
    validator.validate(json.loads(own_text(replace(read_workload(repository / "examples" / "gpt2-prefill.json"), footprint=held))))
    assert not validator.is_valid(own(LINEAR, memory={"weights_byte": -1}))
    assert not validator.is_valid(own(LINEAR, memory={"weights": 1}))
    assert not validator.is_valid(own(LINEAR | {"m": -1}))
    assert not validator.is_valid(own(LINEAR | {"extra": 1}))
    assert not validator.is_valid(own({key: value for key, value in LINEAR.items() if key != "k"}))


def test_the_schema_names_the_same_fields_as_the_program(repository):
    schema = json.loads((repository / "estimator/schema/workload-1.json").read_text())
    variants = {variant["title"]: variant for variant in schema["$defs"]["operator"]["oneOf"]}
    for family, fields in FAMILY_FIELDS.items():
        assert set(fields) <= set(variants[family]["required"])
        assert tuple(variants[family]["properties"]["operator"]["enum"]) == FAMILY_OPERATORS[family]
    assert set(schema["$defs"]["precision"]["enum"]) == set(BYTES_PER_ELEMENT)
    assert tuple(schema["properties"]["memory"]["properties"]) == FOOTPRINT_FIELDS == tuple(asdict(Footprint()))
    assert tuple(schema["properties"]["sizes"]["properties"]) == tuple(asdict(Resizing(batch=1, batch_least=1, batch_most=1)))


def test_a_file_without_memory_is_one_that_the_first_version_reads():
    plain = Workload(name="w", operators=(make_operator("reduction", "sum", "bf16", rows=2, dim=3),), counts=(1.0,))
    versions = [json.loads(own_text(replace(plain, footprint=held)))["format_version"] for held in (None, Footprint())]
    assert versions == ["1.0", "1.1"]


def test_a_file_is_written_whole_or_not_at_all(tmp_path, shared_data):
    workload = read_workload(shared_data / "energaizer" / "workloads" / "resnet101__pbf16_b8_freq900.json")
    write_workload(workload, tmp_path / "w.json")
    assert read_workload(tmp_path / "w.json") == workload
    assert [path.name for path in tmp_path.iterdir()] == ["w.json"]
    with pytest.raises(WorkloadError, match="cannot be written"):
        write_workload(workload, tmp_path / "missing" / "w.json")


def test_equal_entries_add_up_and_the_file_name_stands_in_for_a_name(tmp_path):
    document = own(LINEAR, LINEAR, LINEAR | {"m": 1, "count": 0.5}, name="")
    workload = read_workload(save(tmp_path, document, "small.json"))
    assert (workload.name, workload.counts) == ("small", (4.0, 0.5))


def test_kinds_from_the_future_are_kept_as_unknown(tmp_path):
    future = {"family": "collective", "operator": "allreduce", "count": 3, "bytes": 10, "elements": 512 * 768}
    workload = read_workload(save(tmp_path, own(LINEAR, future, LINEAR | {"operator": "sparse"})))
    assert [(entry.name, entry.count) for entry in workload.unknown] == [("collective.allreduce", 3), ("gemm.sparse", 2)]
    (warning,) = workload_warnings(workload)
    assert "5 of 7 operators (71.4%, 60.0% of the elements written)" in warning
    assert "collective.allreduce ×3" in warning


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (own(LINEAR, format_version="1.2"), "format_version 1.2 cannot be read; this program reads 1.0 to 1.1; upgrade"),
        (own(LINEAR, memory=5), "memory must be an object of numbers of byte, got int"),
        (own(LINEAR, memory={"weights": 5}), "memory: unknown field 'weights'; known: weights_byte, optimizer_byte,"),
        (own(LINEAR, memory={"weights_byte": -1}), "memory.weights_byte = -1 must be a number from 0 to below"),
        (own(LINEAR, memory={"cache_byte": "5"}), "memory.cache_byte = '5' must be a number"),
        (own(LINEAR, memory={"cache_byte": True}), "memory.cache_byte = True must be a number"),
        (own(LINEAR, memory={"cache_byte": 1e24}), "memory.cache_byte = 1e"),
        (own(LINEAR, format_version="2.0"), "format_version 2.0 cannot be read"),
        (own(LINEAR, format_version=1), "format_version = 1 must be a text"),
        (own(LINEAR, format="wattprint-bundle"), "this is a bundle, not a workload"),
        ({"operators": [LINEAR]}, "format = None; a workload file has format 'wattprint-workload'"),
        (own(LINEAR, colour="red"), "unknown field 'colour'"),
        (own(), "'operators' must be a list of at least one"),
        (own(LINEAR, operators={}), "'operators' must be a list of at least one"),
        (own("gemm"), r"operators\[0\] must be an object"),
        (own(LINEAR, LINEAR | {"m": -1}), r"operators\[1\] \(gemm.linear\): gemm m = -1 must be from 1 to below"),
        (own(LINEAR | {"m": 1.5}), "m = 1.5 must be a whole number"),
        (own(LINEAR | {"m": "512"}), "gemm needs the number 'm', got '512'"),
        (own(LINEAR | {"m": True}), "gemm needs the number 'm', got True"),
        (own(LINEAR | {"m": 1e30}), "m = 1e\\+30 must be"),
        (own({key: value for key, value in LINEAR.items() if key != "k"}), "gemm needs the number 'k', which is missing"),
        (own(LINEAR | {"where": 1}), "unknown field 'where'"),
        (own(LINEAR | {"count": 0}), r"operators\[0\]: count = 0 must be a number above 0"),
        (own(LINEAR | {"count": None}), r"operators\[0\]: count = None"),
        (own(LINEAR | {"count": True}), r"operators\[0\]: count = True"),
        (own(LINEAR | {"precision": "fp12"}), "precision = 'fp12' is not a known precision"),
        (own(LINEAR | {"precision_out": 16}), "precision_out = 16 is not a known precision"),
        (own(LINEAR | {"host_share": -1}), "host_share = -1 must be a number of at least 0"),
        (own(LINEAR | {"cuda_cores": 1}), "cuda_cores = 1 must be true or false"),
        (own(LINEAR | {"family": 3}), "family = 3 must be a name"),
        (own(LINEAR, name=3), "name = 3 must be a text"),
        (own(LINEAR, notes="x"), "notes must be a list"),
        (own(LINEAR, unknown=[{"name": "x"}]), r"unknown\[0\]: count is missing"),
        (own({"family": "magic", "operator": "x", "count": 1}), "no operator of a known kind, only magic.x; known families: gemm, conv"),
        (own(LINEAR | {"operator": "linaer"}), "no operator of a known kind, only gemm.linaer; known operators of gemm: linear, bmm$"),
        (own(*({"family": "gemm", "operator": f"o{i}", "count": 1} for i in range(7))), r"gemm\.o4 and 2 more; known operators of gemm"),
        ("5", "holds an object or a list, not int"),
        ('{"format": NaN}', "NaN is not a JSON number"),
    ],
)
def test_a_wrong_own_file_is_one_line_that_names_the_fault(tmp_path, document, message):
    with pytest.raises(WorkloadError, match=message) as caught:
        read_workload(save(tmp_path, document))
    assert "model_x_b2.json" in str(caught.value)
    assert "\n" not in str(caught.value)


# EnergAIzer lists -----------------------------------------------------------------------------------------------------


def first(folder: Path, *entries: artifact.Entry) -> Operator:
    return read_workload(save(folder, list(entries)), completion=False).operators[0]


def test_linear_layers_have_their_tokens_in_m_however_they_are_written(tmp_path):
    tokens = artifact.layernorm(4096, 768)
    for entry in (artifact.gemm(1, 3072, 4096, 768), artifact.gemm(1, 4096, 3072, 768)):
        workload = read_workload(save(tmp_path, [tokens, entry]), completion=False)
        assert workload.operators[1].named_shape() == {"batch": 1, "m": 4096, "n": 3072, "k": 768}
        assert workload.operators[1].operator == "linear"


def test_without_norms_the_dimension_that_layers_share_is_the_tokens(tmp_path):
    layers = [artifact.gemm(1, outputs, 96, 64) for outputs in (64, 128, 256)]
    assert {o["m"] for o in read_workload(save(tmp_path, layers), completion=False).operators} == {96}
    turned = [artifact.gemm(1, 96, outputs, 64) for outputs in (64, 128, 256)]
    assert {o["m"] for o in read_workload(save(tmp_path, turned), completion=False).operators} == {96}
    assert first(tmp_path, artifact.gemm(1, 1000, 16, 2048))["m"] == 16


def test_attention_of_one_head_and_one_sequence_is_told_from_linear_layers(tmp_path):
    entries = [artifact.linear(32, 64, 64), artifact.gemm(1, 32, 32, 64), artifact.softmax(32, 32), artifact.gemm(1, 32, 64, 32)]
    workload = read_workload(save(tmp_path, entries), completion=False)
    assert [operator.operator for operator in workload.operators] == ["linear", "bmm", "softmax", "bmm"]


def test_products_without_tensor_cores_say_so(tmp_path):
    operator = first(tmp_path, artifact.gemm(2, 64, 128, 1, precision="fp32", tensor=False))
    assert (operator.operator, operator.cuda_cores, operator.precision) == ("bmm", True, "fp32")


@pytest.mark.parametrize(
    ("name", "operator", "reads", "precision_out"),
    [
        ("pointwise_add", "add", 200, ""),
        ("pointwise_mul", "mul", 200, ""),
        ("unspecified_tensor", "other", 200, ""),
        ("unspecified_scalar", "scalar_pow", 100, ""),
        ("scalar_add", "scalar_add", 100, ""),
        ("scalar_mul", "scalar_mul", 100, ""),
        ("relu", "relu", 100, ""),
        ("gelu", "gelu", 100, ""),
        ("silu", "silu", 100, ""),
        ("tanh", "tanh", 100, ""),
        ("typecast_to_fp32", "typecast", 100, "fp32"),
        ("softsign", "other", 100, ""),
    ],
)
def test_elementwise_entries_read_what_their_name_says(tmp_path, name, operator, reads, precision_out):
    read = first(tmp_path, artifact.elementwise(name, 100))
    assert (read.operator, read.shape, read.precision_out) == (operator, (100, reads), precision_out)


def test_convolutions_keep_their_image_also_where_it_is_not_square(tmp_path):
    square = first(tmp_path, artifact.conv(8, 64, 56, 128, 3, 2, 1))
    assert square.shape == (8, 64, 56, 56, 128, 3, 3, 2, 1, 1)
    entry = artifact.conv(8, 64, 56, 128, 3, 2, 1)
    entry[0]["dimM"] = 8 * 28 * 40
    assert first(tmp_path, entry)["width"] == 79
    entry = artifact.conv(8, 64, 56, 64, 3, 1, 1)
    entry[0]["dimK"] = 9
    assert (first(tmp_path, entry).operator, first(tmp_path, entry)["groups"]) == ("depthwise", 64)


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


def test_what_is_taken_for_something_else_is_said(tmp_path):
    fused = artifact.elementwise("relu", 64)
    fused[0]["fusion"] = True
    workload = read_workload(save(tmp_path, [artifact.elementwise("softsign", 64)] * 2 + [fused]))
    assert workload.unknown == ()
    assert [line.split(" ×2")[0].split(" are")[0] for line in workload_warnings(workload)] == [
        "element-wise operator 'softsign'", "1 operators",
    ]  # fmt: skip


def with_field(entry: artifact.Entry, **fields: object) -> artifact.Entry:
    return [{**entry[0], **fields}, entry[1]]


GEMM = artifact.gemm(1, 64, 32, 16)
CONV = artifact.conv(2, 8, 16, 8, 3, 1, 1)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "the list is empty"),
        ([GEMM, 5], "entry 1 must be a pair"),
        ([GEMM, [1, ["gemm"]]], "entry 1: the query must be an object"),
        ([[GEMM[0], []]], "entry 0: the types must be a list of names"),
        ([[GEMM[0], [7]]], "entry 0: the types must be a list of names"),
        ([GEMM, with_field(GEMM, dimM=-5)], r"entry 1 \(gemm\): dimM = -5 must be a whole number from 1 to 1e\+15; correct it"),
        ([with_field(GEMM, dimK=0)], "dimK = 0 must be"),
        ([with_field(GEMM, dimN=1e30)], r"dimN = 1e\+30 must be"),
        ([with_field(GEMM, dimN=2.5)], "dimN = 2.5 must be"),
        ([with_field(GEMM, dimN="32")], "dimN = '32' must be"),
        ([with_field(GEMM, dimN=True)], "dimN = True must be"),
        ([with_field(GEMM, batch=None)], "batch = None must be"),
        ([[{key: value for key, value in GEMM[0].items() if key != "dimN"}, GEMM[1]]], "field 'dimN' is missing"),
        ([with_field(GEMM, precM="fp5")], "precM = 'fp5' is not a known precision"),
        ([with_field(GEMM, useTensorCore="yes")], "useTensorCore = 'yes' must be true or false"),
        ([artifact.elementwise("relu", -1)], r"entry 0 \(elementwise\): dim = -1"),
        ([[{"dim": 4, "prec": "bf16"}, ["elementwise"]]], "op = None must be a name"),
        ([artifact.softmax(0, 5)], "batch = 0"),
        ([with_field(CONV, hw=0)], "hw = 0"),
        ([with_field(CONV, rs=40)], "rs = 40 is larger than the padded image"),
        ([with_field(CONV, dimM=7)], "dimM = 7 is not b · 16 output rows"),
        ([with_field(CONV, dimK=7)], "dimK = 7 does not fit c · rs² = 72"),
        ([with_field(CONV, m=9)], "dimN = 8 and m = 9 must agree"),
        ([artifact.sdpa(1, 12, 64, 64, 5)], "multi_query_ratio = 5 must divide num_heads = 12"),
        ([[{"x": 1}, ["nccl"]]], "no operator of a known kind, only nccl"),
        ("[[{\"dim\": NaN}, [\"elementwise\"]]]", "NaN is not a JSON number"),
        ("[[{\"dim\": 1e400, \"op\": \"relu\", \"prec\": \"bf16\"}, [\"elementwise\"]]]", "dim = inf must be"),
        ("[[{\"dim\": 1" + "0" * 5000 + "}, [\"elementwise\"]]]", "holds a whole number of"),
        ("[" * 100_000, "nested too deeply"),
        ("[[{\"dim\": 4, \"op\": \"relu\"}, [\"elementw", "not valid JSON, or cut short: Unterminated string"),
        ("", "the file is empty"),
        ("hello", "not valid JSON"),
    ],
)  # fmt: skip
def test_a_wrong_list_is_one_line_that_names_the_fault(tmp_path, document, message):
    with pytest.raises(WorkloadError, match=message) as caught:
        read_workload(save(tmp_path, document))
    assert "model_x_b2.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "binary").write_bytes(b"\x93\xff\x00\x01")
    for name, message in [("binary", "not a text file"), ("missing", "cannot be read: No such file"), (".", "cannot be read: Is a dir")]:
        with pytest.raises(WorkloadError, match=message):
            read_workload(tmp_path / name)
    with pytest.raises(WorkloadError, match="cannot be read"):
        read_workload("\0")


@pytest.mark.parametrize("indent", [None, 0, 2])
def test_the_layout_of_the_text_does_not_matter(tmp_path, indent):
    entries = artifact.qwen2(2, 128, layers=2)
    expected = read_workload(save(tmp_path, entries))
    again = read_workload(save(tmp_path, "\ufeff\n" + json.dumps(entries, indent=indent) + "\n"))
    assert again == expected


@given(st.lists(st.lists(st.one_of(st.integers(), st.text(max_size=4), st.lists(st.text(max_size=6), max_size=2)), max_size=3), max_size=6))
def test_cutting_a_list_between_its_pairs_never_changes_it(document):
    items = distinct_items(json.dumps(document))
    if items is not None:
        values, order = items
        assert [values[number] for number in order] == document


def test_a_list_cut_anywhere_is_refused(tmp_path):
    text = json.dumps(artifact.qwen2(1, 128, layers=1))
    for end in range(1, len(text) - 1, 37):
        with pytest.raises(WorkloadError):
            read_workload(save(tmp_path, text[:end]))


# Real models ----------------------------------------------------------------------------------------------------------


def test_every_recorded_list_is_read_without_a_warning(shared_data):
    paths = sorted((shared_data / "energaizer" / "workloads").glob("*.json"))
    assert len(paths) > 50
    for path in paths:
        workload = read_workload(path, completion=False)
        assert workload_warnings(workload) == ()
        assert sum(workload.counts) == len(json.loads(path.read_text()))
        assert workload.model_family in {"bert", "gpt2", "opt", "resnet101", "mobilevit"}


@pytest.mark.parametrize(("batch", "length"), [(1, 128), (8, 512), (16, 1024)])
def test_linear_work_of_gpt2_follows_from_its_configuration(shared_data, batch, length):
    path = shared_data / "energaizer" / "workloads" / f"gpt2model_gpt2_pbf16_b{batch}_s{length}_modeprefill.json"
    workload = read_workload(path, completion=False)
    weights = 12 * (768 * 2304 + 768 * 768 + 2 * 768 * 3072)
    attention = 12 * 2 * 2 * batch * 12 * length * length * 64
    assert work_by_family(workload)["gemm"].flop == 2 * batch * length * weights + attention
    tokens = {o["m"] for o in workload.operators if o.operator == "linear"}
    assert tokens == {batch * length}


def test_bytes_of_bert_follow_from_its_configuration(shared_data):
    tokens, products = 8 * 256, 8 * 16
    path = shared_data / "energaizer" / "workloads" / "bertmodel_large_pbf16_b8_s256_modeprefill.json"
    work = work_by_family(read_workload(path, completion=False))
    scores = products * 256 * 256
    assert work["softmax"].read_byte == work["softmax"].write_byte == 24 * 2 * scores
    assert work["norm"].read_byte == 49 * 2 * tokens * 1024
    written = 24 * (2 * scores + tokens * 4096 + 2 * tokens * 1024) + tokens * 1024 + tokens + 8 * 1024
    assert work["elementwise"].write_byte == 2 * written


def test_resnet_101_computes_its_published_multiply_adds(shared_data):
    path = shared_data / "energaizer" / "workloads" / "resnet101__pbf16_b8_freq900.json"
    work = work_by_family(read_workload(path))
    published = 7.80e9  # multiply-adds of one 224 × 224 image, convolutions and classifier (torchvision 0.20, model card)
    assert (work["conv"].flop + work["gemm"].flop) / 2 / 8 == pytest.approx(published, rel=0.01)


# Anything at all ------------------------------------------------------------------------------------------------------

STRANGE = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.floats(), st.text(max_size=3), st.lists(st.integers(0, 2), max_size=2),
    st.sampled_from([10**40, 1e30, 512, "bf16", "gemm", {}, [[]]]),
)  # fmt: skip


@given(st.data())
def test_a_damaged_file_is_a_workload_or_a_named_fault(tmp_path_factory, data):
    whole: list[object] = [
        own(LINEAR, {"family": "softmax", "operator": "softmax", "precision": "fp32", "count": 1, "rows": 4, "dim": 8}, notes=["x"]),
        [*artifact.vit_large(2, layers=1), artifact.sdpa(2, 4, 64, 16, 2), *artifact.qwen2(1, 16, layers=1)],
    ]
    document = data.draw(st.sampled_from(whole))
    document = json.loads(json.dumps(document))
    spot = document
    while isinstance(spot, dict | list) and spot:
        keys = sorted(spot) if isinstance(spot, dict) else list(range(len(spot)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(spot[key], dict | list) or data.draw(st.integers(0, 3)) == 0:
            spot[key] = data.draw(STRANGE)
            break
        spot = spot[key]
    path = save(tmp_path_factory.getbasetemp(), document, "damaged_b2.json")
    with contextlib.suppress(WorkloadError):
        workload = read_workload(path)
        assert workload.operators
        assert min(workload.counts) > 0
        assert all(0 <= size < float("inf") for operator in workload.operators for size in operator.shape)


def test_fp32_on_tensor_cores_is_tf32(tmp_path):
    entry = {"batch": 1, "dimM": 64, "dimN": 32, "dimK": 16, "precM": "fp32", "precA": "fp32"}
    listed = [
        [entry | {"useTensorCore": True}, ["gemm", "tc", "fp32_fp32"]],
        [entry | {"useTensorCore": False}, ["gemm", "cuda", "fp32_fp32"]],
    ]
    path = tmp_path / "list.json"
    path.write_text(json.dumps(listed))
    first, second = read_workload(path).operators
    assert (first.precision, first.cuda_cores) == ("tf32", False)
    assert (second.precision, second.cuda_cores) == ("fp32", True)


@pytest.mark.parametrize(
    "text", ['[[{{"dim": {}, "op": "relu", "prec": "bf16"}}, ["elementwise"]]]', '{{"format": "wattprint-workload", "x": {}}}']
)
@pytest.mark.parametrize("digits", [401, 5000])
def test_a_number_of_hundreds_of_digits_is_refused_in_the_words_of_a_workload(tmp_path: Path, text: str, digits: int) -> None:
    path = save(tmp_path, text.format("9" * digits))
    with pytest.raises(WorkloadError, match=f"^{path}: holds a whole number of {digits} digits, 99999999…; no size is so large$"):
        read_workload(path)

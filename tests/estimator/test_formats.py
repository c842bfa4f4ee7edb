"""Workload files: what is read is what was written, and what is wrong is named in one line."""

import json
from dataclasses import replace

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator import Footprint, Workload, WorkloadError, make_operator, read_workload
from estimator.formats.own import own_text, read_own
from estimator.vocabulary.quantities import BYTES_PER_ELEMENT
from estimator.vocabulary.work import workload_warnings
from estimator.vocabulary.workload import CACHED, UnknownOperator, merge_counts
from tests.estimator.workload_files import LINEAR, MADE, own, save
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
    workload = read_workload(save(tmp_path, own(LINEAR, unknown=unknown)))
    (warning,) = workload_warnings(workload)
    assert "5 of 7 operators (71.4%, 60.0% of the elements written)" in warning
    assert "collective.allreduce ×3" in warning


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
        (own(LINEAR | {"count": 0}), r"operators\[0\].count = 0 lies outside"),
        (own(LINEAR | {"family": 3}), "family must be a text"),
        ("5", "holds an object or a list of"),
    ],
)
def test_a_wrong_own_file_is_one_line_that_names_the_fault(tmp_path, document, message):
    with one_line(WorkloadError, match=message) as caught:
        read_workload(save(tmp_path, document))
    assert "model_x_b2.json" in str(caught.value)

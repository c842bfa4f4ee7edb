"""Bundles: what is written comes back, and nothing damaged, edited or foreign gets in."""

import functools
import json
import math
import pickle
import re
from dataclasses import FrozenInstanceError

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from estimator.bundles.document import TOP_FIELDS
from estimator.bundles.files import (
    NOT_DIGESTED,
    bundle_from_document,
    digest_of,
    document_of,
    load_bundle,
    save_bundle,
)
from estimator.coefficients import COEFFICIENTS, MEANING
from estimator.power import POWER_TERMS
from estimator.quantities import BYTES_PER_ELEMENT
from estimator.specifications import document_of_gpu, load_gpu
from tests.estimator.bundle_example import SCHEMA, VALIDATOR, changed, example, refused, signed, written


def test_what_is_saved_is_what_is_loaded(tmp_path):
    bundle = bundle_from_document(example())
    saved = save_bundle(bundle, tmp_path / "b.json")
    loaded = load_bundle(tmp_path / "b.json")
    expected = signed(document_of(bundle))
    assert document_of(loaded) == document_of(saved) == expected
    assert math.isnan(loaded.power.busy_std_w)
    assert json.loads((tmp_path / "b.json").read_text()) == expected
    assert [path.name for path in tmp_path.iterdir()] == ["b.json"]


def test_plain_data_keep_every_field_of_the_file():
    document = signed(example())
    again = document_of(bundle_from_document(document))
    assert tuple(again) == TOP_FIELDS
    assert again == document
    assert digest_of(again) == document["digest"] or again["domain"]["gemm"]["m"] == [1.0, 4096.0]


numbers = st.floats(0.1, 10.0, allow_nan=False)


def in_range(value: float) -> bool:
    """Whether a file may hold the number: no quantity is smaller in any unit."""
    return value == 0.0 or abs(value) >= 1e-99


texts = st.text(max_size=12)
free = st.dictionaries(
    texts,
    st.recursive(
        st.none() | st.booleans() | texts | st.integers(-(10**9), 10**9) | st.floats(-1e99, 1e99).filter(in_range),
        st.lists,
        max_leaves=6,
    ),
    max_size=3,
)


GROUPS = st.sampled_from(["gemm", "gemm.linear", "gemm.bmm.bf16", "softmax.softmax.fp32.long", "conv.conv2d", "copy", "norm.layernorm"])


@st.composite
def documents(draw) -> dict:
    document = example()
    names = draw(st.lists(st.sampled_from(COEFFICIENTS), min_size=1, max_size=5, unique=True))
    document["groups"] = draw(
        st.dictionaries(
            GROUPS,
            st.fixed_dictionaries(
                {
                    "coefficients": st.fixed_dictionaries(dict.fromkeys(names, numbers)),
                    "ln_std": st.fixed_dictionaries({names[0]: numbers}),
                    "identified": st.fixed_dictionaries({names[0]: st.booleans()}),
                    "rows": st.integers(0, 10**6),
                }
            ),
            max_size=4,
        )
    )
    document["name"] = draw(st.text(min_size=1, max_size=12).filter(str.isprintable))
    document["notes"] = draw(st.lists(st.text(min_size=1, max_size=12), max_size=3))
    document["environment"] = draw(st.dictionaries(texts, texts, max_size=3))
    document["sensor"] = draw(free)
    document["residuals"] = draw(st.dictionaries(GROUPS, st.just(document["residuals"]["gemm"]), max_size=2))
    if draw(st.booleans()):
        document["power"] = document["voltage"] = document["idle"] = None
    return document


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(documents())
def test_any_bundle_survives_its_file(tmp_path, document):
    bundle = bundle_from_document(document)
    saved = save_bundle(bundle, tmp_path / "b.json")
    loaded = load_bundle(tmp_path / "b.json")
    assert document_of(loaded) == document_of(saved)
    VALIDATOR.validate(document_of(loaded))


def test_bundle_cannot_be_changed_and_can_be_pickled():
    bundle = bundle_from_document(example())
    with pytest.raises(FrozenInstanceError):
        bundle.name = "x"
    with pytest.raises(TypeError):
        bundle.groups["gemm"] = None
    with pytest.raises(TypeError):
        bundle.residuals["gemm"]["ln_error"][0] = 0
    assert document_of(pickle.loads(pickle.dumps(bundle))) == document_of(bundle)


@pytest.mark.parametrize(
    ("key", "coefficient"),
    [
        ("gemm.linear.bf16", 0.94),
        ("gemm.linear.bf16.cuda", 0.94),
        ("gemm.linear.fp16", 1.05),
        ("gemm.bmm", 1.05),
        ("gemms", None),
        ("conv", None),
    ],
)
def test_group_is_found_by_its_longest_known_prefix(key, coefficient):
    group = bundle_from_document(example()).group(key)
    assert (group and group.coefficients["math"]) == coefficient


def test_digest_follows_the_content_and_not_the_layout(tmp_path):
    document = signed(example())
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", document["digest"])
    backwards = json.dumps(dict(reversed(document.items())), indent=3)
    path = tmp_path / "b.json"
    path.write_text(backwards)
    assert load_bundle(path).digest == document["digest"]


@pytest.mark.parametrize("keys", [("name",), ("groups", "gemm", "coefficients", "math"), ("notes",), ("power", "busy_w")])
def test_any_edit_by_hand_breaks_the_digest(tmp_path, keys):
    document = signed(example())
    edited = changed(keys, {"name": "x", "math": 1.06, "notes": [], "busy_w": 21.0}[keys[-1]])
    path = tmp_path / "b.json"
    path.write_text(json.dumps({**edited, "digest": document["digest"]}))
    refused(path, "does not match its digest .* edited or damaged; restore the file or fit again")


def leaves(value, at: tuple = ()) -> list[tuple]:
    """Keys of every number, text and null in plain data."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return [keys for key, item in items for keys in leaves(item, (*at, key))]
    return [at]


def test_any_value_of_any_section_changed_by_hand_breaks_the_digest(tmp_path):
    document = signed(example())
    path = tmp_path / "b.json"
    elsewhere = (("digest",), ("format",), ("format_version",), *(("provenance", name) for name in NOT_DIGESTED))
    places = [keys for keys in leaves(example()) if keys not in elsewhere]
    assert {keys[0] for keys in places} >= set(TOP_FIELDS) - {"digest", "format", "format_version", "instruction_energies", "block_models"}
    for keys in places:
        old = functools.reduce(lambda part, key: part[key], keys, document)
        new = (
            old * 1.0625 + 1e-9 if isinstance(old, float) else old + 1 if type(old) is int else not old if type(old) is bool else f"{old}'"
        )
        path.write_text(json.dumps({**changed(keys, new), "digest": document["digest"]}))
        refused(path, "does not match its digest")


@pytest.mark.parametrize("digest", [..., None, 7, "", "sha256:0"])
def test_missing_digest_is_refused(tmp_path, digest):
    document = {**example(), "digest": digest}
    if digest is ...:
        del document["digest"]
    path = tmp_path / "b.json"
    path.write_text(json.dumps(document))
    refused(path, "digest")


SEMANTIC_FAULTS = [
    (("latency_parameters", "covariance"), [[0.04, 0.01]], "1 rows for 2 names"),
    (("latency_parameters", "covariance"), [[0.04, 0.01], [0.02, 0.09]], "not symmetric"),
    (("latency_parameters", "covariance"), [[-0.04, 0.01], [0.01, 0.09]], "variance must not be negative"),
    (("latency_parameters", "covariance"), [[0.04], [0.01, 0.09]], r"covariance\[0\] has 1 values where 2 are needed"),
    (("gpu", "name"), "a10", "differs from gpu.specification.name"),
    (("gpu", "specification", "sm_clock_max_mhz"), 5000, "must lie within"),
    (("groups", "gemm", "ln_std"), {"dram": 0.1}, "groups.gemm.ln_std has an unknown name 'dram'"),
    (("groups", "gemm", "identified"), {"dram": True}, "groups.gemm.identified has an unknown name"),
    (("voltage", "sm_clock_mhz"), [1410.0, 210.0], "voltage.sm_clock_mhz must ascend"),
    (("voltage", "voltage_v"), [0.7], "voltage.voltage_v has 1 values where 2"),
    (("idle", "power_w"), [0.7, 1, 2], "idle.power_w has 3 values where 2"),
    (("clocks",), [1410.0, 210.0], "clocks = .* must ascend"),
    (("name",), "two\nlines", "name holds a character that cannot be printed"),
    (("name",), "\x1b[31mred", "name holds a character that cannot be printed"),
    (("notes", 0), "half \ud800", "holds half a character"),
    (("environment", "driver"), "half \ud800", "holds half a character"),
    (("domain", "gemm", "m"), [2.0, 1.0], "domain.gemm.m = .* must ascend"),
]
"""Faults that a JSON Schema cannot tell."""

STRUCTURAL_FAULTS = [
    (("extra",), 1, "unknown field 'extra'"),
    (("group",), {}, "unknown field 'group', did you mean 'groups'"),
    (("notes",), ..., "lacks the field 'notes'"),
    (("name",), "", "name must be a text"),
    (("name",), 7, "name must be a text"),
    (("gpu", "uuid"), 7, "gpu.uuid must be a text"),
    (("version",), "1.0", "must read MAJOR.MINOR.PATCH"),
    (("version",), "01.0.0", "must read MAJOR.MINOR.PATCH"),
    (("gpu", "serial"), "x", "gpu has an unknown field 'serial'"),
    (("gpu", "specification", "num_sms"), 0, "num_sms = 0 lies outside"),
    (("gpu", "specification", "num_sms"), 108.5, "whole number"),
    (("gpu", "specification", "color"), "green", "unknown key 'color'"),
    (("gpu", "specification", "power_limit_w"), "250", "power_limit_w must be a number"),
    (("environment",), [], "environment must be an object"),
    (("environment", "driver"), 550, "environment.driver must be a text"),
    (("sensor",), "nvml", "sensor must be an object"),
    (("provenance", "seed"), -1, "provenance.seed = -1 lies outside 0 to"),
    (("provenance", "datasets"), {}, "datasets must be a list"),
    (("provenance", "datasets", 0, "used"), 0.5, r"datasets\[0\]\.used must be a whole number"),
    (("provenance", "datasets", 0, "rejected", "NaN energy"), -1, "NaN energy = -1 lies outside 0 to"),
    (("host", "launch_s"), -1e-6, "host.launch_s = -1e-06 lies outside 0 to 1 s"),
    (("host", "launch_s"), None, "host.launch_s must be a number"),
    (("host",), None, "host must be an object"),
    (("groups",), [], "groups must be an object"),
    (("groups", "gemm", "coefficients", "math"), -1.0, "groups.gemm.coefficients.math = -1.0 lies outside 0 to"),
    (("groups", "gemm", "coefficients", "math"), "1", "groups.gemm.coefficients.math must be a number"),
    (("groups", "gemm", "coefficients", "math"), True, "groups.gemm.coefficients.math must be a number"),
    (("groups", "gemm", "coefficients", "maths"), 1.0, "unknown name 'maths', did you mean 'math'"),
    (("groups", "gemm", "coefficients"), {}, "must not be empty"),
    (("groups", "gemm", "identified", "math"), 1, "must be true or false"),
    (("groups", "gemm", "rows"), 1.5, "whole number"),
    (("groups", "gemm", "lambda"), 1, "unknown field 'lambda'"),
    (("power", "event_energy_j", "disk"), 1.0, "power.event_energy_j has an unknown name 'disk'"),
    (("power", "event_energy_j", "dram"), -1.0, "power.event_energy_j.dram = -1.0 lies outside 0 to 1e-08 J"),
    (("power", "concavity"), 0.7, "power.concavity = 0.7 lies outside 1 to 1"),
    (("power", "busy_w"), None, "power.busy_w must be a number"),
    (("power", "warm_knee"), 0.0, "power.warm_knee = 0.0 lies outside"),
    (("power", "leakage_w_per_k"), -0.1, "power.leakage_w_per_k = -0.1 lies outside 0 to 100 W/K"),
    (("voltage", "std_v"), "x", "voltage.std_v must be a list"),
    (("idle", "temperature_c"), "warm", "idle.temperature_c must be a number"),
    (("residuals",), {"gemm": 1}, "residuals.gemm must be an object"),
    (("uncertainty",), None, "uncertainty must be an object"),
    (("domain", "gemm", "m"), [1.0], "domain.gemm.m has 1 values where 2"),
    (("clocks",), [210.0], "clocks has 1 values where 2"),
    (("clocks",), [-1.0, 210.0], r"clocks\[0\] = -1.0 lies outside 10 to 10000 MHz"),
    (("errors",), {}, "errors must be a list"),
    (("errors", 0), "bad", r"errors\[0\] must be an object"),
    (("notes", 0), "", r"notes\[0\] must be a text"),
]
"""Faults that the reader and the JSON Schema must both find."""


@pytest.mark.parametrize(("keys", "value", "message"), STRUCTURAL_FAULTS + SEMANTIC_FAULTS)
def test_fault_is_refused_with_its_place(tmp_path, keys, value, message):
    refused(written(tmp_path, changed(keys, value)), message)


@pytest.mark.parametrize(("keys", "value", "message"), STRUCTURAL_FAULTS)
def test_json_schema_finds_the_same_faults(keys, value, message):
    assert not VALIDATOR.is_valid(signed(changed(keys, value))), message


def test_json_schema_is_sound_accepts_the_example_and_knows_the_names_of_the_code():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    VALIDATOR.validate(signed(example()))
    assert tuple(SCHEMA["properties"]) == TOP_FIELDS
    names = SCHEMA["$defs"]
    assert {entry["const"]: entry["description"] for entry in names["coefficient"]["oneOf"]} == MEANING
    assert names["power_term"]["enum"] == list(POWER_TERMS)
    assert names["precision"]["enum"] == list(BYTES_PER_ELEMENT)
    specification = SCHEMA["properties"]["gpu"]["properties"]["specification"]
    assert set(specification["properties"]) >= set(document_of_gpu(load_gpu("a100-pcie-40gb")))


def test_every_field_of_the_schema_is_described():
    def undescribed(schema: dict, at: str) -> list[str]:
        found = [at] if "description" not in schema and "const" not in schema and at else []
        return found + [name for key, part in schema.get("properties", {}).items() for name in undescribed(part, f"{at}.{key}")]

    assert undescribed(SCHEMA, "") == []

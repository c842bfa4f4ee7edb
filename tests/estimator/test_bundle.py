"""Bundles: what is written comes back, and nothing damaged, edited or foreign gets in."""

import copy
import functools
import json
import math
import os
import pickle
import re
from contextlib import suppress
from dataclasses import FrozenInstanceError
from pathlib import Path

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import estimator.schema
from estimator.bundles.document import FORMAT_VERSION, TOP_FIELDS
from estimator.bundles.files import (
    Bundle,
    bundle_from_document,
    bundle_names,
    bundle_path,
    digest_of,
    document_of,
    load_bundle,
    save_bundle,
)
from estimator.bundles.migrations import MIGRATIONS, migrate
from estimator.coefficients import COEFFICIENTS, MEANING
from estimator.errors import BundleError
from estimator.power import POWER_TERMS
from estimator.quantities import BYTES_PER_ELEMENT
from estimator.specifications import document_of_gpu, load_gpu

SCHEMA = json.loads((Path(estimator.schema.__path__[0]) / "bundle-1.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def example() -> dict:
    """Plain data of a bundle with something in every field."""
    return {
        "format": "wattprint-bundle",
        "format_version": "1.0",
        "name": "example",
        "version": "0.1.0",
        "digest": "",
        "gpu": {"name": "a100-pcie-40gb", "uuid": "GPU-1", "specification": document_of_gpu(load_gpu("a100-pcie-40gb"))},
        "environment": {"driver": "550.54", "host": "é"},
        "sensor": {"window_s": 0.1, "tau_s": None},
        "provenance": {
            "created_utc": "2026-01-01T00:00:00Z",
            "wattprint_version": "0.1.0",
            "commit": "",
            "seed": 0,
            "datasets": [{"name": "d.parquet", "sha256": "00", "kind": "kernels", "rows": 10, "used": 9, "rejected": {"NaN energy": 1}}],
        },
        "host": {"launch_s": 3e-5, "launch_ln_std": 0.1, "source": "fitted", "overlap_exponent": 12.0},
        "completion": "eager-1",
        "groups": {
            "gemm": {"coefficients": {"math": 1.05, "epsilon_s": 3e-6}, "ln_std": {"math": 0.02}, "identified": {"math": True}, "rows": 7},
            "gemm.linear.bf16": {"coefficients": {"math": 0.94}, "ln_std": {}, "identified": {}, "rows": 0},
        },
        "latency_parameters": {"names": ["gemm.math", "gemm.epsilon_s"], "covariance": [[0.04, 0.01], [0.01, 0.09]]},
        "power": {
            "reference_clock_mhz": 900.0,
            "reference_voltage_v": 0.694,
            "voltage_exponent": 3.0,
            "concavity": 1.0,
            "capacitance_f": {"tensor": 2.3e-7},
            "capacitance_std_f": {"tensor": 1e-8},
            "event_energy_j": {"tensor": 6.8e-13, "dram": 4.6e-11},
            "busy_w": 20.0,
            "busy_std_w": None,
            "active_w": 4.4,
            "active_std_w": 1.0,
            "terms": ["tensor"],
            "covariance": [[1e-26]],
            "l2_credit": 0.25,
            "rows": 7,
            "warm_knee": 0.7,
            "warm_sharpness": 5.0,
            "leakage_w_per_k": 0.16,
            "leakage_std_w_per_k": 0.02,
            "operating_c": 38.5,
            "operating_k_per_w": 0.08,
        },
        "voltage": {"sm_clock_mhz": [210.0, 1410.0], "voltage_v": [0.69375, 0.89375], "std_v": None, "source": "table"},
        "idle": {"sm_clock_mhz": [210.0, 1410.0], "power_w": [44.5, 67.3], "std_w": 0.3, "source": "table", "temperature_c": None},
        "tile_predictors": {
            "gemm": {
                "feature": [0, -1, -1],
                "threshold": [7.5, 0.0, 0.0],
                "left": [1, 0, 0],
                "right": [2, 0, 0],
                "tile_m": [64, 64, 128],
                "tile_n": [64, 64, 128],
                "split": [1, 1, 1],
            }
        },
        "residuals": {
            "gemm": {
                "fields": ["m"],
                "weights": [1.0],
                "points": {"m": [1.0, 2.0]},
                "largest_work": 8.0,
                "ln_error": [0.1, -0.1],
                "left_out": [0.1, 0.2],
                "near": 1.0,
                "far": 2.0,
                "beyond": 0.3,
            }
        },
        "uncertainty": {"latency": {"gpu": 0.05}, "power": {"gpu": 0.04}},
        "domain": {"gemm": {"m": [1, 4096], "n": [1.0, 4096.0]}},
        "clocks": [210.0, 1410.0],
        "errors": [
            {
                "gpu": "a100-pcie-40gb",
                "family": "gemm",
                "operator": "linear",
                "precision": "bf16",
                "n": 20,
                "latency": {"n": 20, "mape": 4.0, "median": 3.0, "p95": 9.0, "bias": -1.0, "coverage": None},
                "power": None,
                "coverage": None,
            }
        ],
        "instruction_energies": {},
        "block_models": {},
        "notes": ["an example"],
    }


def signed(document: dict) -> dict:
    return {**document, "digest": digest_of(document)}


def written(tmp_path: Path, document: dict, name: str = "b.json") -> Path:
    path = tmp_path / name
    path.write_text(json.dumps(signed(document)), encoding="utf-8")
    return path


def changed(keys: tuple, value) -> dict:
    """The example with one place changed; `...` removes it."""
    document = copy.deepcopy(example())
    place = document
    for key in keys[:-1]:
        place = place[key]
    if value is ...:
        del place[keys[-1]]
    else:
        place[keys[-1]] = value
    return document


def refused(path: Path, message: str) -> None:
    """Loading fails in one line that names the file and says `message`."""
    with pytest.raises(BundleError, match=message) as caught:
        load_bundle(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


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
texts = st.text(max_size=12)
free = st.dictionaries(
    texts,
    st.recursive(
        st.none() | st.booleans() | texts | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False),
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


@pytest.mark.parametrize(
    "keys", [("name",), ("groups", "gemm", "coefficients", "math"), ("notes",), ("power", "busy_w"), ("format_version",)]
)
def test_any_edit_by_hand_breaks_the_digest(tmp_path, keys):
    document = signed(example())
    edited = changed(keys, {"name": "x", "math": 1.06, "notes": [], "busy_w": 21.0, "format_version": "0.9"}[keys[-1]])
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
    places = [keys for keys in leaves(example()) if keys not in (("digest",), ("format",))]
    assert {keys[0] for keys in places} >= set(TOP_FIELDS) - {"digest", "format", "instruction_energies", "block_models"}
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
    (("power", "concavity"), 0.0, "power.concavity = 0.0 lies outside 0.05 to 10"),
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


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("place", ['"busy_w": 20.0', '"largest_work": 8.0', '"math": 1.05'])
def test_number_that_is_not_finite_is_refused(tmp_path, constant, place):
    text = json.dumps(signed(example()))
    assert place in text
    path = tmp_path / "b.json"
    path.write_text(text.replace(place, place.split(":")[0] + ": " + constant))
    refused(path, "finite")


def test_field_given_twice_is_refused(tmp_path):
    path = tmp_path / "b.json"
    path.write_text(json.dumps(signed(example())).replace('"name": "example"', '"name": "other", "name": "example"'))
    refused(path, "holds the field 'name' twice")


@pytest.mark.parametrize("version", ["1.1", "2.0", "1.10", "999999.0"])
def test_newer_format_is_refused_with_the_remedy(tmp_path, version):
    refused(written(tmp_path, changed(("format_version",), version)), rf"{re.escape(version)} is newer than 1\.0.*upgrade wattprint")


def test_a_newer_format_is_named_before_its_digest_which_may_be_counted_otherwise(tmp_path):
    path = tmp_path / "newer.json"
    path.write_text(json.dumps(signed(example()) | {"format_version": "2.0"}))
    refused(path, r"2\.0 is newer than 1\.0")


@pytest.mark.parametrize("version", ["", "1", "1.0.0", "one", "-1.0", "1.٣", None, 1.0, ["1.0"]])
def test_version_that_is_none_is_refused(tmp_path, version):
    refused(written(tmp_path, changed(("format_version",), version)), "must read MAJOR.MINOR")


def test_power_without_leakage_and_edge_of_l2_means_what_it_meant_before_there_were_such_fields():
    document = example()
    for later in ("warm_knee", "warm_sharpness", "leakage_w_per_k", "leakage_std_w_per_k", "operating_c", "operating_k_per_w"):
        del document["power"][later]
    VALIDATOR.validate(signed(document))
    power = bundle_from_document(signed(document)).power
    assert (power.warm_knee, power.warm_sharpness, power.leakage_w_per_k) == (0.8, 4.0, 0.0)


def test_older_format_without_a_way_up_is_refused(tmp_path):
    refused(written(tmp_path, changed(("format_version",), "0.1")), "format version 0.1 is unknown")


def test_migrations_run_one_after_the_other_up_to_the_present_format():
    steps = {
        "0.1": ("0.2", lambda document: {**document, "unit": "s"}),
        "0.2": ("1.0", lambda document: {"renamed": document["old"], "unit": document["unit"]}),
    }
    old = {"format_version": "0.1", "old": 3}
    assert migrate(old, "1.0", steps) == {"format_version": "1.0", "renamed": 3, "unit": "s"}
    assert old == {"format_version": "0.1", "old": 3}
    with pytest.raises(BundleError, match=r"0\.3 is unknown"):
        migrate({"format_version": "0.3"}, "1.0", steps)
    with pytest.raises(BundleError, match="newer"):
        migrate({"format_version": "1.0"}, "0.2", steps)


def test_every_registered_migration_leads_to_the_present_format():
    for version in MIGRATIONS:
        seen = {version}
        while version != FORMAT_VERSION:
            version = MIGRATIONS[version][0]
            assert version not in seen
            seen.add(version)


DAMAGED = {
    "empty": b"",
    "blank": b" \n",
    "binary": bytes(range(256)),
    "parquet": b"PAR1\x15\x00",
    "list": b"[1, 2]",
    "number": b"3",
    "other object": b'{"format": "other"}',
    "bare object": b"{}",
    "nested lists": b'{"a": ' + b"[" * 100_000,
    "nested objects": b'{"a":' * 100_000,
    "closed nesting": b'{"format": "wattprint-bundle", "a": ' + b"[" * 900 + b"]" * 900 + b"}",
    "endless number": b'{"a": ' + b"9" * 10_000 + b"}",
    "lone surrogate": b'{"format": "wattprint-bundle", "name": "\\ud800"}',
    "utf-16": '{"format": "wattprint-bundle"}'.encode("utf-16"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_file_is_refused_in_one_line(tmp_path, kind):
    path = tmp_path / "b.json"
    path.write_bytes(DAMAGED[kind])
    refused(path, ".")


def test_truncated_file_is_refused_wherever_it_ends(tmp_path):
    content = json.dumps(signed(example())).encode()
    path = tmp_path / "b.json"
    for length in range(0, len(content), 997):
        path.write_bytes(content[:length])
        refused(path, ".")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_flipped_byte_never_passes_unnoticed(tmp_path, data):
    content = bytearray(json.dumps(signed(example())).encode())
    before = document_of(bundle_from_document(signed(example())))
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path / "b.json"
    path.write_bytes(bytes(content))
    with suppress(BundleError):
        assert document_of(load_bundle(path)) == before  # only where blank became blank


def test_file_beyond_the_size_limit_is_refused(tmp_path):
    path = tmp_path / "b.json"
    with path.open("wb") as stream:
        stream.truncate((256 << 20) + 1)  # a hole: takes no room on disk
    refused(path, "larger than 256 MiB")


def test_folder_missing_file_and_impossible_name_are_refused(tmp_path):
    refused(tmp_path, "cannot be read")
    refused(tmp_path / "none.json", "cannot be read")
    with pytest.raises(BundleError, match="cannot be read"):
        load_bundle("a\0/b.json")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser reads every file")
def test_unreadable_file_is_refused(tmp_path):
    path = written(tmp_path, example())
    path.chmod(0)
    refused(path, "Permission denied")


def test_unknown_name_is_refused_with_what_is_installed():
    with pytest.raises(BundleError, match=r"unknown bundle 'no-such-bundle'.*; or give a file"):
        load_bundle("no-such-bundle")
    with pytest.raises(BundleError, match="unknown bundle ''"):
        load_bundle("")


def test_every_installed_bundle_loads_by_its_name_and_obeys_the_schema():
    for name in bundle_names():
        assert load_bundle(name).name == name
        VALIDATOR.validate(json.loads(bundle_path(name).read_text(encoding="utf-8")))


def test_failed_save_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "b.json"
    bundle = bundle_from_document(example())
    save_bundle(bundle, path)
    before = path.read_bytes()
    wrong = bundle_from_document(example())
    object.__setattr__(wrong, "version", "one")
    with pytest.raises(BundleError, match=r"b\.json: version = 'one'"):
        save_bundle(wrong, path)
    assert path.read_bytes() == before
    for target in (tmp_path, tmp_path / "none" / "b.json", path / "b.json"):
        with pytest.raises(BundleError, match="cannot be written"):
            save_bundle(bundle, target)
    assert [entry.name for entry in tmp_path.iterdir()] == ["b.json"]


def test_save_follows_a_link_and_replaces_its_target_whole(tmp_path):
    (tmp_path / "old.json").write_text("x")
    (tmp_path / "link.json").symlink_to("old.json")
    save_bundle(bundle_from_document(example()), tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert isinstance(load_bundle(tmp_path / "old.json"), Bundle)


def test_file_is_readable_without_this_package_line_by_line(tmp_path):
    save_bundle(bundle_from_document(example()), tmp_path / "b.json")
    text = (tmp_path / "b.json").read_text(encoding="ascii")
    assert '\n "groups": {\n  "gemm": {\n   "coefficients": {\n    "math": 1.05,\n' in text
    assert '"voltage_v": [0.69375, 0.89375]' in text
    assert max(map(len, text.splitlines())) < 1500


@pytest.mark.parametrize("content", [{"count": 10**400}, {"column": [1.0, 10**400]}, {"deep": [{"count": -(2**70)}]}])
def test_a_whole_number_beyond_64_bits_is_refused_where_a_section_is_free(tmp_path, content):
    document = signed({**example(), "sensor": content})
    (tmp_path / "b.json").write_text(json.dumps(document))
    refused(tmp_path / "b.json", "more than 64 bits")

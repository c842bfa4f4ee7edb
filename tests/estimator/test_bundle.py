"""Bundles and their files: what is written comes back, and nothing damaged, edited or foreign gets in."""

import functools
import json
import math
import pickle
from dataclasses import FrozenInstanceError

import pytest

from estimator import BundleError, load_bundle
from estimator.bundle.content import BundleFile
from estimator.bundle.files import NOT_DIGESTED, bundle_from_document, digest_of, document_of, save_bundle
from estimator.vocabulary.errors import UnwrittenError
from estimator.vocabulary.frozen import FrozenMapping
from estimator.vocabulary.reader import fields_of
from tests.estimator.bundle_example import example, signed
from tests.words import one_line, replaced


def refused(path, message):
    """Loading fails in one line that names the file and says `message`."""
    with one_line(BundleError, match=message) as caught:
        load_bundle(path)
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


TOP_FIELDS = set(fields_of(BundleFile))


def test_bundle_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        bundle_from_document(example()).name = "x"


def leaves(value, at=()):
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
    assert {keys[0] for keys in places} >= TOP_FIELDS - {"digest", "format", "format_version", "instruction_energies", "block_models"}
    for keys in places[::3]:
        old = functools.reduce(lambda part, key: part[key], keys, document)
        new = (
            old * 1.0625 + 1e-9 if isinstance(old, float) else old + 1 if type(old) is int else not old if type(old) is bool else f"{old}'"
        )
        path.write_text(json.dumps({**replaced(example(), keys, new), "digest": document["digest"]}))
        refused(path, "does not match its digest")


SEMANTIC_FAULTS = [
    ("collections", [{"name": "a", "rows": 1}, {"name": "a", "rows": 2}], r"collections\[1\]\.name = 'a' names a second collection"),
    ("collections", [{"name": "a", "rows": 1, "scale": 0.0}], r"collections\[0\]\.scale = 0"),
    ("power/limit_share", 0.1, r"power\.limit_share = 0\.1"),
    ("latency_parameters/covariance", [[0.04, 0.01], [0.02, 0.09]], r"covariance\[1\]\[0\] is no covariance: not symmetric"),
    ("latency_parameters/names", ["gemm.math", "maths"], r"names\[1\] = 'maths' is neither"),
    ("groups/gemm/ln_std", {"dram": 0.1}, "groups.gemm.ln_std has an unknown name 'dram'"),
    ("groups/gemm.linear.bf17", {}, "'gemm.linear.bf17' names no group of kernels: 'bf17' is none of"),
    ("name", "two\nlines", "name holds a character that cannot be printed"),
    ("domain/gemm/m", [2.0, 1.0], "domain.gemm.m = .* must ascend"),
    ("tile_predictors/gemm/split", [3], "split has 1 values where 2"),
    ("residuals/gemm/left_out", [0.1, 0.2, 0.3], "residuals.gemm.left_out has 3 values where 2"),
    ("residuals/gemm/fields", ["n"], "residuals.gemm.fields has an unknown name 'n'"),
]
"""Faults that no declared type tells, and one that a type does."""


@pytest.mark.parametrize("place, value, message", SEMANTIC_FAULTS)
def test_fault_is_refused_with_its_place(tmp_path, place, value, message):
    path = tmp_path / "b.json"
    path.write_text(json.dumps(signed(replaced(example(), place.split("/"), value))))
    refused(path, message)


def test_a_mapping_that_was_hashed_is_pickled_without_its_hash():
    """Texts have other hashes in another process."""
    plain = {"b": 1.0, "a": ("x", 2)}
    hashed = FrozenMapping(plain)
    before = pickle.dumps(hashed)
    assert hash(hashed) == hash(FrozenMapping(dict(reversed(plain.items()))))
    assert pickle.dumps(hashed) == before
    assert pickle.loads(before) == hashed == plain


# Files ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.1", "0.1", "1.٣", None, ["1.0"]])
def test_another_format_is_refused_before_its_digest_which_may_be_counted_otherwise(tmp_path, version):
    path = tmp_path / "other.json"
    path.write_text(json.dumps(signed(example()) | {"format_version": version}))
    refused(path, r"format version .* is unknown, this program reads 1\.0.*that wrote it")


def test_a_digest_is_of_the_content_and_not_of_when_and_where_a_fit_ran():
    document, other = example(), example()
    other["provenance"] |= {"created_utc": "2027-01-01T00:00:00Z", "commit": "0123abc"}
    assert digest_of(document) == digest_of(other)


DAMAGED = {
    "empty": b"",
    "other object": b'{"format": "other"}',
    "nested lists": b'{"a": ' + b"[" * 100_000,
    "closed nesting": b'{"format": "wattprint-bundle", "a": ' + b"[" * 900 + b"]" * 900 + b"}",
    "endless number": b'{"a": ' + b"9" * 10_000 + b"}",
    "utf-16": '{"format": "wattprint-bundle"}'.encode("utf-16"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_file_is_refused_in_one_line(tmp_path, kind):
    path = tmp_path / "b.json"
    path.write_bytes(DAMAGED[kind])
    refused(path, ".")


def test_file_beyond_the_size_limit_is_refused(tmp_path):
    path = tmp_path / "b.json"
    with path.open("wb") as stream:
        stream.truncate((256 << 20) + 1)  # a hole: takes no room on disk
    refused(path, "larger than 256 MiB")


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
        with pytest.raises(UnwrittenError, match="cannot be written"):
            save_bundle(bundle, target)
    assert [entry.name for entry in tmp_path.iterdir()] == ["b.json"]


def test_file_is_readable_without_this_package_line_by_line(tmp_path):
    save_bundle(bundle_from_document(example()), tmp_path / "b.json")
    text = (tmp_path / "b.json").read_text(encoding="ascii")
    assert '\n "groups": {\n  "gemm": {\n   "coefficients": {"math": 1.05, ' in text
    assert '"value": [0.69375, 0.89375]' in text
    assert max(map(len, text.splitlines())) < 1500

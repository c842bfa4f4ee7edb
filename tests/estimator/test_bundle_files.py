"""Files of bundles: versions, damage, limits, how they are saved."""

import json

import pytest

from estimator.bundle.files import (
    bundle_from_document,
    digest_of,
    load_bundle,
    save_bundle,
)
from estimator.vocabulary.errors import BundleError, UnwrittenError
from tests.estimator.bundle_example import example, refused, signed


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
    "binary": bytes(range(256)),
    "list": b"[1, 2]",
    "other object": b'{"format": "other"}',
    "bare object": b"{}",
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


def test_folder_missing_file_and_impossible_name_are_refused(tmp_path):
    refused(tmp_path, "cannot be read")
    refused(tmp_path / "none.json", "cannot be read")
    with pytest.raises(BundleError, match="cannot be read"):
        load_bundle("a\0/b.json")


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

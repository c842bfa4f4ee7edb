"""An example of a bundle, whole and with faults."""

import functools
import json
from pathlib import Path

import jsonschema

import estimator.schema
from estimator import BundleError, load_bundle, load_gpu
from estimator.bundle.files import digest_of
from estimator.vocabulary.specifications import document_of_gpu
from tests.words import one_line

SCHEMA = json.loads((Path(estimator.schema.__path__[0]) / "bundle-1.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


EXAMPLE = Path(__file__).resolve().parents[1] / "golden" / "bundle-example.json"


def example():
    """Plain data of a bundle with something in every field."""
    document = json.loads(EXAMPLE.read_text(encoding="utf-8"))
    document["gpu"]["specification"] = document_of_gpu(load_gpu("a100-pcie-40gb"))
    return document


def signed(document):
    return {**document, "digest": digest_of(document)}


def written(tmp_path, document, name="b.json"):
    path = tmp_path / name
    path.write_text(json.dumps(signed(document)), encoding="utf-8")
    return path


def changed(keys, value):
    """The example with one place changed."""
    document = example()
    place = functools.reduce(lambda part, key: part[key], keys[:-1], document)
    place[keys[-1]] = value
    return document


def refused(path, message):
    """Loading fails in one line that names the file and says `message`."""
    with one_line(BundleError, match=message) as caught:
        load_bundle(path)
    assert str(path) in str(caught.value)

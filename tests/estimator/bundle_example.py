"""An example of a bundle, whole and with faults."""

import json
from pathlib import Path

import jsonschema

import estimator.schema
from estimator import load_gpu
from estimator.bundle.files import digest_of
from estimator.vocabulary.specifications import document_of_gpu

SCHEMA = json.loads((Path(estimator.schema.__path__[0]) / "bundle-1.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


EXAMPLE = Path(__file__).resolve().parents[1] / "golden" / "bundle-example.json"


def example():
    """Plain data of a bundle with something in every field."""
    document = json.loads(EXAMPLE.read_text())
    document["gpu"]["specification"] = document_of_gpu(load_gpu("a100-pcie-40gb"))
    return document


def signed(document):
    return {**document, "digest": digest_of(document)}

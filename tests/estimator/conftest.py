"""Files that the command's tests work on."""

import json

import pytest

from estimator.bundle.files import bundle_from_document, save_bundle
from tests.estimator.estimating import OPERATORS, bundle_document


@pytest.fixture
def bundle(tmp_path):
    """A bundle file."""
    path = tmp_path / "test-bundle.json"
    save_bundle(bundle_from_document(bundle_document()), path)
    return str(path)


@pytest.fixture
def workload(tmp_path):
    """A workload file."""
    path = tmp_path / "layers.json"
    path.write_text(json.dumps({"format": "wattprint-workload", "format_version": "1.0", "name": "layers", "operators": OPERATORS}))
    return str(path)

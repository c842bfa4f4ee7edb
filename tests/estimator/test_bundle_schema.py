"""The JSON Schema of bundles is complete: it knows every section that a fit writes, and refuses what is no part of one."""

import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from estimator import load_bundle, predict_kernels
from estimator.blocks.model import section_of as block_section
from estimator.counts.energies import LINKS, LinkEnergy
from estimator.counts.energies import section_of as instruction_section
from estimator.vocabulary.reader import plain
from scripts.schemas import DECLARED, FOLDER, schema_text
from tests.estimator.bundle_example import SCHEMA, VALIDATOR, signed
from tests.estimator.synthetic import matmul
from tests.estimator.test_block_count import MODEL
from tests.estimator.test_counted_energy import ENERGIES

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "bundles"


def whole():
    """The golden bundle that has every section, with those of instructions, links and blocks as they are written now."""
    document = json.loads((GOLDEN / "1.0-whole.json").read_text())
    links = {"host_copy": LinkEnergy(link="host", bytes_per_s=2e10, j_per_byte=float("nan"), std_j=float("nan"), runs=3)}
    document["instruction_energies"] = {**instruction_section(ENERGIES), LINKS: plain(links)}
    document["block_models"] = block_section([MODEL])
    return signed(json.loads(json.dumps(document)))


def test_sections_of_instructions_links_and_blocks_obey_the_schema():
    VALIDATOR.validate(whole())


def test_links_may_stand_alone_in_a_section_and_nothing_else_may():
    document = whole()
    section = document["instruction_energies"]
    VALIDATOR.validate(signed({**document, "instruction_energies": {LINKS: section[LINKS]}}))
    for name in set(section) - {LINKS}:
        with pytest.raises(jsonschema.ValidationError):
            VALIDATOR.validate(signed({**document, "instruction_energies": {name: section[name]}}))


def test_the_schema_files_are_those_of_the_declarations_and_describe_every_field():
    for name in DECLARED:
        assert (FOLDER / name).read_text() == schema_text(name), "run scripts/schemas.py"
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    for place, schema in {"": SCHEMA, **SCHEMA["$defs"]}.items():
        assert schema["additionalProperties"] is False, place
        for name, part in schema["properties"].items():
            assert "description" in part, f"{place}.{name}"


def golden():
    """Bundles as they were written when a format was new; beside each lies what it answered then."""
    return sorted(GOLDEN.glob("*.json"))


def test_golden_bundles_hold_every_section_and_every_kind_of_tier():
    documents = [json.loads(path.read_text()) for path in golden()]
    assert {name for document in documents for name, part in document.items() if part not in ({}, [], None)} >= set(SCHEMA["properties"])
    tiers = [tier for document in documents for tier in document["residuals"].values()]
    assert {"kriging", "named", "power"} <= {name for tier in tiers for name in tier}


@pytest.mark.parametrize("path", golden(), ids=lambda path: path.stem)
def test_a_golden_bundle_is_read_obeys_the_schema_and_answers_as_it_did(path):
    document = json.loads(path.read_text())
    VALIDATOR.validate(document)
    bundle = load_bundle(path)
    assert bundle.digest == document["digest"]
    said = json.loads(path.with_suffix(".answers").read_text())
    operators = [matmul(512, 1024, k) for k in said["k"]]
    table = predict_kernels(
        operators, bundle, bundle.gpu, sm_clock_mhz=np.full(len(operators), said["sm_clock_mhz"]), warm=np.ones(len(operators), bool)
    )
    assert table.groups == tuple(said["groups"])
    assert np.isfinite(table.latency_s).all()
    # Equations may be refined; a bundle's meaning may not change beyond its stated error.
    assert table.latency_s == pytest.approx(said["latency_s"], rel=said["tolerance"])
    assert table.power_w == pytest.approx(said["power_w"], rel=said["tolerance"])

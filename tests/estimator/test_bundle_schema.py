"""The JSON Schema of bundles is complete: it knows every section that a fit writes, and refuses what is no part of one."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from estimator.blocks.model import section_of as block_section
from estimator.bundles.files import load_bundle
from estimator.instructions.energies import LINKS
from estimator.instructions.energies import section_of as instruction_section
from estimator.instructions.links import LinkEnergy, links_document
from estimator.kernel_prediction import predict_kernels
from estimator.residuals import tier_from_document
from estimator.tiles.choice import KIND
from estimator.workload import make_operator
from tests.estimator.bundle_example import SCHEMA, VALIDATOR, example, signed
from tests.estimator.test_block_count import MODEL
from tests.estimator.test_instructions import ENERGIES

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "bundles"

KRIGING = {
    "shape": [0, 1],
    "sm_clock_mhz": [900.0, 1410.0],
    "tile_area": [0.0],
    "shares": {"dram": [0.5, 0.5]},
    "weight": [0.1, -0.1],
    "beyond_share": 0.5,
}
SLOPE = {"slope": -0.3, "low_w": 80.0, "high_w": 300.0, "middle_w": 150.0}
CHOICE = {"kind": KIND, "tile_m": [64, 128], "tile_n": [64, 128], "split": [1, 1], "liking": [0.0, 0.5], "sharpness": 15.0}


def full() -> dict[str, Any]:
    """A bundle with everything that any fit writes."""
    document = example()
    tier = document["residuals"]["gemm"]
    errors = {name: tier[name] for name in ("ln_error", "left_out", "near", "far", "beyond")}
    rest = {"reach": 2.0, "beyond_share": 0.5, "beyond_octaves": 3.0}
    document["residuals"] = {
        "gemm": {**tier, **rest, "kriging": KRIGING, "named": {**errors, **rest}, "power": {**tier, **rest, "common": -0.05, **SLOPE}},
        "softmax": {**tier, "power": {"common": 0.02, **SLOPE}},
        "elementwise": {**tier, "power": {"common": 0.02}},
    }
    document["tile_predictors"] = {**document["tile_predictors"], "gemm.bmm": CHOICE}
    document["uncertainty"] = {
        "latency": {
            "gpu": 0.05,
            "launch": 0.1,
            "family": 0.05,
            "families": ["bert"],
            "families_by_group": {"gemm": 3},
            "groups": {"gemm": 0.06},
        },
        "power": {"gpu": 0.04, "launch": 0.06, "family": 0.03, "families": ["bert"], "groups": {"gemm": 0.05}},
    }
    links = {"host_copy": LinkEnergy(link="host", bytes_per_s=2e10, j_per_byte=float("nan"), std_j=float("nan"), runs=3)}
    document["instruction_energies"] = {**instruction_section(ENERGIES), LINKS: links_document(links)}
    document["block_models"] = block_section([MODEL])
    return signed(json.loads(json.dumps(document)))


def test_every_section_that_a_fit_writes_obeys_the_schema() -> None:
    VALIDATOR.validate(full())


def test_links_may_stand_alone_in_a_section_and_nothing_else_may() -> None:
    document = full()
    section = document["instruction_energies"]
    VALIDATOR.validate(signed({**document, "instruction_energies": {LINKS: section[LINKS]}}))
    for name in set(section) - {LINKS}:
        with pytest.raises(jsonschema.ValidationError):
            VALIDATOR.validate(signed({**document, "instruction_energies": {name: section[name]}}))


def objects(schema: Any, at: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object with fields inside a schema, with its place."""
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
            yield at, schema
        for key, part in schema.items():
            yield from objects(part, f"{at}.{key}")
    elif isinstance(schema, list):
        for i, part in enumerate(schema):
            yield from objects(part, f"{at}[{i}]")


def test_every_object_of_the_schema_is_closed_and_every_field_of_it_described() -> None:
    for at, schema in objects(SCHEMA, ""):
        assert schema["additionalProperties"] is False, at
        assert set(schema.get("required", ())) <= set(schema["properties"]), at
        for name, part in schema["properties"].items():
            assert "description" in part or "const" in part or "$ref" in part, f"{at}.{name}"


PLACES = (
    ("residuals", "gemm"), ("residuals", "gemm", "kriging"), ("residuals", "gemm", "named"), ("residuals", "gemm", "power"),
    ("tile_predictors", "gemm"), ("tile_predictors", "gemm.bmm"), ("uncertainty",), ("uncertainty", "latency"), ("uncertainty", "power"),
    ("errors", 0), ("errors", 0, "latency"), ("instruction_energies",), ("instruction_energies", "links", "host_copy"),
    ("block_models", next(iter(block_section([MODEL])))),
)  # fmt: skip


@pytest.mark.parametrize("place", PLACES, ids=lambda keys: ".".join(map(str, keys)))
def test_a_foreign_field_and_a_field_of_another_kind_are_found_in_every_section(place: tuple[Any, ...]) -> None:
    document = full()
    inside = document
    for key in place:
        inside = inside[key]
    inside["foreign"] = 1
    assert not VALIDATOR.is_valid(document)
    del inside["foreign"]
    VALIDATOR.validate(document)
    for name in list(inside):
        broken = copy.deepcopy(document)
        target: Any = broken
        for key in place:
            target = target[key]
        target[name] = {"no": ["such", "kind"]}
        assert not VALIDATOR.is_valid(broken), name


def test_the_schema_and_the_readers_of_residuals_agree() -> None:
    for tier in full()["residuals"].values():
        tier_from_document({name: value for name, value in tier.items() if name != "power"})


def golden() -> list[Path]:
    """Bundles as they were written when a format was new; beside each lies what it answered then."""
    return sorted(GOLDEN.glob("*.json"))


def test_golden_bundles_hold_every_section_and_every_kind_of_tier() -> None:
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in golden()]
    assert {name for document in documents for name, part in document.items() if part not in ({}, [], None)} >= set(SCHEMA["properties"])
    tiers = [tier for document in documents for tier in document["residuals"].values()]
    assert {"kriging", "named", "power"} <= {name for tier in tiers for name in tier}
    assert {"common", "slope"} <= {name for tier in tiers for name in tier.get("power", {})}


@pytest.mark.parametrize("path", golden(), ids=lambda path: path.stem)
def test_a_golden_bundle_is_read_obeys_the_schema_and_answers_as_it_did(path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    VALIDATOR.validate(document)
    bundle = load_bundle(path)
    assert bundle.digest == document["digest"]
    said = json.loads(path.with_suffix(".answers").read_text(encoding="utf-8"))
    operators = [make_operator("gemm", "linear", "bf16", batch=1, m=512, n=1024, k=k) for k in said["k"]]
    table = predict_kernels(
        operators, bundle, bundle.gpu, sm_clock_mhz=np.full(len(operators), said["sm_clock_mhz"]), warm=np.ones(len(operators), bool)
    )
    assert table.groups == tuple(said["groups"])
    assert np.isfinite(table.latency_s).all()
    # Equations may be refined; a bundle's meaning may not change beyond its stated error.
    assert table.latency_s == pytest.approx(said["latency_s"], rel=said["tolerance"])
    assert table.power_w == pytest.approx(said["power_w"], rel=said["tolerance"])

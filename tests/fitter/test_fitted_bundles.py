"""Whatever is fitted obeys the published schema."""

import json
from pathlib import Path

import jsonschema
import pytest

import estimator.schema
from estimator.bundle.files import save_bundle
from fitter.bundle.calibration import calibrate
from fitter.rows.columns import Selection
from tests.fitter.measured import kernel_rows, planted_bundle, selection_of, spec, various_operators, various_workloads, workload_rows

SCHEMA = json.loads((Path(estimator.schema.__path__[0]) / "bundle-1.json").read_text(encoding="utf-8"))
NOISE = 0.03


def selections() -> dict[str, Selection]:
    """What a fit may be given."""
    bundle = planted_bundle()
    kernels = kernel_rows(bundle, various_operators(60), noise=NOISE)
    runs = workload_rows(bundle, various_workloads(), noise=NOISE)
    return {"kernels": selection_of(kernels), "workloads": selection_of(None, runs)}


@pytest.mark.parametrize("kind", ["kernels", "workloads"])
def test_a_freshly_fitted_bundle_obeys_the_schema(kind: str, tmp_path: Path) -> None:
    found = calibrate(selections()[kind], spec(), name="fresh", holdout=0.3)
    save_bundle(found.bundle, tmp_path / "b.json")
    document = json.loads((tmp_path / "b.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    if kind == "kernels":
        assert any("power" in tier for tier in document["residuals"].values())
    assert document["errors"]

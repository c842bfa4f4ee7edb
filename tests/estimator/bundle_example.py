"""An example of a bundle, whole and with faults."""

import copy
import json
from pathlib import Path

import jsonschema
import pytest

import estimator.schema
from estimator.bundle.files import (
    digest_of,
    load_bundle,
)
from estimator.vocabulary.errors import BundleError
from estimator.vocabulary.specifications import document_of_gpu, load_gpu

SCHEMA = json.loads((Path(estimator.schema.__path__[0]) / "bundle-1.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def example():
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
        "collections": [{"name": "lab", "rows": 9, "scale": 1.0, "ln_std": 0.0}],
        "host": {"launch_s": 3e-5, "launch_ln_std": 0.1, "source": "fitted", "overlap_exponent": 12.0},
        "completion": "eager-pytorch-1",
        "groups": {
            "gemm": {"coefficients": {"math": 1.05, "epsilon_s": 3e-6}, "ln_std": {"math": 0.02}, "identified": {"math": True}, "rows": 7},
            "gemm.linear.bf16": {"coefficients": {"math": 0.94}, "ln_std": {}, "identified": {}, "rows": 0},
        },
        "latency_parameters": {"names": ["gemm.math", "gemm.epsilon_s"], "covariance": [[0.04, 0.01], [0.01, 0.09]]},
        "power": {
            "reference_clock_mhz": 900.0,
            "reference_voltage_v": 0.694,
            "voltage_exponent": 3.0,
            "capacitance_f": {"tensor": 2.3e-7},
            "capacitance_std_f": {"tensor": 1e-8},
            "event_energy_j": {"tensor": 6.8e-13, "dram": 4.6e-11},
            "busy_w": 20.0,
            "busy_std_w": None,
            "active_w": 4.4,
            "active_std_w": 1.0,
            "terms": ["tensor"],
            "covariance": [[1e-26]],
            "rows": 7,
            "leakage_w_per_k": 0.16,
            "leakage_std_w_per_k": 0.02,
            "operating_c": 38.5,
            "operating_k_per_w": 0.08,
        },
        "voltage": {"sm_clock_mhz": [210.0, 1410.0], "value": [0.69375, 0.89375], "source": "table"},
        "idle": {"sm_clock_mhz": [210.0, 1410.0], "value": [44.5, 67.3], "source": "table"},
        "tile_predictors": {
            "gemm": {"kind": "choice", "tile_m": [64, 128], "tile_n": [64, 128], "split": [1, 1], "liking": [0.0, 0.5], "sharpness": 15.0}
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


def signed(document):
    return {**document, "digest": digest_of(document)}


def written(tmp_path, document, name="b.json"):
    path = tmp_path / name
    path.write_text(json.dumps(signed(document)), encoding="utf-8")
    return path


def changed(keys, value):
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


def refused(path, message):
    """Loading fails in one line that names the file and says `message`."""
    with pytest.raises(BundleError, match=message) as caught:
        load_bundle(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)

"""A bundle, a workload, and the command run on them."""

from dataclasses import replace

from estimator.bundle.content import Bundle
from estimator.cli import main
from estimator.model.power_limit import UNLIMITED_W
from estimator.vocabulary.specifications import document_of_gpu, load_gpu

MATRIX = {"math": 1.05, "l2": 1.0, "dram": 1.06, "loop": 1.0, "prologue": 1.0, "epilogue": 1.06, "exponent": 1.5, "epsilon_s": 3e-6}
STREAM = {"dram": 1.06, "l2": 1.0, "issue": 1.0, "exponent": 2.0, "epsilon_s": 3e-6}
FUSED = {"math": 1.5, "sfu": 0.5, "dram": 1.1, "waves": 1.0, "rows": 1.0, "exponent": 1.0, "epsilon_s": 5e-6}
GROUPS = {
    "gemm": MATRIX, "conv": MATRIX, "attention": FUSED, "softmax": STREAM, "norm": STREAM,
    "reduction": STREAM, "elementwise": STREAM, "copy": STREAM,
}  # fmt: skip

OPERATORS = [
    {"family": "gemm", "operator": "linear", "precision": "bf16", "count": 24, "batch": 1, "m": 4096, "n": 4096, "k": 1024},
    {"family": "softmax", "operator": "softmax", "precision": "bf16", "count": 24, "rows": 65536, "dim": 512},
    {"family": "elementwise", "operator": "gelu", "precision": "bf16", "count": 24, "elements": 16777216, "reads": 16777216},
]


def bundle_document(**changes) -> dict:
    document = {
        "format": "wattprint-bundle", "format_version": "1.0", "name": "test", "version": "0.1.0", "digest": "",
        "gpu": {"name": "a100-pcie-40gb", "uuid": "", "specification": document_of_gpu(load_gpu("a100-pcie-40gb"))},
        "environment": {"simulated": "true"}, "sensor": None,
        "provenance": {"created_utc": "2026-01-01T00:00:00Z", "wattprint_version": "0.1.0", "commit": "", "seed": 0, "datasets": []},
        "host": {"launch_s": 3e-6, "launch_ln_std": 0.1, "source": "test", "overlap_exponent": 8.0},
        "completion": "eager-pytorch-1",
        "groups": {key: {"coefficients": values, "ln_std": {}, "identified": {}, "rows": 10} for key, values in GROUPS.items()},
        "latency_parameters": {"names": [], "covariance": []},
        "power": {
            "reference_clock_mhz": 900.0, "reference_voltage_v": 0.69375, "voltage_exponent": 3.0, "concavity": 1.0,
            "capacitance_f": {}, "capacitance_std_f": {}, "event_energy_j": {"tensor": 6.8e-13, "dram": 4.6e-11, "cuda": 5e-11},
            "busy_w": 20.0, "busy_std_w": None, "active_w": 4.4, "active_std_w": None, "terms": [], "covariance": [],
            "l2_credit": 0.25, "warm_knee": 0.8, "warm_sharpness": 4.0, "leakage_w_per_k": 0.0, "leakage_std_w_per_k": 0.0,
            "operating_c": 0.0, "operating_k_per_w": 0.0, "rows": 10,
        },
        "voltage": None, "idle": None, "tile_predictors": {}, "residuals": {},
        "uncertainty": {"latency": {"gpu": 0.05}, "power": {"gpu": 0.04}},
        "domain": {}, "clocks": [210.0, 1410.0], "errors": [], "instruction_energies": {}, "block_models": {}, "notes": [],
    }  # fmt: skip
    return {**document, **changes}


def unlimited(bundle: Bundle) -> Bundle:
    """The bundle for a board like its own that meets no power limit."""
    return replace(bundle, gpu=replace(bundle.gpu, power_limit_w=UNLIMITED_W))


def run(capsys, *arguments) -> tuple[int, str, str]:
    status = main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return status, printed.out, printed.err


def fails(capsys, *arguments, status: int = 1) -> str:
    """The command fails with one line on stderr, nothing on stdout."""
    found, out, err = run(capsys, *arguments)
    assert (found, out) == (status, "")
    assert err.count("\n") == 1
    return err

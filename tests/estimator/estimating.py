"""A bundle, a workload, and the command run on them."""

import csv
import io
import json
import shlex
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from typing import NamedTuple

from estimator import Asked, Variant
from estimator.cli import main
from estimator.model.power_limit import UNLIMITED_W
from tests.estimator.bundle_example import example

MATRIX = {"math": 1.05, "l2": 1.0, "dram": 1.06, "loop": 1.0, "prologue": 1.0, "epilogue": 1.06, "exponent": 1.5, "epsilon_s": 3e-6}
STREAM = {"dram": 1.06, "l2": 1.0, "issue": 1.0, "exponent": 2.0, "epsilon_s": 3e-6}
FUSED = {"math": 1.5, "sfu": 0.5, "dram": 1.1, "waves": 1.0, "rows": 1.0, "exponent": 1.0, "epsilon_s": 5e-6}
GROUPS = {
    "gemm": MATRIX, "conv": MATRIX, "attention": FUSED, "softmax": STREAM, "norm": STREAM,
    "reduction": STREAM, "elementwise": STREAM, "copy": STREAM,
}  # fmt: skip

OPERATORS = json.loads("""[
{"family": "gemm", "operator": "linear", "precision": "bf16", "count": 24, "batch": 1, "m": 4096, "n": 4096, "k": 1024},
{"family": "softmax", "operator": "softmax", "precision": "bf16", "count": 24, "rows": 65536, "dim": 512},
{"family": "elementwise", "operator": "gelu", "precision": "bf16", "count": 24, "elements": 16777216, "reads": 16777216}
]""")


def bundle_document(**changes):
    """Plain data of a bundle of a simulated board with rounded coefficients, for answers of the commands."""
    document = example()
    power = document["power"] | {
        "reference_voltage_v": 0.69375, "event_energy_j": {"tensor": 6.8e-13, "dram": 4.6e-11, "cuda": 5e-11},
        "active_std_w": None, "leakage_w_per_k": 0.0,
    }  # fmt: skip
    nothing = {
        "voltage": None,
        "idle": None,
        "sensor": None,
        "tile_predictors": {},
        "residuals": {},
        "domain": {},
        "errors": [],
        "notes": [],
    }
    return {
        **document, **nothing, "name": "test", "environment": {"simulated": "true"}, "power": power,
        "host": {"launch_s": 3e-6, "launch_ln_std": 0.1, "source": "test", "overlap_exponent": 8.0},
        "groups": {key: {"coefficients": values, "ln_std": {}, "identified": {}, "rows": 10} for key, values in GROUPS.items()},
        "latency_parameters": {"names": [], "covariance": []}, **changes,
    }  # fmt: skip


def unlimited(bundle):
    """The bundle for a board like its own that meets no power limit."""
    return replace(bundle, gpu=replace(bundle.gpu, power_limit_w=UNLIMITED_W))


def command_line(*parts):
    """Words of a command: a text is split as a shell splits it, a tuple holds parts, and anything else is a word."""
    found = []
    for part in parts:
        if isinstance(part, tuple):
            found += command_line(*part)
        else:
            found += shlex.split(part) if isinstance(part, str) and part else [str(part)]
    return found


class Outcome(NamedTuple):
    """Exit status of a command, and what it wrote to the two streams."""

    status: int
    out: str
    err: str


def run(*parts, program=main):
    """A command run in this process, `estimate` unless another program is named."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)]
    with redirect_stdout(streams[0]), redirect_stderr(streams[1]):
        status = program(command_line(*parts))
    outcome = Outcome(status, *(stream.buffer.getvalue().decode() for stream in streams))
    assert "Traceback" not in outcome.err
    return outcome


def fails(*parts, status=1, program=main):
    """The command fails with one line on stderr, nothing on stdout."""
    found = run(*parts, program=program)
    assert (found.status, found.out, found.err.count("\n")) == (status, "", 1), found
    return found.err


def printed(*parts):
    """What the command says with --json."""
    status, out, err = run(*parts, "--json")
    assert status in (0, 3), err
    return json.loads(out)


def tabled(*parts):
    """The rows that the command prints with --csv."""
    return list(csv.DictReader(io.StringIO(run(*parts, "--csv").out)))


def question(workload, bundle, **settings):
    """A question about a workload as it is."""
    return Asked(variant=Variant(workload=workload), bundle=bundle, **settings)

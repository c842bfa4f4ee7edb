"""Bundles with a right digest and a wrong value: every command refuses them in one line or answers as sanely as ever."""

import contextlib
import json
import math
import random
import re
from pathlib import Path

import pytest

import estimator.commands.estimate
import estimator.schema
import fitter.commands.fit
from estimator import BundleError, EstimatorError, load_bundle
from estimator.bundle.files import digest_of
from tests.estimator import estimating
from tests.estimator.bundle_example import VALIDATOR
from tests.fuzz.mutate import mutated_value

REPOSITORY = Path(__file__).resolve().parents[1]
GOLDEN = sorted((REPOSITORY / "tests" / "golden" / "bundles").glob("*.json"))
WORKLOAD = REPOSITORY / "examples" / "llama-8b-decode.json"

SAMPLE = 220
"""Mutations in a run: about 8 s."""

ROWS = """family,operator,gpu,precision,batch,m,n,k,latency_s
gemm,linear,a100-pcie-40gb,bf16,1,512,1024,512,7.3e-06
gemm,linear,a100-pcie-40gb,bf16,1,1024,1024,512,9.3e-06
gemm,linear,a100-pcie-40gb,bf16,1,2048,1024,512,1.3e-05
"""

NO_NUMBER = re.compile(r"(?<![\w\"])-?(nan|inf)(inity)?(?![\w\"])", re.IGNORECASE)
"""A number that is none, as programs write it; texts of a bundle stand in quotes."""


def run(command, *words):
    """Exit status and stdout; a refusal is one line and nothing else."""
    found = estimating.run(*words, program=command)
    assert found.status in (0, 1, 3), (words, found)
    assert found.status != 1 or (found.out, found.err.count("\n")) == ("", 1), found.err
    return found[:2]


def numbers(value):
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from numbers(item)
    elif isinstance(value, float):
        yield value


def check_answer(text):
    """An estimate is of positive, finite time, power and energy, with deviations that are known or null."""
    answer = json.loads(text)
    for quantity in ("latency_s", "power_w", "energy_j"):
        for part in (answer, *answer["kernels"]):
            assert part[quantity] is None or (math.isfinite(part[quantity]) and part[quantity] > 0), (quantity, part)
    assert answer["latency_s"] is not None
    assert all(math.isfinite(number) and number >= 0 for number in numbers(answer))


def check_commands(path, changed, rows):
    name = str(changed)
    status, out = run(estimator.commands.estimate.run, str(WORKLOAD), "--bundle", name, "--json", "--kernels", "all")
    if status != 1:
        check_answer(out)
    for words in (["show", name], ["show", name, "--json"], ["diff", str(path), name, "--json"], ["check", name, str(rows), "--json"]):
        status, out = run(fitter.commands.fit.run, *words)
        assert not NO_NUMBER.search(out), out
        if status != 1 and "--json" in words:
            json.loads(out)


@pytest.mark.parametrize("part", range(4))
def test_a_changed_bundle_is_refused_in_one_line_or_answers_sanely(part, tmp_path):
    (rows := tmp_path / "rows.csv").write_text(ROWS)
    chance, changed = random.Random(part), tmp_path / "changed.json"
    for _ in range(SAMPLE // 4):
        path = chance.choice(GOLDEN)
        document = mutated_value(json.loads(path.read_text()), chance)
        with contextlib.suppress(EstimatorError):  # a number that JSON cannot hold: the digest is wrong
            document["digest"] = digest_of(document)
        changed.write_text(json.dumps(document))
        try:
            load_bundle(changed)
        except BundleError:
            assert run(estimator.commands.estimate.run, str(WORKLOAD), "--bundle", str(changed))[0] == 1
        else:
            assert not [error.message for error in VALIDATOR.iter_errors(document)], "the schema refuses what is read"
            check_commands(path, changed, rows)

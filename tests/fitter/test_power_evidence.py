"""What `fit` says of runs of which few or none have an energy, and how wide the power of such a bundle is."""

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from estimator.bundle.files import load_bundle
from estimator.questions.estimates import estimate
from estimator.vocabulary.specifications import load_gpu
from fitter.bundle.calibration import calibrate, few_power_warnings
from fitter.cli import main
from fitter.rows.selection import read_selection
from tests.estimator.synthetic import transformer
from tests.fitter.measured import kernel_rows, planted_bundle, selection_of, various_operators

RUNS = 12
NONE = "no row has an energy: the bundle has no power"

OF_ONE_ROW = 0.2
"""One run knows the power of other models no better than this [relative]."""


def table(folder: Path, shared_data: Path, energies: Sequence[str | None]) -> Path:
    """The first runs of the A10, the energy of each as given; None: as measured."""
    source = shared_data / "energaizer" / "a10_900mhz.csv"
    with source.open(newline="") as stream:
        rows = list(csv.DictReader(stream))[: len(energies)]
    for row, energy in zip(rows, energies, strict=True):
        row["workload"] = str(source.parent / row["workload"])
        row["energy_j"] = row["energy_j"] if energy is None else energy
    path = folder / "runs.csv"
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def fit(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    status = main([str(word) for word in words])
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return status, said.out, said.err


def test_runs_without_any_energy_are_said_to_have_given_no_power(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, shared_data: Path
) -> None:
    path = table(tmp_path, shared_data, [""] * RUNS)
    status, out, err = fit(capsys, path, "-o", tmp_path / "b.json", "--holdout", 0)
    assert status == 3
    assert f"{RUNS} of {RUNS} rows used, {RUNS} of them for their latency alone" in out
    assert f"warning: {NONE}" in err
    assert load_bundle(tmp_path / "b.json").power is None


def test_counts_add_up_where_energies_cannot_be(capsys: pytest.CaptureFixture[str], tmp_path: Path, shared_data: Path) -> None:
    path = table(tmp_path, shared_data, ["0", "[N/A]", "0", *[None] * (RUNS - 3)])
    said = json.loads(fit(capsys, path, "-o", tmp_path / "b.json", "--holdout", 0, "--json")[1])
    assert (said["rows"], said["used"], said["rejected"]) == (RUNS, RUNS, {})
    assert (said["rejected_power_only"], said["used_latency_only"]) == ({"BAD_POWER": 3}, 3)
    bundle = load_bundle(tmp_path / "b.json")
    (record,) = bundle.provenance.datasets
    assert (record.rows, record.used, dict(record.rejected)) == (RUNS, RUNS, {})
    checked = json.loads(fit(capsys, "check", tmp_path / "b.json", path, "--json")[1])
    assert checked["rows"] == checked["used"] + sum(checked["rejected"].values())


def test_fewer_energies_never_give_a_narrower_power(tmp_path: Path, shared_data: Path) -> None:
    spreads = []
    for count in (1, 3, 9):
        path = table(tmp_path, shared_data, [None if i < count else "" for i in range(RUNS)])
        found = calibrate(read_selection([path]), load_gpu("a10"), holdout=0.2)
        answer = estimate(transformer(512, 768, 12, name="new", family="new"), found.bundle)[0]
        assert answer.power_w_std is not None
        spreads.append(answer.power_w_std / answer.power_w)
        rests = [line for line in found.warnings if line.startswith("power rests on ")]
        words = {1: "1 rows:", 3: "3 rows:"}
        assert [words[count] in line for line in rests] == ([True] if count in words else [])
    assert spreads[0] > spreads[1] > spreads[2]
    assert spreads[0] > OF_ONE_ROW


def test_tables_of_kernel_latencies_alone_are_no_cause_for_a_warning() -> None:
    rows = kernel_rows(planted_bundle(), various_operators(4))
    silent = selection_of(replace(rows, power_w=np.full(len(rows), np.nan)))
    assert few_power_warnings(silent, replace(planted_bundle(), power=None)) == ()

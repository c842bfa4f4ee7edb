"""The command `fit` from the outside: output, exit status, files that appear whole or not at all."""

import json
import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from estimator import load_bundle
from fitter.cli import main
from fitter.report.page import next_lines, show_lines
from tests.estimator import estimating
from tests.fitter.measured import PLANTED, saved
from tests.processes import PYTHON, ended

HEADER = "family,operator,gpu,precision,rows,dim,latency_s"


run, fails = (partial(command, program=main) for command in (estimating.run, estimating.fails))


@pytest.fixture(scope="module")
def runs_csv(shared_data):
    """Whole-model runs of the A10: one of them failed."""
    return shared_data / "energaizer" / "a10_900mhz.csv"


@pytest.fixture(scope="module")
def fitted(runs_csv, tmp_path_factory):
    """A folder with a bundle fitted from the runs, and what `--json` said."""
    folder = tmp_path_factory.mktemp("fit")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        found = run(runs_csv, "-o", folder / "b.json", "--json --quiet")
    assert found.status == 0
    return folder, json.loads(found.out)


def small_table(folder, rows=60, gpu="a100-pcie-40gb"):
    """A clean kernel table of softmax kernels at 80 % of the published bandwidth."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(rows):
        count, dim = int(rng.integers(1_000, 100_000)), int(rng.integers(128, 1024))
        seconds = 4e-6 + 8.0 * count * dim / (0.8 * 1.555e12)
        lines.append(f"softmax,softmax,{gpu},fp32,{count},{dim},{seconds!r}")
    path = folder / "table.csv"
    path.write_text("\n".join([HEADER, *lines]) + "\n")
    return path


def test_a_fit_writes_a_bundle_and_one_json_document_and_a_check_knows_its_data(fitted, runs_csv):
    folder, document = fitted
    bundle = load_bundle(folder / "b.json")
    assert (document["digest"], document["name"], document["gpu"]) == (bundle.digest, "a10", "a10")
    assert (document["rows"], document["used"], document["rejected"]) == (49, 48, {"TRUNCATED_RUN": 1})
    assert document["startup"][0]["startup_s"] == pytest.approx(1.125, abs=0.055)
    (row,) = document["errors"]
    assert row["n"] == 48
    assert row["latency"]["mape"] < 8
    assert row["power"]["mape"] < 6
    assert bundle.provenance.created_utc == "2023-11-14T22:13:20Z"
    assert bundle.provenance.datasets[0].rejected == {"TRUNCATED_RUN": 1}
    assert bundle.errors[0]["family"] == "workload"
    assert bundle.domain["gemm"]["m"][0] >= 1
    assert [path.name for path in folder.iterdir()] == ["b.json"]
    found = run("check", folder / "b.json", runs_csv, "-v")
    assert found.status == 0
    assert "48 of 49 rows used" in found.out
    assert "a10 workload model bf16" in found.out
    assert "this very data" in found.err
    assert "a10_900mhz.csv row 44: TRUNCATED_RUN" in found.err


def test_two_fits_of_the_same_data_have_one_digest_whenever_and_wherever_they_ran(tmp_path):
    digests = []
    for day, place in ((1_700_000_000, "one"), (1_800_000_000, "other")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SOURCE_DATE_EPOCH", str(day))
            run(small_table(tmp_path / place), "-o", tmp_path / f"{day}.json")
        digests.append(load_bundle(tmp_path / f"{day}.json").digest)
    assert digests[0] == digests[1]


@pytest.mark.parametrize("named", ["d.parquet", "d.parquet.log.jsonl", ".", "deep"])
def test_the_log_of_an_unfinished_campaign_is_refused(tmp_path, named):
    """Its log alone, named or not, beside a whole data set, in a folder."""
    place = tmp_path / "deep" / "deeper" if named == "deep" else tmp_path
    table = small_table(place)
    (place / "d.parquet.log.jsonl").write_text("")
    for _ in range(2):
        assert "d.parquet.log.jsonl: its campaign did not finish" in fails(tmp_path / named, "-o", tmp_path / "b.json")
        shutil.copy(table, place / "d.parquet")
    assert not (tmp_path / "b.json").exists()


def test_a_rejected_row_is_told_and_counts_only_if_strict(tmp_path):
    table, out = small_table(tmp_path), tmp_path / "b.json"
    other = small_table(tmp_path / "v", gpu="a100-sxm-80gb").read_text().splitlines()[1:]
    table.write_text(table.read_text() + "\n".join(other) + "\n")
    found = run(table, "-o", out, "--report", tmp_path / "r.html", "--gpu a100-pcie-40gb --name mine --json")
    document = json.loads(found.out)
    assert (found.status, document["name"]) == (0, "mine")
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
    free = "table.csv: no clocks recorded; boards left free run at their highest clock, or where the power limit holds them"
    assert found.err == f"note: {free}\n"
    assert document["notes"] == [free] == json.loads(run("show", out, "--json").out)["notes"]
    assert (document["rows"], document["used"], document["rejected"]) == (120, 60, {"OTHER_GPU": 60})
    assert document["errors"][0]["latency"]["mape"] < 5
    assert document["errors"][0]["power"] is None
    table.write_text(table.read_text().replace("fp32", "fp99", 1))
    found, strict = (run(table, "-o", out, "--force --holdout 0 --gpu a100-pcie-40gb", words) for words in ((), "--strict"))
    assert (found.status, strict.status) == (0, 3)
    assert "warning: 1 rows, or their power alone, were rejected; -v names them" in found.err


def test_power_that_the_data_do_not_hold_is_told_by_fit_and_by_every_estimate(tmp_path):
    """Under another name: the fit then takes the power of the nearest bundle."""
    table, bundle, workload = small_table(tmp_path), tmp_path / "b.json", tmp_path / "w.json"
    head, *rows = table.read_text().split()
    powered = [f"{row},1410,{100_000 + i}" for i, row in enumerate(rows)]
    table.write_text("\n".join([f"{head},sm_clock_mhz,power_mw", *powered]) + "\n")
    found = run(table, "-o", bundle, "--holdout 0")
    lent = "power as on a100-pcie-40gb-eager, not in the data of this fit: an indication"
    assert found.status == 0
    assert lent in found.err
    assert "table.csv: column 'power_mw' is not read" in found.err
    kernel = {"family": "softmax", "operator": "softmax", "precision": "fp32", "rows": 2000, "dim": 512, "count": 1}
    workload.write_text(json.dumps({"format": "wattprint-workload", "format_version": "1.0", "name": "w", "operators": [kernel]}))
    answer = json.loads(estimating.run(workload, "--bundle", bundle, "--freq 1410 --json").out)
    assert lent in answer["notes"]


def test_special_files_are_refused_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("fitter.rows.selection.read_selection", lambda *_: pytest.fail("read"))
    table = small_table(tmp_path)
    for arguments, message in (
        ("/", "the root of all files"),
        ((table, "-o /dev/null"), "it is a device"),
        ((table, "-o", table), "reads"),
        ((table, "-o", tmp_path / "x", "--report", tmp_path / "x"), ""),
    ):
        assert message in fails(arguments)
    assert table.read_text().startswith(HEADER)


def test_names_with_control_characters_take_over_no_terminal(tmp_path):
    table = small_table(tmp_path).rename(tmp_path / "\x1b[31mr\ned\u202e.csv")
    table.write_text(table.read_text().replace("fp32", "fp99", 1))
    found = run(table, "-o", tmp_path / "b.json", "-v --holdout 0")
    for text in (found.out, found.err, run("show", tmp_path / "b.json").out, run("show", tmp_path / "b.json", "--json").out):
        assert "ed" in text
        assert all(character.isprintable() for character in text.replace("\n", ""))


def test_show_diff_and_release_take_whole_bundles_alone(fitted, tmp_path):
    """Runs of whole models hold eager attention: the coefficients of fused kernels are constants, set by no row."""
    folder, document = fitted
    other = saved(PLANTED, tmp_path)
    lines = run("show", folder / "b.json").out.splitlines()
    assert f"Digest: {document['digest']}" in lines
    assert "Times of laboratories: a10_900mhz.csv × 1.000" in lines
    groups = {line.split()[0] for line in lines if " constant " in line or " data " in line}
    assert "gemm" in groups
    assert "attention.prefill" not in groups
    assert lines[-1].startswith("at their priors, no row in the data")
    assert "attention.prefill" in lines[-1]
    assert any("µs per framework operator (fitted)" in line for line in lines)
    shown = json.loads(run("show", folder / "b.json", "--json").out)
    assert shown["digest"] == document["digest"]
    assert shown["groups"]["gemm"]["ln_std"]["math"] > 0
    assert "residuals" not in shown
    assert "changes: –" in run("diff", other, other).out
    assert "another GPU" in run("diff", other, folder / "b.json").out
    assert json.loads(run("diff", other, folder / "b.json", "--json").out)["changes"]
    released = json.loads(run("release", other, "--version 1.0.0 --note 'First release.' --json").out)
    assert load_bundle(released["bundle"]).version == "1.0.0"
    assert "First release." in Path(released["changelog"]).read_text()
    for refused in (("release", other, "--version 1.0"), ("release", other, "--version 1.0.0"), ("show", tmp_path / "none.json")):
        fails(refused)


def test_the_next_step_fits_the_data_of_a_bundle():
    bare = replace(PLANTED, groups={key: replace(group, rows=0, identified={}) for key, group in PLANTED.groups.items()}, power=None)
    assert "Latency coefficients" not in show_lines(bare)
    assert next_lines(PLANTED, "b.json") == ["next: estimate WORKLOAD.json --bundle b.json"]
    assert next_lines(replace(bare, instruction_energies={"terms": []}), "b.json") == ["next: estimate counts COUNTS --bundle b.json"]
    assert next_lines(replace(bare, block_models={"stencil": {}}), "b.json") == ["next: estimate blocks --bundle b.json"]
    assert next_lines(replace(bare, instruction_energies={"links": {}}), "b.json") == ["next: fit show b.json"]


BAD = {
    "columns.csv": "time,volts\n1,2\n",
    "nan.csv": f"{HEADER}\nsoftmax,softmax,a10,fp32,8,8,nan\n",
    "field.csv": f"{HEADER}\n{'x' * 10_000_000},softmax,a10,fp32,8,8,1e-3\n",
}


@pytest.mark.parametrize("name", [*BAD, "missing"])
def test_bad_input_is_one_clear_line_and_nothing_is_written(tmp_path, name):
    if name in BAD:
        (tmp_path / name).write_text(BAD[name])
    line = fails(tmp_path / name, "-o", tmp_path / "out.json", "--report", tmp_path / "out.html")
    assert line.startswith("fit: ")
    assert len(line) < 1200
    assert name in line or "GPU" in line
    assert {path.name for path in tmp_path.iterdir()} <= {name}


@pytest.mark.parametrize(
    "words",
    [
        (),
        "a.csv --holdout 0.6",
        "a.csv --holdout nan",
        "a.csv --seed -1",
        "a.csv --what",
        "check b.json",
        "diff a",
        "a --anchor b --anchor c",
    ],
)
def test_wrong_usage_is_status_two(words):
    assert "--help" in fails(words, status=2)


@pytest.mark.parametrize("asked, given", [({}, "1"), ({"OPENBLAS_NUM_THREADS": "2"}, "2")])
def test_linear_algebra_has_one_thread_unless_the_environment_says_otherwise(asked, given):
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in names} | asked
    code = (
        "import os, sys, fitter.cli; early = 'numpy' in sys.modules; fitter.cli.main(['show', 'a10-eager', '--json']); "
        "print(early, os.environ['OPENBLAS_NUM_THREADS'], file=sys.stderr)"
    )
    assert ended(*PYTHON, code, env=environment).stderr.split() == ["False", given]

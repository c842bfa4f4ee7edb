"""The command `fit` from the outside: output, exit status, files that appear whole or not at all."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from estimator.bundle.files import load_bundle
from fitter.cli import main
from fitter.report.text import next_lines, show_lines
from tests.fitter.measured import planted_bundle, saved

HEADER = "family,operator,gpu,precision,rows,dim,latency_s"


class Outcome(NamedTuple):
    """Exit status and what was written to the two streams."""

    status: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `fit` with arguments."""

    def runner(*arguments: object) -> Outcome:
        status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Outcome(status, captured.out, captured.err)

    return runner


@pytest.fixture(scope="module")
def runs_csv(shared_data: Path) -> Path:
    """Whole-model runs of the A10: one of them failed."""
    return shared_data / "energaizer" / "a10_900mhz.csv"


@pytest.fixture(scope="module")
def fitted(runs_csv: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder with a bundle and a report fitted from the runs, and what `--json` said."""
    folder = tmp_path_factory.mktemp("fit")
    out = folder / "said.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        with out.open("w") as stream, pytest.MonkeyPatch.context() as inner:
            inner.setattr("sys.stdout", stream)
            status = main([str(runs_csv), "-o", str(folder / "b.json"), "--report", str(folder / "r.html"), "--json", "--quiet"])
    assert status == 3
    return folder, json.loads(out.read_text())


def small_table(folder: Path, rows: int = 60, gpu: str = "a100-pcie-40gb") -> Path:
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


def test_a_fit_writes_a_bundle_a_report_and_one_json_document(fitted: tuple[Path, dict[str, Any]]) -> None:
    folder, said = fitted
    bundle = load_bundle(folder / "b.json")
    assert (said["digest"], said["name"], said["gpu"]) == (bundle.digest, "a10", "a10")
    assert (said["rows"], said["used"], said["rejected"]) == (49, 48, {"TRUNCATED_RUN": 1})
    assert said["startup"][0]["startup_s"] == pytest.approx(1.125, abs=0.055)
    (row,) = said["errors"]
    assert row["n"] == 48
    assert row["latency"]["mape"] < 8
    assert row["power"]["mape"] < 6
    assert bundle.provenance.created_utc == "2023-11-14T22:13:20Z"
    assert bundle.provenance.datasets[0].rejected == {"TRUNCATED_RUN": 1}
    assert bundle.errors[0]["family"] == "workload"
    assert bundle.domain["gemm"]["m"][0] >= 1
    assert (folder / "r.html").read_text().startswith("<!doctype html>")
    assert sorted(path.name for path in folder.iterdir()) == ["b.json", "r.html", "said.json"]


def test_the_same_data_and_seed_give_the_same_bytes(fitted: tuple[Path, dict[str, Any]], run: Run, runs_csv: Path, tmp_path: Path) -> None:
    folder, _ = fitted
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        run(runs_csv, "-o", tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (folder / "b.json").read_bytes()


def test_two_fits_of_the_same_data_have_one_digest_whenever_and_wherever_they_ran(run: Run, tmp_path: Path) -> None:
    first = small_table(tmp_path / "one")
    other = small_table(tmp_path / "other")
    digests = []
    for day, data in ((1_700_000_000, first), (1_800_000_000, other)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SOURCE_DATE_EPOCH", str(day))
            run(data, "-o", tmp_path / f"{day}.json")
        digests.append(load_bundle(tmp_path / f"{day}.json").digest)
    assert digests[0] == digests[1]


@pytest.mark.parametrize("named", ["d.parquet", "d.parquet.log.jsonl", ".", "deep"])
def test_a_campaign_that_did_not_finish_is_not_passed_over(run: Run, tmp_path: Path, named: str) -> None:
    """Its log alone, named or not, beside a whole data set, in a folder."""
    place = tmp_path / "deep" / "deeper" if named == "deep" else tmp_path
    table = small_table(place)
    (place / "d.parquet.log.jsonl").write_text("")
    for _ in range(2):
        found = run(tmp_path / named, "-o", tmp_path / "b.json")
        assert found.status == 1
        assert found.err.count("\n") == 1
        assert "d.parquet.log.jsonl: its campaign did not finish" in found.err
        assert "--resume" in found.err
        shutil.copy(table, place / "d.parquet")
    assert not (tmp_path / "b.json").exists()


def test_what_a_fit_says_names_rejections_errors_and_the_next_command(run: Run, runs_csv: Path, tmp_path: Path) -> None:
    found = run(runs_csv, "-o", tmp_path / "b.json", "--holdout", "0.5", "-v")
    assert found.status == 3
    assert "48 of 49 rows used" in found.out
    assert "TRUNCATED_RUN" in found.out
    assert f"estimate WORKLOAD.json --bundle {tmp_path / 'b.json'}" in found.out
    assert "a10_900mhz.csv row 44: TRUNCATED_RUN" in found.err


def test_a_clean_kernel_table_ends_with_status_zero(run: Run, tmp_path: Path) -> None:
    found = run(small_table(tmp_path), "-o", tmp_path / "b.json", "--name", "mine", "--json")
    assert found.status == 0
    said = json.loads(found.out)
    assert found.err == "".join(f"note: {note}\n" for note in said["notes"])
    assert said["notes"][0].startswith("from priors, not from data: gemm, ")
    assert said["notes"][1:] == ["table.csv: no clocks recorded; the clock for which the vendor quotes peak rates is assumed"]
    assert said["notes"] == json.loads(run("show", tmp_path / "b.json", "--json").out)["notes"]
    assert said["name"] == "mine"
    assert said["errors"][0]["latency"]["mape"] < 5
    assert said["errors"][0]["power"] is None


def test_rows_of_other_gpus_that_one_asked_to_leave_out_are_no_warning(run: Run, tmp_path: Path) -> None:
    table = small_table(tmp_path)
    other = small_table(tmp_path / "v", gpu="a100-sxm-80gb").read_text().splitlines()[1:]
    table.write_text(table.read_text() + "\n".join(other) + "\n")
    found = run(table, "-o", tmp_path / "b.json", "--gpu", "a100-pcie-40gb", "--json")
    assert found.status == 0
    assert "warning" not in found.err
    said = json.loads(found.out)
    assert (said["rows"], said["used"], said["rejected"]) == (120, 60, {"OTHER_GPU": 60})
    table.write_text(table.read_text().replace("fp32", "fp99", 1))
    found = run(table, "-o", tmp_path / "b.json", "--force", "--gpu", "a100-pcie-40gb")
    assert found.status == 3
    assert "warning: 1 row was rejected; -v names it" in found.err


def test_what_a_table_cannot_be_is_said_before_anything_is_read(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fitter.rows.selection.read_selection", lambda *_: pytest.fail("read"))
    os.mkfifo(tmp_path / "pipe")
    table = small_table(tmp_path)
    for arguments, said in (
        ((tmp_path / "pipe",), "is a pipe, not a file; write what it holds to a file and name that"),
        (("/dev/zero",), "is a device, not a file"),
        (("/",), "the root of all files"),
        ((table, "-o", tmp_path / "pipe"), "it is a pipe"),
        ((table, "-o", "/dev/null"), "it is a device"),
    ):
        found = run(*arguments)
        assert found.status == 1
        assert said in found.err
        assert found.err.count("\n") == 1


def test_names_with_control_characters_take_over_no_terminal_and_no_page(run: Run, tmp_path: Path) -> None:
    table = small_table(tmp_path).rename(tmp_path / "\x1b[31mr\ned\u202e.csv")
    table.write_text(table.read_text().replace("fp32", "fp99", 1))
    found = run(table, "-o", tmp_path / "b.json", "--report", tmp_path / "r.html", "-v")
    shown = run("show", tmp_path / "b.json")
    for text in (found.out, found.err, shown.out, (tmp_path / "r.html").read_text()):
        assert "?[31mr" in text
        assert "ed?.csv" in text
        assert all(character.isprintable() for character in text.replace("\n", ""))


def test_check_compares_a_bundle_with_data(fitted: tuple[Path, dict[str, Any]], run: Run, shared_data: Path) -> None:
    folder, _ = fitted
    found = run("check", folder / "b.json", shared_data / "energaizer" / "a10_900mhz.csv", "--json")
    said = json.loads(found.out)
    assert found.status == 3
    assert (said["rows"], said["rejected"]) == (49, {"TRUNCATED_RUN": 1})
    assert {"gpu", "family", "operator", "precision", "n", "latency", "power", "coverage"} == set(said["errors"][0])
    assert any("this very data" in warning for warning in said["warnings"])
    text = run("check", folder / "b.json", shared_data / "energaizer" / "a10_900mhz.csv")
    assert "a10 workload model bf16" in text.out


def test_show_and_diff_speak_to_people_and_programs(fitted: tuple[Path, dict[str, Any]], run: Run, tmp_path: Path) -> None:
    folder, said = fitted
    other = saved(planted_bundle(), tmp_path)
    assert said["digest"] in run("show", folder / "b.json").out
    shown = json.loads(run("show", folder / "b.json", "--json").out)
    assert shown["digest"] == said["digest"]
    assert shown["groups"]["gemm"]["math"]["std"] > 0
    assert "another GPU" in run("diff", other, folder / "b.json").out
    assert "no coefficient changed" in run("diff", other, other).out
    assert json.loads(run("diff", other, folder / "b.json", "--json").out)["changes"]


def test_what_show_says_of_constants_priors_and_the_host_is_told_apart(fitted: tuple[Path, dict[str, Any]], run: Run) -> None:
    """Runs of whole models hold eager attention: the coefficients of fused kernels are constants, and no row's."""
    folder, _ = fitted
    lines = run("show", folder / "b.json").out.splitlines()
    groups = {line.split()[0] for line in lines if " constant " in line or " data " in line}
    assert "gemm" in groups
    assert "attention.prefill" not in groups
    assert lines[-1].startswith("at their priors, no row in the data")
    assert "attention.prefill" in lines[-1]
    assert any(line.endswith("µs (fitted)") for line in lines)


def test_what_has_no_row_is_one_last_line_of_a_bundle_and_the_next_step_fits_its_data() -> None:
    whole = planted_bundle()
    some = {key: replace(group, rows=rows, identified={}) for (key, group), rows in zip(whole.groups.items(), (5, 0, 0), strict=False)}
    lines = show_lines(replace(whole, groups=some))
    assert any(line.split()[:1] == [next(iter(some))] for line in lines)
    assert lines[-1].endswith(f": {', '.join(list(some)[1:])}")
    unfitted = {key: replace(group, rows=0, identified={}) for key, group in whole.groups.items()}
    bare = replace(whole, groups=unfitted, power=None)
    assert "Latency coefficients" not in show_lines(bare)
    assert next_lines(whole, "b.json") == ["next: estimate WORKLOAD.json --bundle b.json"]
    assert next_lines(replace(bare, instruction_energies={"terms": []}), "b.json") == ["next: estimate counts COUNTS --bundle b.json"]
    assert next_lines(replace(bare, block_models={"stencil": {}}), "b.json") == ["next: estimate blocks --bundle b.json"]
    assert next_lines(replace(bare, instruction_energies={"links": {}}), "b.json") == ["next: fit show b.json"]


def test_release_writes_a_new_file_and_leaves_the_old(fitted: tuple[Path, dict[str, Any]], run: Run, tmp_path: Path) -> None:
    folder, _ = fitted
    source = tmp_path / "b.json"
    shutil.copy(folder / "b.json", source)
    before = source.read_bytes()
    found = run("release", source, "--version", "1.0.0", "--note", "First release.", "--json")
    said = json.loads(found.out)
    assert found.status == 0
    assert load_bundle(said["bundle"]).version == "1.0.0"
    assert "First release." in Path(said["changelog"]).read_text()
    assert source.read_bytes() == before
    assert run("release", source, "--version", "1.0").status == 1
    assert run("release", source, "--version", "1.0.0").status == 1


def bad_inputs(folder: Path) -> dict[str, Path]:
    """Files that no fit can use, by what is wrong with them."""
    whole = folder / "whole.parquet"
    pq.write_table(pa.table({"operator": ["softmax"] * 500, "precision": ["fp32"] * 500, "latency_s": [1e-3] * 500}), whole)
    contents = {
        "empty": b"",
        "binary": bytes(range(256)) * 64,
        "truncated.parquet": whole.read_bytes()[:-200],
        "half.parquet": whole.read_bytes()[: whole.stat().st_size // 2],
        "magic.parquet": b"PAR1",
        "columns.csv": b"time,volts\n1,2\n",
        "ragged.csv": HEADER.encode() + b"\nsoftmax,softmax,a10,fp32,8,8,1e-3,9,9,9\n",
        "header.csv": HEADER.encode() + b"\n",
        "nan.csv": HEADER.encode() + b"\nsoftmax,softmax,a10,fp32,8,8,nan\n",
        "gpu.csv": HEADER.encode() + b"\nsoftmax,softmax,voodoo,fp32,8,8,1e-3\n",
        "huge.csv": HEADER.encode() + b"\nsoftmax,softmax,a10,fp32,1e400,8,1e-3\n",
        "formula.csv": HEADER.encode() + b"\n=cmd|' /C calc'!A0,softmax,a10,fp32,8,8,=1/0\n",
        "field.csv": HEADER.encode() + b"\n" + b"x" * 10_000_000 + b",softmax,a10,fp32,8,8,1e-3\n",
        "workload.csv": b"workload,gpu,latency_s\nnone.json,a10,1e-3\n../../../etc/passwd,a10,1e-3\n",
        "latin.csv": "workload,gpu,latency_s\nä.json,a10,1e-3\n".encode("latin-1"),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return {name: folder / name for name in contents} | {"missing": folder / "none.csv", "folder": folder / "nothing"}


def test_bad_input_is_one_clear_line_and_nothing_is_written(run: Run, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    for name, path in bad_inputs(tmp_path).items():
        out = tmp_path / "out.json"
        found = run(path, "-o", out, "--report", tmp_path / "out.html")
        assert found.status == 1, (name, found)
        assert found.out == "", name
        assert found.err.startswith("fit: "), (name, found.err)
        assert found.err.count("\n") == 1, (name, found.err)
        assert len(found.err) < 1200, (name, len(found.err))
        assert path.name in found.err or "GPU" in found.err, (name, found.err)
        assert not out.exists(), name
        assert not (tmp_path / "out.html").exists(), name
    assert not list(tmp_path.glob("*.part"))


def test_outputs_that_cannot_be_written_are_refused_before_the_work(run: Run, tmp_path: Path) -> None:
    table = small_table(tmp_path)
    unwritable = [Path("/proc/b.json")] if Path("/proc/self").is_dir() else []
    for out in (tmp_path / "no" / "b.json", tmp_path, table, *unwritable):
        found = run(table, "-o", out)
        assert found.status == 1
        assert found.err.count("\n") == 1
        assert found.out == "", "the fit was made first"
    assert all("/proc/b.json" in run(table, "-o", out).err for out in unwritable)
    assert table.read_text().startswith(HEADER)
    same = run(table, "-o", tmp_path / "x", "--report", tmp_path / "x")
    assert same.status == 1
    if os.geteuid() != 0:
        locked = tmp_path / "locked"
        locked.mkdir(mode=0o500)
        assert run(table, "-o", locked / "b.json").status == 1


def test_damaged_bundles_are_refused(run: Run, tmp_path: Path) -> None:
    bundle, table = saved(planted_bundle(), tmp_path), small_table(tmp_path)
    edited = tmp_path / "edited.json"
    edited.write_text(bundle.read_text().replace('"busy_w"', '"busy_W"'))
    cut = tmp_path / "cut.json"
    cut.write_text(bundle.read_text()[:500])
    for arguments in (("check", edited, table), ("check", cut, table), ("show", tmp_path / "none.json"), ("diff", bundle, cut)):
        found = run(*arguments)
        assert found.status == 1
        assert found.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("a.csv", "--holdout", "2"),
        ("a.csv", "--holdout", "nan"),
        ("a.csv", "--seed", "-1"),
        ("a.csv", "--what"),
        ("check", "b.json"),
        ("release", "b.json"),
        ("diff", "a"),
    ],
)
def test_wrong_usage_is_status_two(run: Run, arguments: tuple[str, ...]) -> None:
    found = run(*arguments)
    assert found.status == 2
    assert "--help" in found.err


@pytest.mark.parametrize("package", ["pyarrow"])
def test_a_missing_package_names_the_extra(package: str, tmp_path: Path) -> None:
    table = small_table(tmp_path)
    program = f"import sys; sys.modules[{package!r}] = None; from fitter.cli import main; sys.exit(main([{str(table)!r}]))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "install wattprint[fit]" in found.stderr
    assert found.stderr.count("\n") == 1


def test_a_changelog_never_replaces_a_bundle(run: Run, tmp_path: Path) -> None:
    bundle = saved(planted_bundle(), tmp_path)
    before = bundle.read_bytes()
    out = tmp_path / "new.json"
    for log in (out, bundle):
        found = run("release", bundle, "--version", "9.0.0", "-o", out, "--changelog", log)
        assert found.status == 1
        assert found.err.count("\n") == 1
        assert not out.exists()
    assert bundle.read_bytes() == before


@pytest.mark.parametrize(("asked", "given"), [({}, "1"), ({"OPENBLAS_NUM_THREADS": "2"}, "2")])
def test_linear_algebra_has_one_thread_unless_the_environment_says_otherwise(asked: dict[str, str], given: str) -> None:
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in names} | asked
    code = (
        "import os, sys, fitter.cli; early = 'numpy' in sys.modules; fitter.cli.main(['show', 'a10-eager', '--json']); "
        "print(early, os.environ['OPENBLAS_NUM_THREADS'], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr.split() == ["False", given]

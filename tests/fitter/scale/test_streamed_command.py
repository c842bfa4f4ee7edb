"""The command `fit` on data that are read in pieces: bundle, output, exit status, one line for what is wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from estimator.bundles.files import load_bundle
from fitter.cli import main
from tests.fitter.scale.generated import GROUPS, PHASES, TRUTH, design_arrow, design_columns, write_parts
from tests.fitter.scale.test_kernel_sample import kernel_table

GPU = "a100-pcie-40gb"


class Outcome(NamedTuple):
    """Exit status and what was written to the two streams."""

    status: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `fit` with arguments."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")

    def runner(*arguments: object) -> Outcome:
        status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Outcome(status, captured.out, captured.err)

    return runner


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A design table in three files."""
    return write_parts(design_arrow(*design_columns(3000)), tmp_path / "design", [1000, 1100])


def test_a_design_table_becomes_a_bundle_that_can_be_read(run: Run, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "b.json"
    done = run(folder, "--gpu", GPU, "-o", out, "--json")
    assert done.status == 0, done.err
    said, bundle = json.loads(done.out), load_bundle(str(out))
    assert (said["rows"], said["used"], said["files"], said["passes"], said["digest"]) == (3000, 3000, 3, 4, bundle.digest)
    (record,) = bundle.provenance.datasets
    assert (record.kind, record.rows, record.used) == ("design table", 3000, 3000)
    assert any("3,000 rows of 3 files streamed in 3 partitions, 4 passes" in note for note in bundle.notes)
    for number, name in enumerate(GROUPS):
        group = bundle.groups[name]
        values = [group.coefficients[phase.removesuffix("_s")] for phase in PHASES]
        np.testing.assert_allclose(values, TRUTH[number], rtol=0.05)
        assert group.coefficients["exponent"] == 1.0
        assert group.rows > 900
        assert set(group.ln_std) == {"math", "l2", "dram", "epsilon_s"}
        assert 0.02 < bundle.uncertainty["latency"]["groups"][name] < 0.04


def test_the_same_fit_gives_the_same_bytes(run: Run, folder: Path, tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        assert run(folder, "--gpu", GPU, "-o", tmp_path / name).status == 0
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_one_pass_reads_all_rows_once(run: Run, folder: Path, tmp_path: Path) -> None:
    done = run(folder, "--gpu", GPU, "-o", tmp_path / "b.json", "--one-pass", "--json")
    assert (done.status, json.loads(done.out)["passes"], json.loads(done.out)["errors"]) == (0, 1, [])


def test_rejected_rows_are_counted_and_change_the_status(run: Run, folder: Path, tmp_path: Path) -> None:
    bad = design_arrow(*design_columns(20)).set_column(1, "latency_s", pa.array([float("nan")] * 20))
    pq.write_table(bad, folder / "z.parquet")
    done = run(folder, "--gpu", GPU, "-o", tmp_path / "b.json")
    assert done.status == 3
    assert "20  BAD_LATENCY: latency missing" in done.out
    assert "warning: 20 rows rejected" in done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a known one with --gpu NAME"),
        (["--gpu", "abacus"], "name a known one with --gpu NAME"),
        (["--gpu", GPU, "--report", "r.html"], "--report needs rows"),
        (["--gpu", GPU, "--scheduler", "foo://127.0.0.1:9"], "--scheduler foo://127.0.0.1:9: no Dask scheduler answers there"),
    ],
)
def test_what_cannot_be_done_is_one_line(run: Run, folder: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    out = tmp_path / "b.json"
    done = run(folder, "-o", out, *[str(tmp_path / a) if a.endswith(".html") else a for a in arguments])
    assert (done.status, done.out, out.exists()) == (1, "", False)
    assert message in done.err
    assert done.err.count("\n") == 1


def test_a_damaged_part_is_named(run: Run, folder: Path, tmp_path: Path) -> None:
    (folder / "part-001.parquet").write_bytes(b"PAR1 and no more")
    done = run(folder, "--gpu", GPU, "-o", tmp_path / "b.json")
    assert done.status == 1
    assert "part-001.parquet: truncated, damaged or no Parquet file" in done.err


def test_streamed_kernels_give_a_whole_bundle_whatever_their_files(run: Run, tmp_path: Path) -> None:
    table = kernel_table(130)
    one, three = write_parts(table, tmp_path / "one" / "k", []), write_parts(table, tmp_path / "three" / "k", [40, 100])
    found = []
    for number, folder in enumerate((one, three)):
        done = run(folder, "--stream", "--json", "--holdout", "0", "-o", tmp_path / f"{number}.json")
        assert done.status == 3, done.err
        found.append((json.loads(done.out), load_bundle(str(tmp_path / f"{number}.json"))))
    (said, bundle), (other, again) = found
    assert said["rows"] == other["rows"] == 130
    assert said["rejected"] == other["rejected"]
    assert set(said["rejected"]) == {"ABOVE_ROOF", "BAD_LATENCY", "UNKNOWN_PRECISION"}
    assert {key: dict(group.coefficients) for key, group in bundle.groups.items()} == {
        key: dict(group.coefficients) for key, group in again.groups.items()
    }
    assert bundle.residuals == again.residuals
    assert any("130 rows of 3 files streamed in 3 partitions" in note for note in again.notes)


def test_what_holds_no_kernels_is_refused_as_ever(run: Run, tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1], "b": [2]}), tmp_path / "x.parquet")
    done = run(tmp_path / "x.parquet", "--stream", "-o", tmp_path / "b.json")
    assert done.status == 1
    assert "neither a kernel dataset of `collect`, nor a workload dataset" in done.err
    done = run(tmp_path.as_uri(), "-o", tmp_path / "b.json")
    assert done.status == 1
    assert "only these are streamed" in done.err


def test_the_same_data_twice_are_refused(run: Run, tmp_path: Path) -> None:
    pq.write_table(kernel_table(60), tmp_path / "k.parquet")
    done = run(tmp_path / "k.parquet", tmp_path / "k.parquet", "--stream", "-o", tmp_path / "b.json")
    assert (done.status, done.err.count("\n")) == (1, 1)
    assert "the same data as k.parquet; give every data set once" in done.err

"""The command `fit` on data that are read in pieces: bundle, output, exit status, one line for what is wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from estimator.bundle.files import load_bundle
from fitter.cli import main
from tests.fitter.scale.generated import write_parts
from tests.fitter.scale.test_kernel_sample import kernel_table


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
    """A kernel table in three files."""
    return write_parts(kernel_table(130), tmp_path / "kernels", [40, 100])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpu", "abacus"], "unknown GPU 'abacus'; known: "),
        (["--scheduler", "foo://127.0.0.1:9"], "--scheduler foo://127.0.0.1:9: no Dask scheduler answers there"),
    ],
)
def test_what_cannot_be_done_is_one_line(run: Run, folder: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    out = tmp_path / "b.json"
    done = run(folder, "--stream", "-o", out, *arguments)
    assert (done.status, done.out, out.exists()) == (1, "", False)
    assert message in done.err
    assert done.err.count("\n") == 1


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

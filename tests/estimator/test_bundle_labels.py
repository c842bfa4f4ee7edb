"""Bundles of one name and version beside each other are told apart."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from estimator import load_bundle, sweep
from estimator.bundle.content import Bundle
from estimator.bundle.files import SHOWN_DIGITS, save_bundle, told_apart
from estimator.cli import main
from estimator.formats import write_workload
from tests.estimator.synthetic import transformer

A100 = load_bundle("a100-pcie-40gb-eager")
WORK = transformer(1024, 512, 4)


@pytest.fixture
def twins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Bundle]:
    """Two bundles of one name and version whose host differs, kept as a.json and b.json of the present folder, beside w.json."""
    monkeypatch.chdir(tmp_path)
    write_workload(WORK, tmp_path / "w.json")
    slower = replace(A100, host=replace(A100.host, launch_s=2.0 * A100.host.launch_s))
    return [save_bundle(replace(one, digest=""), tmp_path / f"{name}.json") for name, one in (("a", A100), ("b", slower))]


@pytest.mark.usefixtures("twins")
def test_commands_show_the_files_of_bundles_of_one_name(capsys: pytest.CaptureFixture[str]) -> None:
    both = ["w.json", "--bundle", "a.json", "--bundle", "b.json", "--freqs", "900", "-q"]
    for command in ("compare", "sweep"):
        assert main([command, *both]) in (0, 3)
        text = capsys.readouterr().out
        assert text.count(f"{A100.name} {A100.version} (a.json)") == text.count(f"{A100.name} {A100.version} (b.json)") == 1
        assert main([command, *both, "--csv"]) in (0, 3)
        rows = capsys.readouterr().out
        lines = list(csv.DictReader(io.StringIO(rows))) if command == "sweep" else []
        assert "(a.json)" in rows
        assert "(b.json)" in rows
        assert [row["bundle"][-8:] for row in lines] == (["(a.json)", "(b.json)"] if lines else [])


def test_from_python_the_digest_tells_them_apart(twins: list[Bundle]) -> None:
    labels = sweep(WORK, twins, sm_clock_mhz=900.0).label("bundle")
    assert labels == [f"{A100.name} {A100.version} ({one.digest[7 : 7 + SHOWN_DIGITS]})" for one in twins]


def test_bundles_that_differ_by_name_or_not_at_all_keep_their_labels(twins: list[Bundle]) -> None:
    other = replace(twins[1], version="9")
    assert told_apart([twins[0], other, twins[0]]) == [twins[0], other, twins[0]]
    assert [one.version for one in told_apart([twins[0], twins[1], other], ["x", "y", "z"])] == [
        f"{A100.version} (x)",
        f"{A100.version} (y)",
        "9",
    ]

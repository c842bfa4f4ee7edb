"""Errors on rows left out of a fit say where they tell less than they seem, in every form of the answer."""

import csv
import json
from pathlib import Path

import pytest

from fitter.cli import main
from fitter.validate.notes import NO_INTERVAL, note_documents
from fitter.validate.predictions import ErrorRow, Errors

HEAD = ["operator", "gpu", "precision", "batch", "m", "n", "k", "rows", "dim", "sm_clock_mhz", "latency_s"]
SINGLE = "a single kernel: left out, the fit has none of its kind"
SLOWER = 2.5
"""A kernel so much slower than its like is forecast far too fast where it is left out, and well where it is in the fit."""


def table(path: Path, sizes: tuple[int, ...]) -> Path:
    """bf16 products of several sizes, and one kernel of a kind of its own, each at three clocks and several times."""
    rows = []
    for clock in (510, 900, 1410):
        for _ in range(3):
            for m in sizes:
                rows.append(["linear", "a100-pcie-40gb", "bf16", 1, m, 4096, 4096, "", "", clock, m / 4096 * 7e-4 * 1410 / clock])
            rows.append(["bmm", "a100-pcie-40gb", "bf16", 8, 1024, 1024, 1024, "", "", clock, SLOWER * 8.7e-5 * 1410 / clock])
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([HEAD, *rows])
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notes")


def test_a_kind_of_one_kernel_is_left_out_whole_and_marked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out, page = table(folder / "rows.csv", (1024, 2048, 4096, 8192)), folder / "b.json", folder / "r.html"
    main([str(data), "-o", str(out), "--report", str(page), "--json", "-q"])
    document = json.loads(capsys.readouterr().out)
    by_kind = {row["operator"]: row for row in document["errors"]}
    (note,) = document["error_notes"]
    assert note["operator"] == "bmm"
    assert SINGLE in note["note"]
    assert not any("bmm" in line for line in document["warnings"])
    main(["check", str(out), str(data), "--json", "-q"])
    in_sample = {row["operator"]: row["latency"]["mape"] for row in json.loads(capsys.readouterr().out)["errors"]}
    assert by_kind["bmm"]["latency"]["mape"] > 2 * in_sample["bmm"]
    assert SINGLE in page.read_text(encoding="utf-8")
    main([str(data), "-o", str(out), "--force", "-q"])
    lines = capsys.readouterr().out.splitlines()
    assert any("gemm bmm bf16 [1] " in line for line in lines)
    assert any(line.strip().startswith(f"[1] {SINGLE}") for line in lines)


@pytest.mark.parametrize(
    ("more", "reason"), [((), "one kernel: nothing to hold out"), (("--holdout", "0"), "nothing was held out (--holdout 0)")]
)
def test_a_fit_without_errors_says_why(folder: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], reason: str) -> None:
    data = table(folder / "few.csv", (1024, 2048) if more else ())
    main([str(data), "-o", str(folder / "few.json"), "--report", str(folder / "few.html"), "--force", *more, "-q"])
    assert f"errors are not known: {reason}" in capsys.readouterr().out
    assert reason in (folder / "few.html").read_text(encoding="utf-8")
    main([str(data), "-o", str(folder / "few.json"), "--force", *more, "--json", "-q"])
    document = json.loads(capsys.readouterr().out)
    assert document["errors"] == []
    assert {one["note"] for one in document["error_notes"]} == {reason}


def test_a_coverage_that_is_not_known_has_its_reason() -> None:
    errors = Errors(n=3, mape=1.0, median=1.0, p95=1.0, bias=0.0, coverage=float("nan"))
    row = ErrorRow(gpu="a10", family="norm", operator="layernorm", precision="fp32", n=3, latency=errors, power=None)
    (document,) = note_documents([row])
    assert (document["operator"], document["note"]) == ("layernorm", NO_INTERVAL)
    assert row.document()["coverage"] is None

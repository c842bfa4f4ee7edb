"""Bundles of one name and version beside each other are told apart."""

from dataclasses import replace
from pathlib import Path

import pytest

from estimator import load_bundle, sweep
from estimator.bundle.content import Bundle
from estimator.bundle.files import SHOWN_DIGITS, save_bundle, told_apart
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

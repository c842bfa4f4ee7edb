"""The local store of bundles, and what a bundle's card says."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from estimator import bundle_names, load_bundle
from estimator.bundle.content import Bundle
from estimator.bundle.files import VARIABLE, save_bundle, store_folder, stored_names
from estimator.cli import main
from estimator.display.bundles import card_document
from estimator.display.text import document_text, known
from tests.fitter.measured import planted_bundle


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "deep" / "store"
    monkeypatch.setenv(VARIABLE, str(folder))
    return folder


def written(folder: Path, **changes: object) -> Path:
    path = folder / "mine.json"
    save_bundle(replace(planted_bundle(), **changes), path)  # type: ignore[arg-type]
    return path


def test_a_bundle_in_the_store_is_known_by_its_name_unless_it_is_a_shipped_one(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "lab-7" not in bundle_names()
    store.mkdir(parents=True)
    for name in ("lab-7", "a10-eager", "broken"):
        written(store, name="lab").rename(store / f"{name}.json")
    (store / "broken.json").write_bytes((store / "broken.json").read_bytes()[:-40])
    assert load_bundle("lab-7").name == "lab"
    assert load_bundle("a10-eager").gpu.name == "a10"
    assert main(["bundles", str(written(tmp_path, name="lab")), "--json"]) == 3
    printed = capsys.readouterr()
    rows = json.loads(printed.out)
    assert {(row["name"], row["kept"]) for row in rows} == {
        ("a10-eager", "shipped"), ("a100-pcie-40gb-eager", "shipped"), ("broken", "store"), ("lab-7", "store"), ("lab", "file"),
    }  # fmt: skip
    assert "broken.json: not valid JSON" in printed.err
    assert main(["bundles"]) == 3
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["name", "a10-eager", "a100-pcie-40gb-eager", "lab-7"]
    assert main(["bundles", "--card"]) == 2


def test_the_store_is_the_user_s_data_folder_unless_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert store_folder() == tmp_path / "wattprint" / "bundles"
    monkeypatch.setenv("XDG_DATA_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert store_folder() == tmp_path / "home" / ".local" / "share" / "wattprint" / "bundles"
    assert stored_names() == ()


@pytest.mark.parametrize("bundle", [*map(load_bundle, ("a10-eager", "a100-pcie-40gb-eager")), planted_bundle()], ids=lambda one: one.name)
def test_a_card_says_what_was_fitted_how_well_and_what_was_not(bundle: Bundle) -> None:
    card, text = known(card_document(bundle)), document_text(card_document(bundle))
    assert json.loads(json.dumps(card, allow_nan=False)) == card
    assert all(name in text for name in (*card, *card["groups"], *(one.sha256 for one in bundle.provenance.datasets)))
    unseen = {name for name in card["groups"] if not bundle.domain.get(name)}
    assert all(card["groups"][name]["from"] == "prior" for name in unseen & {"attention.prefill", "attention.decode"})
    assert all(note in text for note in bundle.notes)

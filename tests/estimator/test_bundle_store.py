"""The local store of bundles, and what a bundle's card says."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from estimator import bundle_names, load_bundle
from estimator.bundle.content import Bundle
from estimator.bundle.files import VARIABLE, drop_bundle, keep_bundle, save_bundle, store_folder, stored_names, stored_path
from estimator.cli import main
from estimator.display.bundles import card_document
from estimator.display.text import document_text, known
from estimator.vocabulary.errors import BundleError
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


def test_a_kept_bundle_is_known_by_its_name_until_it_is_dropped(store: Path, tmp_path: Path) -> None:
    path = written(tmp_path, name="lab-7")
    before = bundle_names()
    assert "lab-7" not in before
    assert keep_bundle(path).name == "lab-7"
    assert load_bundle("lab-7") == load_bundle(path)
    assert set(bundle_names()) == {*before, "lab-7"}
    assert stored_path("lab-7").read_bytes() == path.read_bytes()
    assert drop_bundle("lab-7") == store / "lab-7.json"
    assert bundle_names() == before


def test_another_bundle_of_a_kept_name_needs_leave_and_the_same_one_none(store: Path, tmp_path: Path) -> None:
    keep_bundle(written(tmp_path, name="lab"))
    keep_bundle(written(tmp_path, name="lab"))
    newer = written(tmp_path, name="lab", version="0.2.0")
    with pytest.raises(BundleError, match="already holds another bundle 'lab'"):
        keep_bundle(newer)
    assert load_bundle("lab").version == "0.1.0"
    keep_bundle(newer, replace=True)
    assert load_bundle("lab").version == "0.2.0"
    assert [file.name for file in store.iterdir()] == ["lab.json"]


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "with space", "x" * 200, "ü", "mine.json"])
def test_a_name_that_is_no_file_s_is_not_kept(store: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(BundleError, match="cannot be that of a file"):
        keep_bundle(written(tmp_path, name=name))
    assert not store.exists()


def test_a_shipped_bundle_gives_its_name_to_no_other(store: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="comes with the package"):
        keep_bundle(written(tmp_path, name="a10-eager"), replace=True)
    store.mkdir(parents=True)
    written(tmp_path, name="x").rename(store / "a10-eager.json")  # laid there by hand
    assert load_bundle("a10-eager").gpu.name == "a10"


def test_damaged_files_are_not_kept_and_one_in_the_store_is_listed_with_its_fault(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(BundleError, match="not valid JSON"):
        keep_bundle(path)
    store.mkdir(parents=True)
    path.rename(store / "broken.json")
    assert main(["bundles"]) == 3
    printed = capsys.readouterr()
    assert "a10-eager" in printed.out
    assert "broken.json: not valid JSON" in printed.err


def test_the_store_is_the_user_s_data_folder_unless_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert store_folder() == tmp_path / "wattprint" / "bundles"
    monkeypatch.setenv("XDG_DATA_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert store_folder() == tmp_path / "home" / ".local" / "share" / "wattprint" / "bundles"
    assert stored_names() == ()


def test_the_command_adds_lists_and_removes(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, name="lab")
    assert main(["bundles", "--add", str(path), "--json"]) == 0
    kept = {row["name"]: row["kept"] for row in json.loads(capsys.readouterr().out)}
    assert kept == {"a10-eager": "shipped", "a100-pcie-40gb-eager": "shipped", "lab": "store"}
    assert main(["bundles", "--remove", "lab", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[:3] == ["lab", "0.1.0", "file"]
    for words, status in ((("--remove", "lab"), 1), (("--replace",), 2), (("--add", "a.json", "--remove", "b"), 2), (("--card",), 2)):
        assert main(["bundles", *words]) == status
        assert capsys.readouterr().err.count("\n") == 1
    assert not list(store.iterdir())


@pytest.mark.parametrize("bundle", [*map(load_bundle, ("a10-eager", "a100-pcie-40gb-eager")), planted_bundle()], ids=lambda one: one.name)
def test_a_card_says_what_was_fitted_how_well_and_what_was_not(bundle: Bundle) -> None:
    card, text = known(card_document(bundle)), document_text(card_document(bundle))
    assert json.loads(json.dumps(card, allow_nan=False)) == card
    assert all(name in text for name in (*card, *card["groups"], *(one.sha256 for one in bundle.provenance.datasets)))
    unseen = {name for name in card["groups"] if not bundle.domain.get(name)}
    assert all(card["groups"][name]["from"] == "prior" for name in unseen & {"attention.prefill", "attention.decode"})
    assert all(note in text for note in bundle.notes)

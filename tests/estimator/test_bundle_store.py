"""The folder of the user's bundles, bundles of one name side by side, and the content of a bundle's card."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from estimator import bundle_names, load_bundle, sweep
from estimator.bundle.files import VARIABLE, bundle_path, save_bundle, store_folder, stored_names, told_apart
from estimator.display.bundles import card_document
from estimator.display.text import document_text, known
from tests.estimator.estimating import fails, run
from tests.estimator.synthetic import transformer
from tests.fitter.measured import PLANTED

A100 = load_bundle("a100-pcie-40gb-eager")


def test_files_of_the_store_are_bundles_by_their_names_before_shipped_ones(tmp_path, monkeypatch):
    shipped = bundle_names()
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    for name in ("lab-7", "a10-eager"):
        save_bundle(PLANTED, tmp_path / f"{name}.json")
    (tmp_path / "broken.json").write_text("{")
    assert set(bundle_names()) == {*shipped, "lab-7", "broken"}
    assert load_bundle("lab-7") == load_bundle("a10-eager") == load_bundle(tmp_path / "lab-7.json")
    status, out, err = run("bundles --json")
    kept = {row["name"]: Path(row["path"]).parent == tmp_path for row in json.loads(out)}
    assert (status, kept) == (0, {name: name in ("a10-eager", "lab-7", "broken") for name in (*shipped, "lab-7", "broken")})
    assert "broken.json: not valid JSON" in err
    status, out, _ = run("bundles")
    assert (status, [line.split()[0] for line in out.splitlines()]) == (0, ["name", *sorted([*shipped, "lab-7"])])
    fails("bundles --card", status=2)


def test_the_store_is_the_user_s_data_folder_unless_named(monkeypatch, tmp_path):
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert store_folder() == tmp_path / "wattprint" / "bundles"
    monkeypatch.setenv("XDG_DATA_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert store_folder() == tmp_path / "home" / ".local" / "share" / "wattprint" / "bundles"
    assert stored_names() == ()


def test_bundles_that_share_name_and_version_have_labels_of_their_own(tmp_path):
    slower = replace(A100, host=replace(A100.host, launch_s=2.0 * A100.host.launch_s))
    one, two = (save_bundle(replace(bundle, digest=""), tmp_path / "b.json") for bundle in (A100, slower))
    labels = sweep(transformer(1024, 512, 4), [one, two], sm_clock_mhz=900.0).label("bundle")
    assert labels == [f"{A100.name} {A100.version} ({bundle.digest[7:15]})" for bundle in (one, two)]
    other = replace(two, version="9")
    assert told_apart([one, other, one]) == [one, other, one]
    assert [each.version for each in told_apart([one, two, other], "xyz")] == [f"{A100.version} (x)", f"{A100.version} (y)", "9"]


def test_a_printed_card_is_the_file_beside_the_bundle_if_it_is_of_that_bundle(tmp_path):
    file = bundle_path("a10-eager").with_suffix(".md").read_text()
    (tmp_path / "b.md").write_text(file)
    save_bundle(PLANTED, tmp_path / "b.json")
    for name, begins in (("a10-eager", f"{file}\ngroups\n"), (tmp_path / "b.json", "name: planted\n")):
        assert run(f"bundles {name} --card")[1].startswith(begins)


@pytest.mark.parametrize("bundle", [*map(load_bundle, ("a10-eager", "a100-pcie-40gb-eager")), PLANTED], ids=lambda one: one.name)
def test_a_card_says_what_was_fitted_how_well_and_what_was_not(bundle):
    card, text = known(card_document(bundle)), document_text(card_document(bundle))
    assert json.loads(json.dumps(card, allow_nan=False)) == card
    assert all(name in text for name in (*card, *card["groups"], *(one.sha256 for one in bundle.provenance.datasets)))
    unseen = {name for name in card["groups"] if not bundle.domain.get(name)}
    assert all(card["groups"][name]["from"] == "prior" for name in unseen & {"attention.prefill", "attention.decode"})
    assert all(note in text for note in bundle.notes)

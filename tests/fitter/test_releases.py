from dataclasses import replace
from pathlib import Path
from threading import Barrier, Thread
from time import sleep

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.bundle.files import load_bundle
from fitter.errors import ReleaseError
from fitter.release import release as changelog_module
from fitter.release.release import differences, differences_document, release
from fitter.release.version_rule import version_key
from tests.fitter.measured import planted_bundle

ORDERED = ("0.1.0", "0.1.1", "0.2.0-alpha", "0.2.0-alpha.1", "0.2.0-beta.2", "0.2.0-beta.11", "0.2.0", "0.10.0", "1.0.0", "10.0.0")
"""Ascending by the rules of semver.org, section 11."""


def test_versions_are_ordered_as_semantic_versions() -> None:
    shuffled = ORDERED[::2] + ORDERED[1::2]
    assert sorted(shuffled, key=version_key) == list(ORDERED)


@pytest.mark.parametrize("text", ["1", "1.2", "01.2.3", "1.2.3.4", "v1.2.3", "", "1.2.x", "1.2.3 ", "9999999999.0.0"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(ReleaseError, match=r"MAJOR\.MINOR\.PATCH"):
        version_key(text)


def test_a_release_has_a_new_digest_and_an_entry_on_top_of_the_changelog(tmp_path: Path) -> None:
    bundle, log = planted_bundle(), tmp_path / "log.md"
    first = release(bundle, "0.2.0", tmp_path / "a.json", log, None, "First.", "2026-01-02")
    second = release(first, "0.3.0", tmp_path / "b.json", log, first, "", "2026-02-03")
    assert load_bundle(tmp_path / "b.json") == second
    assert first.digest != second.digest
    text = log.read_text()
    assert text.startswith("# Changelog of bundle planted\n")
    assert text.index("## 0.3.0") < text.index("## 0.2.0")
    assert second.digest in text
    assert "First." in text
    assert text.count("# Changelog") == 1


def test_a_release_never_goes_back_and_never_overwrites(tmp_path: Path) -> None:
    bundle = planted_bundle()
    with pytest.raises(ReleaseError, match="above"):
        release(bundle, "0.1.0", tmp_path / "a.json", tmp_path / "log.md", None, "", "2026-01-02")
    release(bundle, "0.2.0", tmp_path / "a.json", tmp_path / "log.md", None, "", "2026-01-02")
    with pytest.raises(ReleaseError, match="exists"):
        release(bundle, "0.3.0", tmp_path / "a.json", tmp_path / "log.md", None, "", "2026-01-02")
    assert load_bundle(tmp_path / "a.json").version == "0.2.0"


def test_releases_at_the_same_time_lose_no_entry_of_their_changelog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, log, threads = planted_bundle(), tmp_path / "log.md", []
    together = Barrier(4)

    def slowly(path: Path) -> str:
        text = read(path)
        sleep(0.05)  # without a lock all four read the empty changelog
        return text

    def released(number: int) -> None:
        together.wait()
        release(bundle, f"0.{number}.0", tmp_path / f"{number}.json", log, None, "", "2026-01-02")

    read = changelog_module._changelog
    monkeypatch.setattr(changelog_module, "_changelog", slowly)
    for number in range(2, 6):
        threads.append(Thread(target=released, args=(number,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    entries = sorted(line.split()[1] for line in log.read_text().splitlines() if line.startswith("## "))
    assert entries == ["0.2.0", "0.3.0", "0.4.0", "0.5.0"]


@given(st.floats(0.5, 2.0).filter(lambda x: abs(x - 1) > 1e-3))
def test_a_difference_counts_standard_deviations_of_both(factor: float) -> None:
    old = planted_bundle()
    group = old.groups["gemm"]
    changed = replace(group, coefficients={**group.coefficients, "math": factor * group.coefficients["math"]})
    new = replace(old, groups={**old.groups, "gemm": changed})
    (change,) = differences(old, new)
    assert change.place == "gemm.math"
    assert change.factor == pytest.approx(factor)
    assert change.sigmas > 0
    (back,) = differences(new, old)
    assert back.sigmas == pytest.approx(change.sigmas)


def test_a_bundle_does_not_differ_from_itself_and_lacks_are_shown() -> None:
    bundle = planted_bundle()
    assert differences(bundle, bundle) == []
    poorer = replace(bundle, power=None, groups={key: group for key, group in bundle.groups.items() if key != "softmax"})
    places = {change["place"]: change for change in differences_document(bundle, poorer)["changes"]}
    assert places["softmax.dram"]["new"] is None
    assert places["power.busy_w"]["new"] is None

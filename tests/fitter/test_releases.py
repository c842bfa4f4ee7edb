"""Releases: which version a bundle may have after another one, its changelog, and what changed from one to the next."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator import load_bundle, write_workload
from estimator.blocks.model import ENERGIES as JOULES
from estimator.blocks.model import TIMES, model_key
from estimator.blocks.model import section_of as block_section
from estimator.counts.energies import section_of as instruction_section
from estimator.vocabulary.gpu import ClockTable
from fitter.cli import main as fit
from fitter.errors import ReleaseError
from fitter.release.versions import (
    coefficient_differences,
    differences_document,
    least_version,
    needed_step,
    newest_release,
    release,
    require_step,
    version_key,
    workload_differences,
)
from tests.estimator.estimating import run
from tests.estimator.synthetic import transformer
from tests.estimator.test_block_count import MODEL
from tests.estimator.test_counted_energy import ENERGIES
from tests.fitter.measured import PLANTED

VOLTAGE = ClockTable(sm_clock_mhz=(510.0, 1410.0), value=(0.7, 0.9))


def test_a_release_has_a_new_digest_and_an_entry_on_top_and_never_goes_back_or_overwrites(tmp_path):
    first, log = release(PLANTED, "0.2.0", tmp_path / "a.json", None, "First.", "2026-01-02")
    second, _ = release(first, "0.10.0", tmp_path / "b.json", first, "", "2026-02-03")
    assert load_bundle(tmp_path / "b.json") == second
    assert first.digest != second.digest
    text = log.read_text()
    assert text.startswith("# Changelog of bundle planted\n")
    assert text.index("## 0.10.0") < text.index("## 0.2.0") < text.index("First.")
    assert second.digest in text
    assert text.count("# Changelog") == 1
    for version, message in (("0.9.0", "above"), ("0.11.0", "exists")):
        with pytest.raises(ReleaseError, match=message):
            release(second, version, tmp_path / "a.json", None, "", "2026-01-02")
    assert load_bundle(tmp_path / "a.json").version == "0.2.0"


@given(st.floats(0.5, 2.0).filter(lambda x: abs(x - 1) > 1e-3))
def test_a_difference_counts_standard_deviations_of_both(factor):
    (change,) = coefficient_differences(PLANTED, scaled(PLANTED, factor))
    assert change.place == "gemm.math"
    assert change.factor == pytest.approx(factor)
    (back,) = coefficient_differences(scaled(PLANTED, factor), PLANTED)
    assert 0 < back.sigmas == pytest.approx(change.sigmas)


def counting(energies, models):
    """A bundle with energies of counts and block-count models."""
    return replace(PLANTED, instruction_energies=instruction_section(energies), block_models=block_section(models))


def test_energies_of_counts_and_block_models_are_compared_and_missed_too():
    old = counting(ENERGIES, [MODEL])
    new = counting(
        replace(ENERGIES, values=1.1 * ENERGIES.values), [replace(MODEL, times_s=1.05 * MODEL.times_s, energies=2.0 * MODEL.energies)]
    )
    assert coefficient_differences(old, old) == []
    moved = {one.place: one.factor for one in coefficient_differences(old, new)}
    terms = {f"instruction_energies.{term}": pytest.approx(1.1) for term in ENERGIES.terms}
    own = zip((*TIMES, *JOULES), (1.05, 1.05, 1.05, 2.0, 2.0), strict=True)
    assert moved == terms | {f"block_models.{model_key(MODEL)}.{name}": pytest.approx(factor) for name, factor in own}
    assert all(one.sigmas > 0.0 for one in coefficient_differences(old, new))
    less = replace(
        ENERGIES, terms=ENERGIES.terms[:-1], values=ENERGIES.values[:-1], covariance=ENERGIES.covariance[:-1, :-1], identified=(True,) * 7
    )
    assert needed_step(old, counting(less, [MODEL])) == ("major", (f"energy of {ENERGIES.terms[-1]} removed",))


def scaled(bundle, factor=1 + 1e-15):
    """One coefficient changed, in its last digit."""
    group = bundle.groups["gemm"]
    nudged = replace(group, coefficients={**group.coefficients, "math": group.coefficients["math"] * factor})
    return replace(bundle, groups={**bundle.groups, "gemm": nudged})


def slower(bundle, factor):
    """All times of all groups longer by a factor."""
    groups = {
        key: replace(group, coefficients={name: v if name.endswith("exponent") else factor * v for name, v in group.coefficients.items()})
        for key, group in bundle.groups.items()
    }
    return replace(bundle, groups=groups, host=replace(bundle.host, launch_s=factor * bundle.host.launch_s))


@pytest.mark.parametrize("factor, counts", [(1.0, 0), (1.019, 0), (1.05, 3), (0.9, 3)])
def test_a_prediction_counts_beyond_two_percent_at_three_clocks(workload, factor, counts):
    found = workload_differences(PLANTED, slower(PLANTED, factor), [workload])
    latency = [one for one in found if one.place.endswith("latency_s")]
    assert len(latency) == len({one.place for one in latency}) == counts
    assert all(one.factor == pytest.approx(factor, abs=0.004) for one in latency)


def test_what_one_bundle_lacks_counts_and_a_bundle_does_not_differ_from_itself(workload):
    assert coefficient_differences(PLANTED, PLANTED) == []
    poorer = replace(PLANTED, power=None, groups={key: group for key, group in PLANTED.groups.items() if key != "softmax"})
    document = differences_document(PLANTED, poorer, workload_differences(PLANTED, replace(PLANTED, power=None), [workload]))
    places = {change["place"]: change for change in document["changes"]}
    assert places["softmax.dram"]["new"] is places["power.busy_w"]["new"] is None
    assert document["step"] == "major"
    assert [(row["place"].partition(": ")[2], row["new"]) for row in document["workloads"]] == [("power_w", None), ("energy_j", None)] * 3


@pytest.fixture
def workload(tmp_path):
    path = tmp_path / "model.json"
    write_workload(transformer(512, 1024, 4, name="model", family="large"), path)
    return str(path)


BASE = replace(PLANTED, version="1.2.3", voltage=None)
LOW_MHZ, HIGH_MHZ = BASE.clocks_mhz

CHANGES = {
    "another GPU": ("major", {"gpu": replace(BASE.gpu, name="other")}),
    "specification": ("major", {"gpu": replace(BASE.gpu, num_sms=80)}),
    "simulated": ("major", {"environment": {"simulated": "true"}}),
    "completion": ("major", {"completion": "other"}),
    "fewer groups": ("major", {"groups": {key: group for key, group in BASE.groups.items() if key != "softmax"}}),
    "no power": ("major", {"power": None}),
    "fewer clocks": ("major", {"clocks_mhz": (LOW_MHZ + 100, HIGH_MHZ)}),
    "last digit": ("minor", {"groups": scaled(BASE).groups}),
    "more groups": ("minor", {"groups": {**BASE.groups, "gemm.linear.bf16": BASE.groups["gemm"]}}),
    "more clocks": ("minor", {"clocks_mhz": (LOW_MHZ, HIGH_MHZ + 100)}),
    "new table": ("minor", {"voltage": VOLTAGE}),
    "uncertainty": ("minor", {"uncertainty": {"latency": {"gpu": 0.5}, "power": {}}}),
    "notes": ("patch", {"notes": ("new",), "environment": {"driver": "1"}}),
    "nothing": ("patch", {}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_needs_the_step_that_the_rule_states(name):
    step, fields = CHANGES[name]
    assert needed_step(BASE, replace(BASE, **fields))[0] == step


def test_the_least_version_follows_from_the_step_and_a_version_must_reach_it():
    leasts = {("1.2.3", "major"): "2.0.0", ("1.2.3", "minor"): "1.3.0", ("1.2.3", "patch"): "1.2.4", ("0.2.3", "major"): "0.3.0"}
    assert {case: least_version(*case) for case in leasts} == leasts
    for text in ("1.2", "01.2.3", "1.2.3.4", "v1.2.3", "", "1.2.x", "1.2.3 ", "9999999999.0.0", "1.0.0-rc.1"):
        with pytest.raises(ReleaseError, match=r"MAJOR\.MINOR\.PATCH"):
            version_key(text)
    old = replace(PLANTED, version="1.2.3")
    for version in ("1.3.0", "2.0.0"):
        require_step(old, scaled(old), version)
    for version, refused in (("1.2.4", "too small a step"), ("1.2.3", "must be above")):
        with pytest.raises(ReleaseError, match=refused):
            require_step(old, scaled(old), version)


def test_a_release_is_compared_with_the_newest_one_beside_it(tmp_path):
    bundle = replace(PLANTED, version="0.9.0")
    for version in ("1.0.0", "1.10.0", "1.9.0", "2.0.0"):
        release(bundle, version, tmp_path / f"planted-{version}.json", None, "", "2026-01-02")
    for name in ("planted-notes.json", "planted-extra-1.11.0.json"):
        (tmp_path / name).write_text("{}")
    assert newest_release(tmp_path, "planted") == tmp_path / "planted-2.0.0.json"
    assert newest_release(tmp_path, "other") is None
    first = replace(bundle, version="1.10.0")
    with pytest.raises(ReleaseError, match=r"1\.10\.1 is too small a step from 1\.10\.0.*group softmax removed.*least is 2\.0\.0"):
        release(replace(bundle, **CHANGES["fewer groups"][1]), "1.10.1", tmp_path / "x.json", first, "", "2026-01-02")
    assert not (tmp_path / "x.json").exists()


def test_a_release_of_an_installed_bundle_lies_in_the_present_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("release a10-eager --version 9.0.0", program=fit)
    assert {path.name for path in tmp_path.iterdir()} == {"a10-eager-9.0.0.json", "a10-eager.changelog.md"}

"""Which version a bundle may have after another one."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from estimator.bundle.content import Bundle, VoltageTable
from fitter.errors import ReleaseError
from fitter.release.release import release, release_before
from fitter.release.version_rule import least_version, needed_step, require_step
from tests.fitter.measured import planted_bundle

VOLTAGE = VoltageTable(sm_clock_mhz=(510.0, 1410.0), voltage_v=(0.7, 0.9), std_v=None, source="")


def scaled(bundle: Bundle) -> Bundle:
    """One coefficient changed in its last digit."""
    group = bundle.groups["gemm"]
    nudged = replace(group, coefficients={**group.coefficients, "math": group.coefficients["math"] * (1 + 1e-15)})
    return replace(bundle, groups={**bundle.groups, "gemm": nudged})


CHANGES: dict[str, tuple[str, Callable[[Bundle], Bundle]]] = {
    "another GPU": ("major", lambda b: replace(b, gpu=replace(b.gpu, name="other"))),
    "specification": ("major", lambda b: replace(b, gpu=replace(b.gpu, num_sms=80))),
    "simulated": ("major", lambda b: replace(b, environment={"simulated": "true"})),
    "completion": ("major", lambda b: replace(b, completion="other")),
    "fewer groups": ("major", lambda b: replace(b, groups={k: v for k, v in b.groups.items() if k != "softmax"})),
    "no power": ("major", lambda b: replace(b, power=None)),
    "fewer clocks": ("major", lambda b: replace(b, clocks_mhz=(b.clocks_mhz[0] + 100, b.clocks_mhz[1]))),
    "last digit": ("minor", scaled),
    "more groups": ("minor", lambda b: replace(b, groups={**b.groups, "gemm.linear.bf16": b.groups["gemm"]})),
    "more clocks": ("minor", lambda b: replace(b, clocks_mhz=(b.clocks_mhz[0], b.clocks_mhz[1] + 100))),
    "new table": ("minor", lambda b: replace(b, voltage=VOLTAGE)),
    "uncertainty": ("minor", lambda b: replace(b, uncertainty={"latency": {"gpu": 0.5}, "power": {}})),
    "notes": ("patch", lambda b: replace(b, notes=("new",))),
    "driver": ("patch", lambda b: replace(b, environment={"driver": "1"})),
    "nothing": ("patch", lambda b: b),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_needs_the_step_that_the_rule_states(name: str) -> None:
    step, change = CHANGES[name]
    bundle = replace(planted_bundle(), version="1.2.3", voltage=None)
    needed = needed_step(bundle, change(bundle))
    assert needed.step == step
    assert needed.reasons


@pytest.mark.parametrize(
    ("old", "step", "least"),
    [
        ("1.2.3", "major", "2.0.0"),
        ("1.2.3", "minor", "1.3.0"),
        ("1.2.3", "patch", "1.2.4"),
        ("0.2.3", "major", "0.3.0"),
        ("0.2.3", "minor", "0.3.0"),
        ("0.2.3", "patch", "0.2.4"),
        ("2.0.0-rc.1", "major", "2.0.0"),
    ],
)
def test_the_least_version_follows_from_the_step(old: str, step: str, least: str) -> None:
    assert least_version(old, step) == least  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("version", "refused"),
    [("1.2.4", "too small a step"), ("1.3.0", ""), ("1.3.0-rc.1", ""), ("2.0.0", ""), ("1.2.3", "must be above"), ("1.2.4+x", "too small")],
)
def test_a_version_must_be_as_large_a_step_as_the_change(version: str, refused: str) -> None:
    old = replace(planted_bundle(), version="1.2.3")
    if not refused:
        require_step(old, scaled(old), version)
        return
    with pytest.raises(ReleaseError, match=refused):
        require_step(old, scaled(old), version)


def test_a_release_is_held_to_the_newest_one_beside_it(tmp_path: Path) -> None:
    bundle, log = replace(planted_bundle(), version="0.9.0"), tmp_path / "log.md"
    for version in ("1.0.0", "1.10.0", "1.9.0", "2.0.0"):
        release(bundle, version, tmp_path / f"planted-{version}.json", log, None, "", "2026-01-02")
    (tmp_path / "planted-notes.json").write_text("{}")
    (tmp_path / "planted-extra-1.11.0.json").write_text("{}")
    assert release_before(tmp_path, "planted", "1.11.0") == tmp_path / "planted-1.10.0.json"
    assert release_before(tmp_path, "planted", "1.0.0") is None
    first = replace(bundle, version="1.10.0")
    with pytest.raises(ReleaseError, match=r"1\.10\.1 is too small a step from 1\.10\.0.*group softmax removed.*least is 2\.0\.0"):
        release(CHANGES["fewer groups"][1](bundle), "1.10.1", tmp_path / "x.json", log, first, "", "2026-01-02")
    assert not (tmp_path / "x.json").exists()

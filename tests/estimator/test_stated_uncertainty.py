"""A number whose uncertainty is unknown says so, and why, wherever it is shown."""

import json
import math
from dataclasses import replace

import pytest

from estimator import Asked, Variant, best, load_bundle
from estimator.bundle.files import save_bundle
from estimator.cli import main
from estimator.display.text import NO_ERRORS, NO_POWER, unknown_values
from estimator.formats import write_workload
from tests.estimator.synthetic import transformer
from tests.fitter.measured import planted_bundle

KNOWN = "a100-pcie-40gb-eager"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A workload, a bundle that holds no errors of rows outside its fit, and one without power."""
    folder = tmp_path_factory.mktemp("silent")
    write_workload(replace(transformer(1024, 512, 4), name="made_b2_s512"), folder / "w.json")
    save_bundle(planted_bundle(), folder / "silent.json")
    save_bundle(replace(load_bundle(KNOWN), power=None, digest=""), folder / "powerless.json")
    return {name: str(folder / f"{name}.json") for name in ("w", "silent", "powerless")}


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words, "--quiet"]) in (0, 3)
    return capsys.readouterr().out


@pytest.mark.parametrize("command", [[], ["best"], ["compare", "--baselines"]])
@pytest.mark.parametrize(("bundle", "reason"), [("silent", NO_ERRORS), ("powerless", NO_POWER)])
def test_every_table_says_why_a_number_has_no_uncertainty(
    capsys: pytest.CaptureFixture[str], files: dict[str, str], command: list[str], bundle: str, reason: str
) -> None:
    if command == ["best"] and bundle == "powerless":
        command = ["best", "--goal", "latency"]
    words = [*command[:1], files["w"], *command[1:], "--bundle", files[bundle], "--freqs", "900"]
    assert reason in shown(capsys, *words)
    known = shown(capsys, *words[: words.index("--bundle")], "--bundle", KNOWN, "--freqs", "900")
    assert NO_ERRORS not in known
    assert NO_POWER not in known
    assert "±" in known


def test_json_has_null_and_the_reason(capsys: pytest.CaptureFixture[str], files: dict[str, str]) -> None:
    words = (files["w"], "--freqs", "900", "--json", "--bundle")
    silent = json.loads(shown(capsys, *words, files["silent"]))
    assert silent["latency_s"] > 0
    assert silent["latency_s_std"] is None
    assert silent["unknown"] == dict.fromkeys(("latency_s_std", "power_w_std", "energy_j_std"), NO_ERRORS)
    powerless = json.loads(shown(capsys, *words, files["powerless"]))
    assert powerless["power_w"] is None
    assert powerless["unknown"] == dict.fromkeys(("power_w", "power_w_std", "energy_j", "energy_j_std"), NO_POWER)
    assert json.loads(shown(capsys, *words, KNOWN))["unknown"] == {}
    points = json.loads(shown(capsys, "sweep", *words, files["silent"]))
    assert [point["unknown"] for point in points] == [NO_ERRORS]


def test_without_stated_errors_no_clock_can_be_told_from_the_best() -> None:
    clocks = (600.0, 900.0, 1200.0, 1410.0)
    asked = Asked(variant=Variant(workload=transformer(1024, 512, 4)), bundle=planted_bundle(), sm_clock_mhz=clocks)
    assert best(asked).clocks_mhz == (600.0, 1410.0)
    known = best(replace(asked, bundle=load_bundle(KNOWN)))
    assert len(known.alike) < len(clocks)


def test_power_that_is_unknown_is_no_reason_for_an_unknown_latency() -> None:
    values = {"latency_s_std": math.nan, "power_w": math.nan, "energy_j_std": math.nan}
    assert unknown_values(values) == {"latency_s_std": NO_ERRORS, "power_w": NO_POWER, "energy_j_std": NO_POWER}

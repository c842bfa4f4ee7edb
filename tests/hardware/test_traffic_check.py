"""The check of derived traffic: agreement and bias come out as they went in."""

import json
from dataclasses import replace

import numpy as np
import pytest

from estimator import load_bundle, load_gpu
from estimator.bundle.files import save_bundle
from fitter.bundle.sections import prior_bundle
from scripts.traffic_check import COUNTS, LEVELS, MARK, chosen_kernels, derived_bytes, main, operators_document

OPERATORS = chosen_kernels()


def counters(traffic, scale=1.0):
    """What the counters of one kernel would read for so many bytes by level; DRAM's are shared out between reads and writes."""
    found = {}
    for level, parts in LEVELS.items():
        for name, each in parts.items():
            share = 1.0 if len(parts) == 1 else 0.75 if "read" in name else 0.25
            found[name] = scale * share * traffic[level] / each
    return found


METRICS = '"ID","Process Name","Kernel Name","Grid Size","Metric Name","Metric Unit","Metric Value"\n'


def long_table(launches):
    """As `ncu --csv` prints: a line a metric, numbers with commas, DRAM's bytes scaled."""
    lines = ['==PROF== Profiling "x": 0%....100% - 3 passes\n', METRICS]
    for number, (name, values) in enumerate(launches):
        for metric, value in values.items():
            unit, shown = ("Mbyte", f"{value / 1e6:,.9f}") if "bytes" in metric else ("sector", f"{value:,.3f}")
            lines.append(f'"{number}","python3","{name}","(16, 32, 1)","{metric}","{unit}","{shown}"\n')
    return "".join(lines)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    path = tmp_path_factory.mktemp("bundle") / "h200.json"
    known = prior_bundle(load_gpu("h200-sxm"))
    made = replace(known.provenance, created_utc="2026-01-01T00:00:00Z", wattprint_version="0.0.0", commit="0" * 40)
    save_bundle(replace(known, provenance=made), path)
    return path


def profiled(bundle, *, noise, bias):
    """What a profile of the chosen kernels would hold if the hardware moved what is derived, but for a bias and chance."""
    known = load_bundle(str(bundle))
    derived = derived_bytes(OPERATORS, known.gpu, known, [None] * len(OPERATORS))
    random = np.random.default_rng(1)
    launches = []
    for number in range(len(OPERATORS)):
        traffic = {level: float(derived[level][number]) for level in LEVELS}
        launches.append((f"{MARK}{number}()", counters(dict.fromkeys(LEVELS, 0.0))))
        factor = bias * float(np.exp(noise * random.standard_normal()))
        launches += [("some_kernel", counters(traffic, 0.9 * factor)), ("its_second_part", counters(traffic, 0.1 * factor))]
    return launches


def comparing(folder, bundle, table):
    files = [str(folder / name) for name in ("kernels.json", table)]
    return ["compare", *files, "--bundle", str(bundle), "-o", str(folder / "t.json")]


def test_agreement_and_bias_come_out_as_they_went_in(bundle, tmp_path, capsys):
    (tmp_path / "kernels.json").write_text(json.dumps(operators_document(OPERATORS)))
    (tmp_path / "counters.csv").write_text(long_table(profiled(bundle, noise=0.02, bias=1.25)))
    words = comparing(tmp_path, bundle, "counters.csv")
    assert main(words) == 0
    found = json.loads((tmp_path / "t.json").read_text())
    assert found["dram"]["all"]["kernels"] == 100
    assert {family: found["dram"][family]["kernels"] for family in COUNTS} == COUNTS
    for level in LEVELS:
        assert found[level]["all"]["correlation"] > 0.995
        ratio = found[level]["all"]["ratio"]
        assert ratio["median"] == pytest.approx(1 / 1.25, rel=0.01)
        assert ratio["p90"] / ratio["p10"] == pytest.approx(np.exp(2 * 1.2816 * 0.02), rel=0.02)
    assert "below" not in capsys.readouterr().out
    (tmp_path / "counters.csv").write_text(long_table(profiled(bundle, noise=1.0, bias=1.0)))
    assert main(words) == 3
    assert "below 0.99" in capsys.readouterr().out


NO_PROFILES = {
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n": "ncu said: ==ERROR== ERR_NVGPUCTRPERM",
    METRICS + '"0","k"\n': "damaged table",
    METRICS + '"0","p","k","(1, 1, 1)","m","","1"\n': "profile `launch`",
}


@pytest.mark.parametrize("content", NO_PROFILES)
def test_what_is_no_profile_is_refused_in_one_line(content, bundle, tmp_path, capsys):
    (tmp_path / "kernels.json").write_text(json.dumps(operators_document(OPERATORS[:3])))
    (tmp_path / "x.csv").write_text(content)
    assert main(comparing(tmp_path, bundle, "x.csv")) == 1
    told = capsys.readouterr().err
    assert NO_PROFILES[content] in told
    assert told.count("\n") == 1
    assert not (tmp_path / "t.json").exists()

"""Options that contradict each other are wrong usage in every command, whatever their order."""

from itertools import permutations

import pytest

from collector.cli import main as collect
from estimator.cli import main as estimate
from fitter.cli import main as fit

BUNDLE = "a100-pcie-40gb-eager"
WORKLOAD = "examples/gpt2-prefill.json"

PAIRS = [
    (collect, ["--gpu", "sim:a100-pcie-40gb", "--dry-run"], ["--resume", "--fresh"]),
    (collect, ["--gpu", "sim:a100-pcie-40gb", "--dry-run"], ["--quiet", "-v"]),
    (collect, ["submit", "quick", "--dry-run"], ["--resume", "--fresh"]),
    (estimate, [WORKLOAD, "--bundle", BUNDLE], ["--completion", "--no-completion"]),
    (estimate, [WORKLOAD, "--bundle", BUNDLE], ["--quiet", "-v"]),
    (estimate, ["sweep", WORKLOAD, "--bundle", BUNDLE], ["--completion", "--no-completion"]),
    (estimate, ["trace", "gpt2"], ["--head", "--no-head"]),
    (estimate, ["trace", "gpt2"], ["--quiet", "-v"]),
    (fit, ["rows.csv"], ["--quiet", "-v"]),
]


@pytest.mark.parametrize(("command", "words", "pair"), PAIRS)
def test_both_of_a_pair_are_refused_in_either_order_and_each_alone_is_not(command, words, pair, repository, monkeypatch, capsys) -> None:
    monkeypatch.chdir(repository)
    for first, second in permutations(pair):
        assert command([*words, first, second]) == 2
        err = capsys.readouterr().err
        assert f"{pair[0]} and {pair[1]} exclude each other" in err or f"{pair[0]} or {pair[1]} is given 2 times" in err
        assert err.count("\n") == 1
    for one in pair:
        command([*words, one, one])
        assert "exclude" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "words", "said"),
    [
        (collect, ["validate", "x.parquet", "--rules"], "not both"),
        (collect, ["pmd", "emulate", "--power", "P.csv", "--low", "3"], "--power gives the power to measure"),
        (estimate, ["trace", "gpt2", "--list"], "or ask for --list"),
        (estimate, ["bundles", BUNDLE, "--card", "--remove", "x"], "--card only shows"),
        (estimate, ["counts", "x.csv", "--metrics"], "not both"),
        (estimate, ["blocks", "--bundle", BUNDLE, "--off-w", "3"], "--simgrid"),
        (estimate, ["sweep", "--model", "gpt2", "--at", "batch=8", "--bundle", BUNDLE], "--at says for which sizes files are written"),
    ],
)
def test_options_of_two_ways_of_working_are_not_mixed(command, words, said, tmp_path, capsys) -> None:
    table = tmp_path / "rows.csv"
    table.write_text("operator,gpu,precision,rows,dim,latency_s\nsoftmax,a10,fp32,4096,512,1e-4\n", encoding="utf-8")
    recording = tmp_path / "P.csv"
    recording.write_text("t_s,power_w\n0,1\n1,2\n", encoding="utf-8")
    names = {"DATA": str(table), "P.csv": str(recording), "x.parquet": str(table), "x.csv": str(table)}
    assert command([names.get(word, word) for word in words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_a_switch_has_its_default_and_the_value_that_is_asked_for(capsys, repository, monkeypatch) -> None:
    monkeypatch.chdir(repository)
    said = []
    for words in ([], ["--completion"], ["--no-completion"]):
        estimate([WORKLOAD, "--bundle", BUNDLE, "--quiet", "--csv", *words])
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert len(said[2]) > 0

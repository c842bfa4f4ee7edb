"""Options that contradict each other are wrong usage in every command."""

import pytest

from estimator.cli import main as estimate

BUNDLE = "a100-pcie-40gb-eager"


@pytest.mark.parametrize(
    ("command", "words", "said"),
    [
        (estimate, ["trace", "gpt2", "--list"], "or ask for --list"),
        (estimate, ["counts", "x.csv", "--metrics"], "not both"),
    ],
)
def test_options_of_two_ways_of_working_are_not_mixed(command, words, said, tmp_path, capsys) -> None:
    table = tmp_path / "rows.csv"
    table.write_text("operator,gpu,precision,rows,dim,latency_s\nsoftmax,a10,fp32,4096,512,1e-4\n", encoding="utf-8")
    names = {"DATA": str(table), "x.csv": str(table)}
    assert command([names.get(word, word) for word in words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1

"""Options of all commands: those that every one takes, and those that contradict each other."""

import pytest

from collector.cli import main as collect
from collector.commands.collect import COMMANDS as COLLECT_COMMANDS
from estimator.cli import main as estimate
from estimator.commands.estimate import COMMANDS as ESTIMATE_COMMANDS
from fitter.cli import main as fit
from fitter.commands.fit import COMMANDS as FIT_COMMANDS

COMMANDS = ((collect, COLLECT_COMMANDS), (estimate, ESTIMATE_COMMANDS), (fit, FIT_COMMANDS))
BUNDLE = "a100-pcie-40gb-eager"


@pytest.mark.parametrize(
    "command, words, said",
    [
        (estimate, ["trace", "gpt2", "--list"], "or ask for --list"),
        (estimate, ["counts", "x.csv", "--metrics"], "not both"),
    ],
)
def test_options_of_two_ways_of_working_are_not_mixed(command, words, said, tmp_path, capsys):
    table = tmp_path / "rows.csv"
    table.write_text("operator,gpu,precision,rows,dim,latency_s\nsoftmax,a10,fp32,4096,512,1e-4\n", encoding="utf-8")
    names = {"DATA": str(table), "x.csv": str(table)}
    assert command([names.get(word, word) for word in words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command, name", [(main, name) for main, names in COMMANDS for name in names])
def test_every_command_takes_quiet_and_verbose(command, name, capsys):
    assert command([name, "--help"]) == 0
    told = capsys.readouterr().out
    assert "--quiet" in told
    assert "--verbose" in told

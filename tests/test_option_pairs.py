"""Options of all commands: those that every one takes, and those that contradict each other."""

import pytest

from collector.cli import main as collect
from collector.commands.collect import COMMANDS as COLLECT_COMMANDS
from estimator.cli import main as estimate
from estimator.commands.estimate import COMMANDS as ESTIMATE_COMMANDS
from fitter.cli import main as fit
from fitter.commands.fit import COMMANDS as FIT_COMMANDS
from tests.estimator.estimating import fails, run

COMMANDS = ((collect, COLLECT_COMMANDS), (estimate, ESTIMATE_COMMANDS), (fit, FIT_COMMANDS))


@pytest.mark.parametrize("words, said", [("trace gpt2 --list", "or ask for --list"), ("counts x.csv --metrics", "not both")])
def test_options_of_two_ways_of_working_are_not_mixed(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.csv").write_text("", encoding="utf-8")
    assert said in fails(words, status=2)


@pytest.mark.parametrize("command, name", [(main, name) for main, names in COMMANDS for name in names])
def test_every_command_takes_quiet_and_verbose_and_o_for_out(command, name):
    status, told, _ = run(name, "--help", program=command)
    assert status == 0
    assert "--quiet" in told
    assert "--verbose" in told
    assert told.count("  --out ") == 0

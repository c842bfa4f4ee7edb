"""Paths that are no files end a command with one line, and an interruption leaves one line too."""

import importlib
import os
import sys
from pathlib import Path

import pytest

from estimator.cli import main
from estimator.options.command_line import INTERRUPTED

WORKLOAD = str(Path(__file__).parents[2] / "examples" / "gpt2-prefill.json")
BUNDLE = "a100-pcie-40gb-eager"


@pytest.fixture
def pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return str(path)


@pytest.mark.parametrize("place", [0, 2])
def test_a_pipe_without_a_writer_is_refused_at_once(pipe, place, capsys):
    words = [WORKLOAD, "--bundle", BUNDLE]
    words[place] = pipe
    assert main(words) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "it is a pipe, not a file" in said


def test_a_bundle_that_cannot_be_read_is_refused_with_what_to_do(tmp_path, capsys):
    folder = tmp_path / "bundle.json"
    folder.mkdir()
    assert main([WORKLOAD, "--bundle", str(folder)]) == 1
    said = capsys.readouterr().err
    assert "cannot be read" in said
    assert "estimate bundles" in said


@pytest.mark.parametrize(
    "module, name",
    [("fitter.cli", "fit"), ("collector.cli", "collect")],
)
def test_an_interruption_before_anything_is_loaded_leaves_one_line(module, name, monkeypatch, capsys):
    class Interrupting:
        """Presses Ctrl-C while the first module is looked for."""

        @staticmethod
        def find_spec(wanted, *_):
            if wanted == "estimator.cli":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "estimator.cli")
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting, *sys.meta_path])
    assert importlib.import_module(module).main([]) == INTERRUPTED
    assert capsys.readouterr().err == f"{name}: interrupted\n"

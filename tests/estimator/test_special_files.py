"""Paths that are no files end a command with one line, and an interruption leaves one line too."""

import importlib
import sys

import pytest

from estimator.options.command_line import INTERRUPTED


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

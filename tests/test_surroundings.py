"""Commands in odd surroundings: no stdout, a reader that has gone, no home folder, files that are not there."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from estimator.bundle.files import store_folder, stored_names
from estimator.options.command_line import INTERRUPTED
from estimator.vocabulary.resources import user_folder
from tests.processes import COLLECT, ended

REPOSITORY = Path(__file__).resolve().parents[1]
ESTIMATE = (sys.executable, "-m", "estimator.cli")
FIT = (sys.executable, "-m", "fitter.cli")


@pytest.mark.parametrize(
    "words", [(*ESTIMATE, "examples/llama-8b-decode.json", "--bundle", "a10-eager"), (*FIT, "show", "a10-eager"), (*COLLECT, "devices")]
)
def test_a_command_without_a_stdout_fails_in_one_line(words, tmp_path):
    script = f'"$@" >&- 2> "{tmp_path}/err"'
    assert ended("bash", "-c", script, "bash", *words, cwd=REPOSITORY).returncode == 1
    err = (tmp_path / "err").read_text()
    assert err.count("\n") == 1
    assert "stdout is closed" in err


def test_a_reader_that_has_gone_ends_a_command_with_1_and_silence():
    words = (*ESTIMATE, "bundles", "--json")
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, cwd=REPOSITORY, timeout=300, check=False, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("home", ["", None])
def test_without_a_home_folder_that_of_the_system_counts(home, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_DATA_HOME", "WATTPRINT_BUNDLES"):
        monkeypatch.delenv(name, raising=False)
    if home is None:
        monkeypatch.delenv("HOME", raising=False)
    else:
        monkeypatch.setenv("HOME", home)
    assert store_folder().is_absolute()
    assert user_folder("XDG_DATA_HOME", "x").is_absolute()
    stored_names()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module, name", [("fitter.cli", "fit"), ("collector.cli", "collect")])
def test_an_interruption_before_anything_is_loaded_leaves_one_line(module, name, monkeypatch, capsys):
    class Interrupting:
        """Presses Ctrl-C while the first module is looked for."""

        @staticmethod
        def find_spec(wanted, *_):
            if wanted == "estimator.cli":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "estimator.cli", raising=False)
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting, *sys.meta_path])
    assert importlib.import_module(module).main([]) == INTERRUPTED
    assert capsys.readouterr().err == f"{name}: interrupted\n"


WITHOUT_POSIX = """
import os, sys
for name in ("O_CLOEXEC", "O_NONBLOCK", "O_NOFOLLOW", "O_DIRECTORY", "fork", "getuid", "link"):
    delattr(os, name)
sys.modules |= dict.fromkeys(("fcntl", "grp", "pwd", "resource", "termios"))
from {}.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    "words",
    ["examples/llama-8b-decode.json --gpu h100 -o {}/answer.txt", "llm qwen3-8b --gpu l40s --prompt 9 --output 9 --batch 1 -o {}/it.json"],
)
def test_estimate_needs_nothing_that_windows_lacks(words, tmp_path):
    """What Windows' Python has not is taken out; the whole was tried there by hand (in Wine)."""
    done = ended(sys.executable, "-c", WITHOUT_POSIX.format("estimator"), *words.format(tmp_path).split(), cwd=REPOSITORY)
    assert (done.returncode, len(list(tmp_path.iterdir()))) == (0, 1), done.stderr


@pytest.mark.parametrize("module, words", [("fitter", "show a10-eager"), ("collector", "devices")])
def test_what_needs_linux_says_so_in_one_line(module, words):
    done = ended(sys.executable, "-c", WITHOUT_POSIX.format(module), *words.split(), cwd=REPOSITORY)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert ": this system's Python has no module " in done.stderr

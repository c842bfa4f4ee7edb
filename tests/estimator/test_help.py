"""What the help of a command offers works, and what it does not offer is refused."""

import re
from pathlib import Path

import pytest

from estimator.cli import main
from estimator.commands.options import CHART_FORMATS

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "gpt2-prefill.json"
ASKED = {
    "": ("--freq", "900"),
    "sweep": ("--freqs", "900"),
    "best": ("--freqs", "900,1005"),
    "compare": ("--freqs", "900,1005"),
    "explain": ("--freqs", "900"),
}
"""Commands that write an answer in a form of one's choice, and what to ask them."""


def words_of_help(capsys: pytest.CaptureFixture[str], command: str) -> str:
    assert main([*command.split(), "--help"]) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("command", ASKED)
def test_the_forms_that_help_names_are_those_that_are_written(capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str) -> None:
    named = re.search(r"ending (?:names|says): ([a-z, ]+)\.", words_of_help(capsys, command))
    assert named
    offered = named[1].split(", ")
    for form in (*CHART_FORMATS, "html"):
        if form == "png":
            pytest.importorskip("resvg_py")
        out = tmp_path / f"answer.{form}"
        status = main([*command.split(), str(EXAMPLE), "--bundle", "a100-pcie-40gb-eager", *ASKED[command], "-q", "--out", str(out)])
        assert (status in (0, 3), out.exists()) == (form in offered,) * 2, (form, capsys.readouterr().err)

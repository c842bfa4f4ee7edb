"""What the commands write: text from files takes over no terminal and fills none, and a document keeps its meaning."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fitter.commands.lines import LONGEST_LINE, plain, say, tell

ANY_TEXT = st.text(st.characters(), max_size=50)
DOCUMENTS = st.dictionaries(ANY_TEXT, ANY_TEXT | st.lists(ANY_TEXT, max_size=3), max_size=4)


@given(ANY_TEXT)
def test_a_line_is_one_line_that_can_be_printed_and_plain_text_stays(text: str) -> None:
    assert plain(text).isprintable()
    assert len(plain(text)) == len(text)
    assert plain(plain(text)) == plain(text)
    assert not text.isprintable() or plain(text) == text


def test_a_giant_line_is_cut_in_its_middle() -> None:
    line = plain("a" * 5_000_000 + "b")
    assert len(line) < LONGEST_LINE + 10
    assert (line[0], line[-1]) == ("a", "b")


@given(DOCUMENTS)
def test_a_document_can_be_printed_and_says_what_it_said(document: dict[str, Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        written: list[str] = []
        patch.setattr("click.echo", written.append)
        say(document)
    assert written[0].replace("\n", "").isprintable()
    assert json.loads(written[0]) == document


def test_lines_stay_lines(capsys: pytest.CaptureFixture[str]) -> None:
    say(["one\x1b[2J", "two\nthree"])
    tell("four\u202e")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("one?[2J\ntwo?three\n", "four?\n")

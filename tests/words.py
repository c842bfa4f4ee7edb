"""Words of a command with other values for some of its options, and what `collect` answers."""

import json
import shlex
from contextlib import contextmanager

import pytest

from collector.cli import main


def changed(words, change):
    """The words of a command with `change` behind them, less the options, and their values, that it gives anew: an option is given once."""
    old, new = shlex.split(words), shlex.split(change)
    dropped = {place + step for place, word in enumerate(old) if word.startswith("--") and word in new for step in (0, 1)}
    return shlex.join([*(word for place, word in enumerate(old) if place not in dropped), *new])


def called(*words):
    """Status of a `collect` with these words; a single text is split as a shell does."""
    return main(shlex.split(words[0]) if len(words) == 1 else [*map(str, words)])


def answer(capsys, *words, status=0):
    """The JSON of a `collect` that ends with this status; words as for `called`."""
    capsys.readouterr()
    found = called(f"{words[0]} --json") if len(words) == 1 else called(*words, "--json")
    out, err = capsys.readouterr()
    assert found == status, err
    return json.loads(out)


def refused(capsys, status, reason, *words):
    """A `collect` that must end so: with this status, no result, and one short line on stderr that has the reason."""
    capsys.readouterr()
    found = called(*words)
    out, err = capsys.readouterr()
    assert (found, reason in err, out, err.count("\n"), "Traceback" in err, len(err) < 600) == (status, True, "", 1, False, True), err
    return err


@contextmanager
def one_line(error, match=None):
    """A block that must raise this error, whose text matches and is one line."""
    with pytest.raises(error, match=match) as caught:
        yield caught
    assert "\n" not in str(caught.value)

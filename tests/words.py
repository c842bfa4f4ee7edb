"""Words of a command with other values for some of its options, and what `collect` answers."""

import copy
import functools
import json
import operator
import shlex
from contextlib import contextmanager

import pytest

from collector.cli import main
from tests.estimator.estimating import run


def changed(words, change):
    """The words of a command with `change` behind them, less the options, and their values, that it gives anew: an option is given once."""
    old, new = shlex.split(words), shlex.split(change)
    dropped = {place + step for place, word in enumerate(old) if word.startswith("--") and word in new for step in (0, 1)}
    return shlex.join([*(word for place, word in enumerate(old) if place not in dropped), *new])


def replaced(document, keys, value):
    """The document with the value at these keys replaced."""
    copied = copy.deepcopy(document)
    functools.reduce(operator.getitem, keys[:-1], copied)[keys[-1]] = value
    return copied


def called(*words):
    """Status of a `collect` with these words; a single text is split as a shell does."""
    return main(shlex.split(words[0]) if len(words) == 1 else [*map(str, words)])


def told(*words, status=0):
    """What a `collect` that ends with this status writes to the two streams; words as for `called`."""
    found, *streams = run(program=lambda _: called(*words))
    assert found == status, streams
    return streams


def answer(*words, status=0):
    """The JSON of such a `collect`."""
    out, _ = told(f"{words[0]} --json", status=status) if len(words) == 1 else told(*words, "--json", status=status)
    return json.loads(out)


def refused(status, reason, *words):
    """A `collect` that must end so: with this status, no result, and one short line on stderr that has the reason."""
    out, err = told(*words, status=status)
    assert (reason in err, out, err.count("\n"), len(err) < 600) == (True, "", 1, True), err
    return err


@contextmanager
def one_line(error, match=None):
    """A block that must raise this error, whose text matches and is one line."""
    with pytest.raises(error, match=match) as caught:
        yield caught
    assert "\n" not in str(caught.value)

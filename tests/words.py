"""Words of a command with other values for some of its options, and the one line of a `collect` that fails."""

from collector.cli import main


def changed(words, *change):
    """`words` with `change` behind them, less the options, and their values, that it gives anew: an option may be given once."""
    given = [word for word in change if word.startswith("--")]
    dropped = {place + step for place, word in enumerate(words) if word in given for step in (0, 1)}
    return [*(word for place, word in enumerate(words) if place not in dropped), *change]


def failure(capsys, *words):
    """Exit status and the one line on stderr of a `collect` that must fail."""
    capsys.readouterr()
    status = main(words)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    assert "Traceback" not in captured.err
    return status, captured.err

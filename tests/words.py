"""Words of a command with other values for some of its options."""


def changed(words: list[str], *change: str) -> list[str]:
    """`words` with `change` behind them, less the options, and their values, that it gives anew: an option may be given once."""
    given = [word for word in change if word.startswith("--")]
    dropped = {place + step for place, word in enumerate(words) if word in given for step in (0, 1)}
    return [*(word for place, word in enumerate(words) if place not in dropped), *change]

"""Values of files and arguments in messages, by JSON's words rather than Python's."""

from typing import Any


def kind_of(value: Any) -> str:
    """What a value is."""
    names = {type(None): "null", bool: "a truth value", str: "a text", list: "a list", tuple: "a list", dict: "an object"}
    return names.get(type(value), shown(value)[:40])


def shown(value: Any) -> str:
    """A value as a file would hold it; texts in simple quotes."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:.15g}" if isinstance(value, float) else repr(value)

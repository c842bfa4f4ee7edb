"""Names from files in lines for people: a name of thousands of characters is not repeated in full."""

from typing import Final

LONGEST_NAME: Final = 80
"""Characters of a name that a line shows."""


def short_name(name: str) -> str:
    """The name, cut in its middle where it is longer than LONGEST_NAME: what tells names apart mostly stands at an end."""
    if len(name) <= LONGEST_NAME:
        return name
    kept = LONGEST_NAME - 1
    return f"{name[: kept - kept // 2]}…{name[-(kept // 2) :]}"
